"""Where the comparison with torch's own gradients could be blind: masked outputs, other modes, later data, other scales."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.testing import assert_close
from torch.utils.data import Dataset

import symbayes as sb
from symbayes.adapters import NormsByParts
from symbayes.curvature import (
    Diagonal,
    Ekfac,
    EmpiricalFisher,
    Ggn,
    Lanczos,
    MonteCarloFisher,
    Preconditioned,
    Subsets,
    TangentKernel,
)
from symbayes.curvature import check as reference
from symbayes.data.source import TensorSource
from symbayes.posterior.functional import sampled_outputs
from tests.curvature.networks import Do
from tests.curvature.test_silence import CLASSES, by_every_direction, data, evidence, exact, slope_of_the_exact_evidence

RULES = {
    "diagonal": Diagonal(),
    "kfac": sb.Kfac(),
    "ggn": Ggn(),
    "kernel": TangentKernel(6),
    "lanczos": Lanczos(1, 2),
}


def masked(model):
    """The last class is ruled out."""
    ruled_out = torch.arange(CLASSES) == CLASSES - 1
    return nn.Sequential(model, Do(lambda s, x: x.masked_fill(ruled_out, -torch.inf)))


def two_classes(count=6):
    inputs, targets = data(4, count=count)
    return inputs, targets % (CLASSES - 1)


def tied_head():
    return Do(lambda s, x: functional.linear(s.parts[0](x).tanh(), s.parts[0].weight)[:, :CLASSES], [nn.Linear(4, 4)])


def test_outputs_that_are_ruled_out_do_not_hide_what_is_wrong():
    with pytest.raises(RuntimeError, match=r"Parameter '0\.parts\.0\.weight' is used in another way"):
        evidence(masked(tied_head()).double(), two_classes(), Diagonal())
    for rule in RULES.values():
        centred = Do(lambda s, x: s.parts[0](x - x.mean(0)), [nn.Linear(4, CLASSES)])
        with pytest.raises(RuntimeError, match="must not depend on the other data"):
            evidence(masked(centred).double(), two_classes(), rule)
        noisy = Do(lambda s, x: functional.dropout(s.parts[0](x), 0.5, True), [nn.Linear(4, CLASSES)])
        with pytest.raises(RuntimeError, match="the same outputs every time"):
            evidence(masked(noisy).double(), two_classes(), rule)


@pytest.mark.parametrize("count", [CLASSES, 6])
def test_outputs_that_are_ruled_out_are_no_harm_to_a_sound_network(count):
    model = masked(nn.Sequential(nn.Linear(4, 4), nn.PReLU(4), nn.Linear(4, CLASSES))).double()
    full, diagonal = exact(model, two_classes(count))
    assert_close(evidence(model, two_classes(count), Diagonal()), diagonal, rtol=1e-10, atol=0)
    for rule in (Ggn(), TangentKernel(count)):
        assert_close(evidence(model, two_classes(count), rule), full, rtol=1e-10, atol=0)


@pytest.mark.parametrize("rule", ["ggn", "kernel", "lanczos"])
def test_a_module_with_two_names_keeps_its_parameters(rule):
    shared = nn.Linear(4, 4)
    model, (inputs, targets) = nn.Sequential(shared, nn.Tanh(), shared, nn.Tanh(), nn.Linear(4, CLASSES)).double(), data(4)
    found = [evidence(model, (inputs, targets), RULES[rule]) for _ in range(2)]
    assert found[0] == found[1]
    if rule != "lanczos":
        assert_close(found[0], exact(model, (inputs, targets))[0], rtol=1e-10, atol=0)
    assert isinstance(shared.weight, nn.Parameter)
    functional.cross_entropy(model(inputs), targets).backward()
    assert shared.weight.grad is not None


def test_a_module_with_two_names_is_learned_by_the_bound():
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.Tanh(), shared, nn.Tanh(), nn.Linear(4, CLASSES)).double()
    before = shared.weight.detach().clone()
    sb.fit(model, data(4), objective=sb.Elbo(), epochs=2, progress=False)
    assert shared.weight.requires_grad
    assert not torch.equal(shared.weight, before)


class Counting(nn.Module):
    """Counts the passes that it trains in."""

    def __init__(self):
        super().__init__()
        self.inner, self.norm = nn.Linear(4, CLASSES), nn.BatchNorm1d(CLASSES, affine=False)
        self.passes = 0

    def forward(self, x):
        self.passes += self.training
        return self.norm(self.inner(x))


@pytest.mark.parametrize("rule", [*RULES.values(), Ekfac(), Preconditioned(steps=2)], ids=str)
def test_no_rule_runs_a_model_in_training_mode(rule):
    model = Counting().double()
    before = model.norm.running_mean.clone()
    evidence(model, data(4), rule)
    assert model.passes == 0
    assert model.training
    assert torch.equal(model.norm.running_mean, before)


DIRECT = {
    "torch.layer_norm": lambda s, h: torch.layer_norm(h, (4,), s.w, s.b),
    "torch.native_layer_norm": lambda s, h: torch.native_layer_norm(h, (4,), s.w, s.b, 1e-5)[0],
    "torch.instance_norm": lambda s, h: torch.instance_norm(h[..., None] * s.b, s.w, s.b, None, None, True, 0.1, 1e-5, False)[
        ..., 0
    ],
    "F.instance_norm": lambda s, h: functional.instance_norm(h[..., None] * s.b, weight=s.w, bias=s.b)[..., 0],
}


@pytest.mark.parametrize("rule", [Ggn(), TangentKernel(6), Lanczos()], ids=["ggn", "kernel", "lanczos"])
@pytest.mark.parametrize("name", DIRECT)
def test_gradients_go_through_norms_that_are_called_directly(name, rule):
    scale = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    model = Do(
        lambda s, x: s.parts[1](DIRECT[name](s, s.parts[0](x * scale)).tanh().flatten(1)[:, :4]),
        [nn.Linear(4, 4), nn.Linear(4, CLASSES)],
        w=torch.rand(4),
        b=torch.rand(4),
    ).double()
    pair = data(4)
    if isinstance(rule, Lanczos):
        total = by_every_direction(rule, model, pair)
    else:
        total = sb.laplace_evidence(model, pair, sb.Categorical(), sb.TensorwisePrior(model), rule=rule).total
    (found,) = torch.autograd.grad(total, scale)
    assert_close(found, slope_of_the_exact_evidence(model, pair, scale), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", ["layer", "instance", "batch"])
def test_norms_by_parts_are_the_norms(kind, generator):
    norm = {"layer": nn.LayerNorm((3, 2)), "instance": nn.InstanceNorm2d(4, affine=True), "batch": nn.BatchNorm2d(4)}[kind]
    inputs = torch.randn(5, 4, 3, 2, generator=generator, dtype=torch.float64)
    norm = norm.double()
    norm(inputs)
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    norm.eval()
    with NormsByParts():
        found = norm(inputs)
    assert_close(found, norm(inputs))


NORMS = {"batch norm": lambda: nn.BatchNorm2d(3), "instance norm": lambda: nn.InstanceNorm2d(3, affine=True)}


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("case", ["one datum", "a subset more"])
def test_gradients_are_right_for_a_single_datum_too(name, case):
    inputs, targets = data(2, 4, 4, count=1 if case == "one datum" else 5)
    scale = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    model = Do(
        lambda s, x: s.parts[2](s.parts[1](s.parts[0](x * scale + (x * scale) ** 2)).tanh().flatten(1)),
        [nn.Conv2d(2, 3, 3), NORMS[name](), nn.Linear(12, CLASSES)],
    ).double()
    model(data(2, 4, 4)[0])
    model.eval()
    prior = sb.TensorwisePrior(model)
    rule = Diagonal() if case == "one datum" else Subsets(Diagonal(), 2, None)

    def total():
        seed = torch.Generator().manual_seed(0)
        return sb.laplace_evidence(model, (inputs, targets), sb.Categorical(), prior, rule=rule, generator=seed).total

    (found,) = torch.autograd.grad(total(), scale)
    assert_close(found, difference(total, scale), rtol=1e-5, atol=1e-7)


IN_TRAINING = {
    "called twice": lambda s, x: s.parts[0](x) + (s.parts[0](-x) if s.training else 0),
    "used outside": lambda s, x: s.parts[0](x) - (functional.linear(x, s.parts[0].weight) if s.training else 0),
}


@pytest.mark.parametrize("name", IN_TRAINING)
def test_noise_behind_maps_knows_what_a_model_does_in_training(name):
    model, (inputs, _) = Do(IN_TRAINING[name], [nn.Linear(4, CLASSES)]).double(), data(4)
    assert sb.MatrixNormal().over(model.train()).local(inputs) == {}
    assert len(sb.MatrixNormal().over(model.eval()).local(inputs)) == 1


def test_looking_for_maps_leaves_a_model_and_random_numbers_as_they_were():
    model = nn.Sequential(nn.Linear(4, CLASSES), nn.BatchNorm1d(CLASSES), nn.Dropout(0.5)).double()
    before = model[1].running_mean.clone(), torch.get_rng_state()
    assert len(sb.MatrixNormal().over(model).local(data(4)[0])) == 1
    assert torch.equal(model[1].running_mean, before[0])
    assert torch.equal(torch.get_rng_state(), before[1])


def test_noise_behind_maps_knows_hooks_on_all_modules():
    model, (inputs, _) = nn.Linear(4, CLASSES).double(), data(4)
    hook = torch.nn.modules.module.register_module_forward_hook(lambda m, a, o: 3 * o if isinstance(m, nn.Linear) else None)
    try:
        variational = sb.MeanField(std=0.5).over(model)
        assert variational.local(inputs) == {}
        with torch.no_grad():
            drawn = sampled_outputs(model, variational(), inputs, 4, local=variational.local(inputs))
        assert drawn.shape == (4, 6, CLASSES)
    finally:
        hook.remove()


@pytest.mark.parametrize(
    "rule",
    [sb.Kfac(), Ggn(), TangentKernel(40), Lanczos(1, 2)],
    ids=["kfac", "ggn", "kernel", "lanczos"],
)
def test_data_that_see_each_other_further_back_in_a_batch_are_found(rule):
    inputs, targets = data(4, count=40)
    inputs = inputs.clamp(-2, 2)
    inputs[20, 0] = 3
    model = Do(lambda s, x: s.parts[0](x) * (2.0 if bool((x > 2.5).any()) else 1.0), [nn.Linear(4, CLASSES)]).double()
    with pytest.raises(RuntimeError, match="must not depend on the other data of its batch"):
        evidence(model, (inputs, targets), rule)


def test_padding_that_comes_later_is_known_to_products():
    """Of an embedding that is called as a function."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, 6, (60, 5), generator=generator)
    tokens[8:, 1:] = 0
    pair = tokens, torch.arange(60) % CLASSES
    model = Do(
        lambda s, t: s.parts[0](functional.embedding(t, s.w, padding_idx=0).tanh().mean(1)),
        [nn.Linear(4, CLASSES)],
        w=torch.randn(6, 4, generator=generator),
    ).double()
    with torch.no_grad():
        found = by_every_direction(Lanczos(), model, pair)
    assert_close(float(found), exact(model, pair)[0], rtol=1e-8, atol=0)


