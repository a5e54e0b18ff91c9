"""Free tensors with an axis for the data: their blocks without gradients of single data."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from symbayes.curvature.capture import Capture
from symbayes.curvature.diagonal import Diagonal
from symbayes.curvature.ggn import Ggn
from symbayes.curvature.kfac import Kfac
from symbayes.data.source import TensorSource
from symbayes.likelihoods.classes import Categorical
from tests.curvature.test_blind_spots import OneByOne


class Tokens(nn.Module):
    """A small transformer, as those for images are."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Linear(3, 4), nn.Linear(4, 3)
        self.first, self.places = nn.Parameter(torch.randn(1, 1, 4)), nn.Parameter(torch.randn(1, 6, 4))
        self.layer, self.norm = nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True), nn.LayerNorm(4)

    def forward(self, x):
        x = torch.cat([self.first.expand(len(x), -1, -1), self.embed(x)], 1) + self.places
        return self.head(self.norm(self.layer(x))[:, 0])


class Odd(nn.Module):
    """Tensors that look as if they had an axis for the data, and others."""

    def __init__(self):
        super().__init__()
        self.one, self.twice, self.scale = (nn.Parameter(torch.rand(shape)) for shape in ((1, 15), (1, 15), (15,)))
        self.head = nn.Linear(15, 3)

    def forward(self, x):
        x = x.flatten(1) + self.one[0]
        return self.head(torch.tanh(self.scale * x + self.twice.repeat(len(x), 1)))


def made(kind):
    with torch.random.fork_rng():
        torch.random.manual_seed(0)
        return kind().double().eval()


def points(n=23):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(n, 5, 3, generator=generator, dtype=torch.float64)
    return TensorSource(inputs, torch.arange(n) % 3, torch.device("cpu"))


@pytest.mark.parametrize("rule", [Kfac(batch_size=7), Diagonal()])
@pytest.mark.parametrize("kind", [Tokens, Odd])
def test_blocks_of_free_tensors_are_exact(kind, rule):
    model, data = made(kind), points()
    found, exact = (each.curvature(model, data, Categorical()).blocks for each in (rule, Ggn(joint=False)))
    for name in set(dict(model.named_parameters())) - {"embed.weight"}:
        if "." not in name or "norm" in name:
            assert_close(found[name].eigenvalues, exact[name].dense().diagonal(), rtol=1e-10, atol=1e-12)


def test_tensors_with_an_axis_for_the_data_need_no_gradients_of_single_data(monkeypatch):
    model, data = made(Tokens), points()
    with Capture(model) as capture:
        capture.forward(data.inputs[:4])
        assert capture.spread == {"first", "places"}
    monkeypatch.setattr("symbayes.curvature.sums.free_gradients", None)
    Kfac().curvature(model, data, Categorical())


def test_tensors_that_data_share_otherwise_are_differentiated_datum_by_datum():
    with Capture(made(Odd)) as capture:
        capture.forward(points().inputs[:4])
        assert capture.spread == set()


def test_a_tensor_with_such_an_axis_that_is_not_used_is_refused():
    model = made(Tokens)
    model.forward = lambda x: model.head(model.norm(model.layer(model.embed(x) + model.places[:, :5]))[:, 0])
    with pytest.raises(RuntimeError, match="'first' is trainable, but the outputs of the model do not depend on it"):
        Kfac().curvature(model, points(), Categorical())


class Gated(nn.Module):
    """A tensor of which some data have their own copy alone, and others that of the first, too."""

    def __init__(self):
        super().__init__()
        self.own, self.head = nn.Parameter(torch.rand(1, 15)), nn.Linear(15, 3)

    def forward(self, x):
        x = x.flatten(1)
        return self.head(x * self.own + torch.relu(x[:, :1]) * self.own[0])


class Pair(nn.Module):
    """Two tensors, of which either may have copies, and not both."""

    def __init__(self):
        super().__init__()
        self.one, self.other = (nn.Parameter(torch.rand(1, 15)) for _ in range(2))
        self.head = nn.Linear(15, 3)

    def forward(self, x):
        return self.head(x.flatten(1) + (self.one[:, None] * self.other).reshape(-1, 15))


