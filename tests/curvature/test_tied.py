"""Weights that several maps share: from rows where maps are all their use, else datum by datum; exact either way."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

import symbayes as sb
from symbayes.curvature import gradients, sums
from symbayes.curvature.blocks import DiagonalBlock, KroneckerBlock
from symbayes.curvature.capture import Capture
from symbayes.curvature.check import check_capture
from symbayes.curvature.diagonal import Diagonal
from symbayes.curvature.kfac import Kfac, RunningCurvature
from symbayes.curvature.memory import factor_numbers
from symbayes.data.source import TensorSource
from symbayes.layout import Hyperparameter, Layout, weights
from symbayes.likelihoods.classes import Categorical
from tests.oracles import dense_ggn, softmax_hessian

TOKENS, WIDTH = 6, 4


class Language(nn.Module):
    """Its head has the weights of its embedding; how it runs is given."""

    def __init__(self, run, bias=False):
        super().__init__()
        self.embedding, self.head = nn.Embedding(TOKENS, WIDTH), nn.Linear(WIDTH, TOKENS, bias=bias)
        self.middle, self.run = nn.Linear(WIDTH, WIDTH), run
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.run(self, tokens)


def hidden(m, tokens):
    return m.middle(m.embedding(tokens).tanh()).tanh()


def usual(m, tokens):
    return m.head(hidden(m, tokens)).mean(1)


def twice(m, tokens):
    return m.head(hidden(m, tokens) + hidden(m, tokens.flip(1))).mean(1)


def elsewhere(m, tokens):
    """Its weight is read without the module, too."""
    return usual(m, tokens) + functional.linear(hidden(m, tokens).mean(1), m.head.weight.tanh())


def without_head(m, tokens):
    return functional.linear(hidden(m, tokens).mean(1), m.embedding.weight)


def two_shapes(m, tokens):
    return m.head(m.middle(m.embedding(tokens).mean(1) + m.embedding(tokens[:, :2]).mean(1)).tanh())


def once_for_all(m, tokens):
    """The embedding sees no data."""
    chosen = (tokens[..., None] == torch.arange(TOKENS)).to(m.middle.weight)
    return m.head((chosen @ m.embedding(torch.arange(TOKENS))).mean(1).tanh())


def data(generator, count=7):
    tokens = torch.randint(0, TOKENS, (count, 3), generator=generator)
    return TensorSource(tokens, torch.arange(count) % TOKENS, torch.device("cpu"))


def folded(model):
    """Positions are parts of a datum that the head sees for themselves."""

    def run(m, tokens):
        return m.head(hidden(m, tokens).flatten(0, 1)).unflatten(0, (len(tokens), -1)).mean(1)

    model.run = run
    return model


CASES = {
    "usual": (lambda: Language(usual), True),
    "with a bias": (lambda: Language(usual, bias=True), True),
    "called twice": (lambda: Language(twice), True),
    "parts of data": (lambda: folded(Language(usual)), True),
    "used elsewhere, too": (lambda: Language(elsewhere), False),
    "a map that is not called": (lambda: Language(without_head), False),
    "two shapes": (lambda: Language(two_shapes), False),
    "once for all data": (lambda: Language(once_for_all), False),
}


@pytest.fixture(params=CASES)
def case(request, generator):
    make, by_rows = CASES[request.param]
    torch.manual_seed(0)
    model = make().double()
    if request.param == "once for all data":  # what it does not call is no part of this
        model.middle.requires_grad_(False)
    return model, by_rows, data(generator)


@pytest.mark.parametrize("rule", [Diagonal(), Diagonal(batch_size=3), Kfac(batch_size=4)])
def test_the_diagonal_of_a_shared_weight_is_exact(case, rule):
    model, _, source = case
    found = rule.curvature(model, source, Categorical()).blocks["embedding.weight"]
    wanted = dense_ggn(model, source.inputs, softmax_hessian)["embedding.weight", "embedding.weight"].diagonal()
    assert_close(found.diagonal, wanted)


def test_gradients_of_single_data_are_taken_only_where_there_are_no_rows(case, monkeypatch):
    model, by_rows, source = case
    asked = []

    def note(model, names, *given, **by_name):
        asked.append(list(names))
        return before(model, names, *given, **by_name)

    before = sums.free_gradients
    monkeypatch.setattr(sums, "free_gradients", note)
    with torch.no_grad():
        Kfac().curvature(model, source, Categorical())
    assert asked == ([] if by_rows else [["embedding.weight"]])
    capture = Capture(model)
    check_capture(capture, source.inputs)
    assert list(capture.tied) == (["embedding.weight"] if by_rows else [])


def test_a_few_data_at_a_time_give_the_same(monkeypatch, generator):
    torch.manual_seed(0)
    model, source = Language(usual).double(), data(generator)
    whole = Diagonal().curvature(model, source, Categorical()).blocks["embedding.weight"].diagonal
    monkeypatch.setattr(gradients, "ROW_BUDGET_CPU", 2 * TOKENS * WIDTH)
    formed, before = [], gradients._sum_of_squares
    monkeypatch.setattr(gradients, "_sum_of_squares", lambda each: formed.append(each.numel()) or before(each))
    some = Diagonal().curvature(model, source, Categorical()).blocks["embedding.weight"].diagonal
    assert_close(some, whole)
    assert max(formed) <= 2 * TOKENS * WIDTH < len(source.inputs) * whole.numel()


@pytest.mark.parametrize("sides", [(70, 65), (64, 80)])
def test_squares_of_halved_rows_are_those_of_whole_ones(sides, generator, monkeypatch):
    """As on a GPU, where rows have zeros behind them."""
    left, right = (torch.randn(5, 3, 2, side, generator=generator) for side in sides)
    monkeypatch.setattr(gradients, "ROW_BUDGET_CPU", 2 * 5 * sides[1] * 10)
    exact = torch.einsum("nsbl,nsbr->nblr", left.double(), right.double()).square().sum(0)
    assert_close(gradients.squared_products(left, right).double(), exact, rtol=1e-5, atol=1e-6)
    monkeypatch.setattr(gradients, "rounded", lambda rows, features: rows.bfloat16())
    found = gradients.squared_products(left, right).double()
    assert found.shape == exact.shape
    assert (found - exact).norm() < 0.01 * exact.norm()
    for sides in ((left.requires_grad_(), right), (right, left)):  # of which none is rounded where one has a graph
        assert gradients.squared_products(*sides).dtype == torch.float32
        assert gradients.squared_products(*sides).requires_grad


def test_running_curvature_knows_what_is_used_elsewhere(case):
    model, _, source = case
    running = RunningCurvature(model, Categorical(), Kfac(), 3, torch.Generator().manual_seed(0))
    running.add((source.inputs, source.targets))
    found = running.curvature(source.size).blocks["embedding.weight"].diagonal
    assert_close(found, Kfac().curvature(model, source, Categorical()).blocks["embedding.weight"].diagonal)


class Sorted(nn.Module):
    """Two maps share a weight, and the second sees data in the order of their first number."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.second.weight = self.first.weight

    def forward(self, inputs):
        order = inputs[:, 0].argsort(stable=True)
        return self.second(self.first(inputs).tanh()[order])[order.argsort()]