def test_a_tensor_of_the_user_that_the_first_datum_does_not_use_has_its_gradient():
    scale = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)

    def function(self, x):
        gate = x[:, 0] > 0
        h = self.parts[0](x)
        if gate.any():
            h = h.clone()
            h[gate] = h[gate] * scale
        return self.parts[1](h.tanh())

    inputs, targets = data(4)
    pair = inputs[inputs[:, 0].argsort()], targets
    assert pair[0][0, 0] < 0 < pair[0][-1, 0]
    model = Do(function, [nn.Linear(4, 4), nn.Linear(4, CLASSES)]).double()
    prior = sb.TensorwisePrior(model)

    def total():
        return sb.laplace_evidence(model, pair, sb.Categorical(), prior, rule=Diagonal()).total

    (found,) = torch.autograd.grad(total(), scale)
    assert_close(found, difference(total, scale), rtol=1e-5, atol=1e-7)


def difference(total, scale):
    """Of a function, in a scalar that it depends on."""
    ends = []
    for step in (1e-5, -1e-5):
        with torch.no_grad():
            scale += step
            ends.append(total())
            scale -= step
    return (ends[0] - ends[1]) / 2e-5


def test_coupling_shows_beside_a_large_offset_of_all_outputs():
    model = Do(lambda s, x: s.parts[0](x) - x.mean(0)[:CLASSES] + 1000, [nn.Linear(4, CLASSES)])
    inputs, targets = data(4)
    for rule in RULES.values():
        with pytest.raises(RuntimeError, match="must not depend on the other data"):
            evidence(model, (inputs.float(), targets), rule)