@pytest.mark.parametrize("kind", [Gated, Pair])
def test_tensors_that_are_more_than_a_copy_for_each_datum_are_not_taken_for_it(kind):
    model, data = made(kind), points()
    data.inputs[0] = -data.inputs[0].abs()  # behind the gate
    with Capture(model) as capture:
        capture.forward(data.inputs)
        assert capture.spread == set()
    found, exact = (rule.curvature(model, data, Categorical()).blocks for rule in (Kfac(), Ggn(joint=False)))
    for name in set(dict(model.named_parameters())) - {"head.weight", "head.bias"}:
        assert_close(found[name].eigenvalues, exact[name].dense().diagonal(), rtol=1e-10, atol=1e-12)


class Gain(nn.Module):
    """One number, which is as long as an axis for the data would be."""

    def __init__(self, given=1):
        super().__init__()
        self.map, self.gain = nn.Linear(15, given), nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.map(x.flatten(1)) * self.gain


@pytest.mark.parametrize("model", [
    Gain(3), Gain(4), Gain(5), nn.Sequential(nn.Flatten(), nn.Linear(15, 5), nn.PReLU(), nn.Linear(5, 3)),
])  # fmt: skip
@pytest.mark.parametrize("n", [2, 3, 4, 5, 23])
def test_single_numbers_have_their_exact_curvature(model, n):
    model, data = model.double(), points(n)
    found, exact = (rule.curvature(model, data, Categorical()).blocks for rule in (Kfac(), Ggn(joint=False)))
    for name, weight in model.named_parameters():
        if weight.numel() == 1:
            assert_close(found[name].eigenvalues, exact[name].dense().diagonal(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("size", "open_at"), [(1.0, 1), (10.0, 1), (1e3, 1), (1.0, 6), (1.0, 30)])
@pytest.mark.parametrize("gate", [lambda x, own: torch.relu(x) * own, lambda x, own: torch.where(x > 0, own, 0.0)])
def test_no_datum_hides_that_others_have_more_than_their_copy(size, open_at, gate):
    """Behind the gate are all data but one, with a gradient that is larger than theirs; or all that are looked at first."""
    model, data = made(Gated), points(40)
    model.forward = lambda x: model.head(x.flatten(1) * model.own + gate(x.flatten(1)[:, :1], model.own[0]))
    data.inputs[:, 0, 0] = -data.inputs[:, 0, 0].abs()
    data.inputs[open_at, 0, 0] *= -1
    data.inputs[7, 1, 1] = size
    found, exact = (rule.curvature(model, data, Categorical()).blocks for rule in (Diagonal(), Ggn(joint=False)))
    assert_close(found["own"].eigenvalues, exact["own"].dense().diagonal(), rtol=1e-10, atol=1e-12)


class Centred(nn.Module):
    """Places without their mean, which the norm would take away again: all data depend on all places by rounding alone."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.head = nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 3)
        self.places = nn.Parameter(torch.randn(1, 5, 4))

    def forward(self, x):
        places = self.places - self.places.mean((0, 1, 2), keepdim=True)
        return self.head(self.norm(self.embed(x) + places).tanh().mean(1))


@pytest.mark.parametrize("n", [2, 5, 23])
def test_what_data_share_but_for_rounding_is_differentiated_datum_by_datum(n):
    model, data = made(Centred), points(n)
    found, exact = (rule.curvature(model, data, Categorical()).blocks for rule in (Kfac(), Ggn(joint=False)))
    assert_close(found["places"].eigenvalues, exact["places"].dense().diagonal(), rtol=1e-8, atol=1e-12)


class Watched(Centred):
    """With a mean of what it has seen, and no numbers that are not finite."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x):
        x = self.norm(self.embed(x) + self.places).tanh()
        assert x.isfinite().all()
        with torch.no_grad():
            self.mean.lerp_(x.mean(), 0.1)
        return self.head(x.mean(1))


def test_models_see_finite_numbers_alone():
    model = made(Watched)
    Kfac().curvature(model, points(), Categorical())
    assert model.mean.isfinite()


def test_copies_stay_where_columns_go_back_one_by_one():
    model, data = made(Tokens), points()

    def forward(x, bend):
        tokens = torch.cat([model.first.expand(len(x), -1, -1), model.embed(x)], 1) + model.places
        return model.head(bend(model.norm(model.layer(tokens)))[:, 0])

    found = []
    for bend in (OneByOne.apply, torch.tanh):
        model.forward = lambda x, bend=bend: forward(x, bend)
        found.append(Diagonal().curvature(model, data, Categorical()).blocks)
    for name in ("first", "places"):
        assert_close(found[0][name].eigenvalues, found[1][name].eigenvalues, rtol=1e-10, atol=1e-12)