@pytest.mark.parametrize("alike", [0, 8, 11])
def test_maps_that_see_data_in_different_orders_are_not_added_up(alike, generator):
    """Also where the data that are looked at first are in order."""
    torch.manual_seed(0)
    model, inputs = Sorted().double(), torch.randn(12, WIDTH, generator=generator, dtype=torch.float64)
    inputs[:alike, 0] = -9.0
    source = TensorSource(inputs, torch.arange(12) % WIDTH, torch.device("cpu"))
    found = Diagonal().curvature(model, source, Categorical()).blocks["first.weight"].diagonal
    assert_close(found, dense_ggn(model, inputs, softmax_hessian)["first.weight", "first.weight"].diagonal())


@pytest.mark.parametrize("rule", [Diagonal(), Kfac(batch_size=4)])
@pytest.mark.parametrize("run", [usual, elsewhere])
def test_gradients_through_the_curvature_know_what_the_check_found(run, rule, generator):
    torch.manual_seed(0)
    model, source = Language(lambda m, tokens: run(m, tokens) * m.scale).double(), data(generator)
    model.scale = Hyperparameter(torch.tensor(0.7, dtype=torch.float64))
    precisions = {name: torch.ones((), dtype=torch.float64) for name in weights(model)}

    def objective():
        curvature = rule.curvature(model, source, Categorical())
        return curvature.log_likelihood - curvature.log_det(precisions) / 2

    with torch.no_grad():
        terms = list(rule.curvature(model, source, Categorical()).surrogates(precisions))
    found = sum(torch.autograd.grad(term, model.scale)[0] for term in terms)
    (wanted,) = torch.autograd.grad(objective(), model.scale)
    assert_close(found, wanted)


@pytest.mark.parametrize("run", [usual, elsewhere])
def test_a_small_budget_of_memory_gives_the_same(run, generator):
    torch.manual_seed(0)
    model, source = Language(run).double(), data(generator)
    wanted = Kfac().curvature(model, source, Categorical()).blocks["embedding.weight"].diagonal
    with sb.curvature.memory_budget(0.1):
        found = Kfac().curvature(model, source, Categorical()).blocks["embedding.weight"].diagonal
    assert_close(found, wanted)