@pytest.mark.parametrize("scale", [1e-18, 1e15])
def test_numbers_of_any_size_are_compared(scale):
    inputs, targets = data(4)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, CLASSES))
    assert evidence(model, (inputs.float() * scale, targets), Diagonal()) < 0


def test_the_empirical_fisher_is_differentiated_in_the_noise():
    inputs, targets = data(4)[0], data(CLASSES)[0]
    model, likelihood = nn.Linear(4, CLASSES).double(), sb.Gaussian(0.5).double()

    def total():
        rule = sb.Kfac(EmpiricalFisher())
        return sb.laplace_evidence(model, (inputs, targets), likelihood, sb.TensorwisePrior(model), rule=rule).total

    (found,) = torch.autograd.grad(total(), likelihood.log_noise)
    assert_close(found[0], difference(total, likelihood.log_noise), rtol=1e-5, atol=1e-6)


def test_units_are_checked_in_a_loop_of_the_user_too():
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, CLASSES)).double()
    model[0].register_forward_hook(lambda module, inputs, outputs: outputs * torch.arange(1.0, 6.0))
    objective = sb.Elbo(permutations=3)
    with pytest.raises(ValueError, match="Outputs must stay as they are when hidden units change places"):
        objective.evidence(model, objective.family.over(model), data(4), sb.Categorical(), sb.TensorwisePrior(model))


def test_inputs_may_ask_for_gradients():
    (inputs, targets), model = data(4), nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, CLASSES)).double()
    inputs.requires_grad_()
    prior, rule = sb.TensorwisePrior(model), sb.Kfac(MonteCarloFisher())
    seed = torch.Generator().manual_seed(0)
    (found,) = sb.evidence_gradient(model, (inputs, targets), sb.Categorical(), prior, [inputs], rule=rule, generator=seed)
    assert found.shape == inputs.shape
    assert (found.abs().sum(1) > 0).all()


class OneByOne(torch.autograd.Function):
    """A backward pass that looks at numbers, which it cannot in a batch of them."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.tanh()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        if float(gradient.abs().max()) < 0:
            return None
        return gradient * (1 - x.tanh() ** 2)


def test_columns_go_back_one_by_one_where_torch_cannot_batch_them():
    model = Do(lambda s, x: s.parts[1](OneByOne.apply(s.parts[0](x))), [nn.Linear(4, 4), nn.Linear(4, CLASSES)]).double()
    plain = nn.Sequential(model.parts[0], nn.Tanh(), model.parts[1])
    assert_close(evidence(model, data(4), Diagonal()), evidence(plain, data(4), Diagonal()))


def test_layers_that_are_left_out_in_training_have_no_gradient_then():
    model = Do(lambda s, x: s.parts[0](x) if s.training else s.parts[0](x) + s.parts[1](x), [nn.Linear(4, 3), nn.Linear(4, 3)])
    for objective in (sb.Laplace(), sb.Elbo()):
        assert sb.fit(model.double(), data(4), objective=objective, epochs=2, progress=False).log_evidence < 0


def test_what_a_model_gives_in_training_is_checked_too():
    model = Do(lambda s, x: (s.parts[0](x), x) if s.training else s.parts[0](x), [nn.Linear(4, 3)]).double()
    with pytest.raises(ValueError, match=r"must give outputs \[n, c\].*got a tuple"):
        sb.fit(model, data(4), epochs=1, progress=False)


def test_a_sparse_embedding_is_learned():
    tokens = torch.randint(0, 5, (6, 3), generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(nn.Embedding(5, 4, sparse=True), nn.Flatten(), nn.Linear(12, 3))
    assert sb.fit(model, (tokens, torch.arange(6) % 3), epochs=2, progress=False).log_evidence < 0


def test_models_that_cannot_be_looked_into_are_refused_in_words():
    inputs, targets = data(4)
    wrapped = nn.DataParallel(nn.Linear(4, 3).double())
    with pytest.raises(TypeError, match=r"must be made of plain modules.*it has a DataParallel.*model\.module"):
        sb.TensorwisePrior(wrapped)
    with pytest.raises(ValueError, match=r"'weight' has no shape yet\. Call the model on a batch first"):
        sb.TensorwisePrior(nn.LazyLinear(3))
    model = nn.Linear(4, 3).double()
    with torch.inference_mode(), pytest.raises(RuntimeError, match=r"inference_mode\(\) rules out\. Use torch\.no_grad\(\)"):
        evidence(model, (inputs, targets), sb.Kfac())
    with pytest.raises(
        ValueError, match=r"must take inputs of shape \(6, 4\) and type torch\.float32.*Its weights are torch\.float64"
    ):
        evidence(model, TensorSource(inputs.float(), targets, inputs.device), sb.Kfac())
    with pytest.raises(ValueError, match=r"must take inputs of shape \(6, 3\) and type torch\.float64; it does not \(mat1"):
        evidence(model, (inputs[:, :3], targets), sb.Kfac())


def test_batches_that_are_no_pairs_say_of_how_many():
    class Triples(Dataset):
        def __len__(self):
            return 6

        def __getitem__(self, index):
            return torch.zeros(4), torch.tensor(0), torch.tensor(1)

    with pytest.raises(TypeError, match=r"must be a pair of tensors \(inputs, targets\), got a list of 3.*in sb.Packed"):
        sb.fit(nn.Linear(4, 3), Triples(), progress=False)


def test_scales_too_far_apart_are_said():
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, CLASSES)).double()
    with pytest.raises(sb.NotFiniteError, match="on scales that double precision can add up"):
        sb.laplace_evidence(model, data(4), sb.Categorical(), sb.TensorwisePrior(model, 1e-25), rule=Ggn())


class Buffered(nn.Module):
    def __init__(self, persistent):
        super().__init__()
        self.inner = nn.Linear(4, 3)
        self.register_buffer("shift", torch.rand(4), persistent=persistent)

    def forward(self, x):
        return self.inner(x + self.shift)


def test_a_model_that_computes_something_else_is_not_loaded_into(tmp_path):
    inputs, targets = data(4)
    for persistent in (True, False):
        result = sb.fit(Buffered(persistent), (inputs.float(), targets), epochs=1, progress=False)
        result.save(tmp_path)
        if persistent:
            assert_close(sb.load_result(tmp_path, Buffered(True)).predict(inputs).mean, result.predict(inputs).mean)
        else:
            with pytest.raises(ValueError, match=r"must give the outputs that it gave when it was saved.*persistent buffers"):
                sb.load_result(tmp_path, Buffered(False))


def test_models_that_drop_the_axis_of_a_single_datum_predict():
    (inputs, targets), model = data(4), Do(lambda s, x: s.parts[0](x)[..., None].squeeze(), [nn.Linear(4, 3)]).double()
    result = sb.fit(model, (inputs, targets), epochs=1, progress=False)
    assert_close(result.predict(inputs[:1], by="plug-in").mean, result.predict(inputs, by="plug-in").mean[:1])
    assert result.evaluate((inputs, targets))["nll"] > 0
    with pytest.raises(RuntimeError, match="datum by datum"):
        evidence(model, (inputs, targets), Ggn())


def test_a_model_is_checked_before_training_and_not_again_while_it_trains(monkeypatch):
    asked = []
    usual = reference.reference_of
    monkeypatch.setattr("symbayes.curvature.check.reference_of", lambda *given: asked.append(given) or usual(*given))
    model = nn.Linear(4, CLASSES).double()
    result = sb.fit(model, data(4), epochs=8, progress=False)
    assert len(asked) == 1
    evidence(result.model, data(4), sb.Kfac())
    assert len(asked) == 2


class Steep(nn.Module):
    """A weight that is used twice, once where its slope is infinite."""

    def __init__(self):
        super().__init__()
        self.map = nn.Linear(4, 3)
        with torch.no_grad():
            self.map.weight[0, 0] = 0

    def forward(self, x):
        return self.map(x) + self.map.weight.clamp(min=0).sqrt().sum(1)


class OneClass(nn.Module):
    """A head whose weights are used in another way for one of very many classes."""

    def __init__(self, classes, chosen):
        super().__init__()
        self.head, self.chosen = nn.Linear(4, classes), chosen

    def forward(self, x):
        beside = functional.one_hot(torch.tensor(self.chosen), self.head.out_features)
        return self.head(x) + beside * (x.square() @ self.head.weight[self.chosen])[:, None]


@pytest.mark.parametrize("model", [Steep(), *(OneClass(200, chosen) for chosen in range(0, 200, 9)), OneClass(840, 830)])
def test_another_use_is_seen_where_slopes_are_infinite_and_in_every_class(model, generator):
    inputs = torch.randn(20, 4, generator=generator)
    source = TensorSource(inputs, torch.arange(20) % 3, torch.device("cpu"))
    with pytest.raises(RuntimeError, match="is used in another way"):
        Diagonal().curvature(model, source, sb.Categorical())