def test_a_check_holds_for_running_curvature_that_goes_on(generator):
    torch.manual_seed(0)
    model, source = Language(elsewhere).double(), data(generator)
    batch = source.inputs, source.targets
    first, second = (RunningCurvature(model, Categorical(), Kfac(), 3, torch.Generator().manual_seed(0)) for _ in range(2))
    first.add(batch)
    second.load_state_dict(first.state_dict())
    for running in (first, second):
        running.add(batch)
    one, other = (running.curvature(source.size).blocks["embedding.weight"].diagonal for running in (first, second))
    assert_close(one, other)


def test_a_layout_says_which_maps_share_a_weight():
    shared = Layout.of(Language(usual, bias=True))
    assert {name: [site.source for site in sites] for name, sites in shared.tied.items()} == {
        "embedding.weight": ["embedding", "head"]
    }
    assert shared.free == ("embedding.weight",)
    assert shared.sites.keys() == {"head", "middle"}
    biases = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    biases[1].bias = biases[0].bias
    assert not Layout.of(biases).tied
    unknown = nn.Sequential(nn.Embedding(3, 3), nn.Bilinear(3, 3, 1))
    unknown[1].weight = nn.Parameter(torch.zeros(1, 3, 3))
    unknown[0].weight = nn.Parameter(torch.zeros(3, 3))
    assert not Layout.of(unknown).tied


def test_a_network_with_a_shared_weight_learns_without_gradients_of_single_data(generator, monkeypatch):
    def refuse(*given, **by_name):
        raise AssertionError("a pass for each datum")

    monkeypatch.setattr(sums, "free_gradients", refuse)
    torch.manual_seed(0)
    source = data(generator, 40)
    result = sb.fit(Language(usual), (source.inputs, source.targets), epochs=4, progress=False)
    assert isinstance(result.log_evidence, float)


@pytest.mark.parametrize("rule", [Kfac(batch_size=3), Kfac(sb.curvature.MonteCarloFisher())])
def test_weights_with_a_side_that_is_too_large_have_their_diagonal(rule, generator, monkeypatch):
    """Of a head with more classes than that; an embedding of as many words has one-hot rows, and keeps its factors."""
    monkeypatch.setattr("symbayes.curvature.memory.LARGEST_SIDE", TOKENS - 1)
    torch.manual_seed(0)
    embedding, head = nn.Embedding(TOKENS, WIDTH), nn.Linear(WIDTH, TOKENS)
    model = nn.Sequential(embedding, nn.Tanh(), head, Mean()).double()
    source = data(generator)
    found = rule.curvature(model, source, Categorical())
    assert isinstance(found.blocks["0.weight"], KroneckerBlock)
    assert isinstance(found.blocks["2.weight"], DiagonalBlock)
    assert "the diagonal of 2.weight (more than" in found.estimator
    assert "the diagonal of 2.weight (more than" in sb.curvature.Ekfac().curvature(model, source, Categorical()).estimator
    if rule.batch_size:
        wanted = dense_ggn(model, source.inputs, softmax_hessian)
        for name in ("2.weight", "2.bias"):
            assert_close(found.blocks[name].diagonal, wanted[name, name].diagonal())
    assert factor_numbers(model) == WIDTH**2 + TOKENS + WIDTH * TOKENS + TOKENS


def test_wide_biases_have_their_diagonal(generator, monkeypatch):
    """Where positions share them; also where some batches have one position, and others several."""
    torch.manual_seed(0)
    model, source = nn.Sequential(nn.Embedding(TOKENS, WIDTH), nn.Linear(WIDTH, TOKENS), Mean()).double(), data(generator)
    whole = Kfac().curvature(model, source, Categorical()).blocks["1.bias"]
    numbers = factor_numbers(model)
    for name in ("kfac", "memory"):
        monkeypatch.setattr(f"symbayes.curvature.{name}.LARGEST_BIAS", TOKENS - 1)
    wide = Kfac(batch_size=3).curvature(model, source, Categorical()).blocks["1.bias"]
    assert isinstance(wide, DiagonalBlock)
    assert_close(wide.diagonal, whole.H.matrices[0].diagonal())
    assert factor_numbers(model) == numbers - TOKENS**2 + TOKENS
    alone = TensorSource(source.inputs[:, :1], source.targets, source.inputs.device)
    assert not isinstance(Kfac().curvature(model, alone, Categorical()).blocks["1.bias"], DiagonalBlock)
    for order in ((alone, source), (source, alone)):
        running = RunningCurvature(model, Categorical(), Kfac(), 5, torch.Generator().manual_seed(0))
        for some in order:
            running.add((some.inputs, some.targets))
        each = [Kfac().curvature(model, some, Categorical()).blocks["1.bias"] for some in order]
        wanted = sum(b.diagonal if isinstance(b, DiagonalBlock) else b.H.matrices[0].diagonal() for b in each) / 2
        assert_close(running.curvature(source.size).blocks["1.bias"].diagonal, wanted)


class Mean(nn.Module):
    """Over positions."""

    def forward(self, outputs):
        return outputs.mean(1)
