"""Gradients through the curvature: equal to finite differences of the evidence, batch by batch, and in any tensor."""

import weakref
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

from symbayes.curvature import sums
from symbayes.curvature.check import check_capture
from symbayes.curvature.diagonal import Diagonal
from symbayes.curvature.ggn import Ggn
from symbayes.curvature.kernel import Subsets, TangentKernel
from symbayes.curvature.kfac import Ekfac, Kfac
from symbayes.curvature.lanczos import Lanczos
from symbayes.curvature.rule import EmpiricalFisher, MonteCarloFisher, some_batches
from symbayes.data.source import TensorSource, as_source
from symbayes.evidence.evidence import evidence_gradient, laplace_evidence
from symbayes.groups.lie import affine2d
from symbayes.invariance.filters import FilterBank
from symbayes.invariance.orbit_average import OrbitAverage
from symbayes.layers.conv import ConvPath
from symbayes.layers.factored import FactoredPath
from symbayes.layers.relaxed import RelaxedLayer
from symbayes.layers.smooth import SparseConvPath
from symbayes.layout import Hyperparameter
from symbayes.likelihoods.classes import Bernoulli, Categorical
from symbayes.likelihoods.values import Gaussian
from symbayes.priors import TensorwisePrior
from tests.oracles import dense_ggn, finite_difference, softmax_hessian

CPU = torch.device("cpu")
RULES = {
    "kfac": Kfac(batch_size=5),
    "kfac, reduce": Kfac(sharing="reduce", batch_size=5),
    "kfac, pooled": Kfac(pool_blocks=True, batch_size=5),
    "kfac, empirical": Kfac(EmpiricalFisher(), batch_size=5),
    "kfac, sampled": Kfac(MonteCarloFisher(2), batch_size=20),
    "diagonal": Diagonal(batch_size=5),
    "ggn": Ggn(batch_size=5),
    "ggn by tensor": Ggn(joint=False, batch_size=5),
    "kernel": TangentKernel(subset=12, batch_size=5),
    "kernel on subsets": TangentKernel(subset=5, subsets=None),
    "kfac on subsets": Subsets(Kfac(), size=5, subsets=None),
}
#: Networks with every kind of map that curvature knows in its own way.
NETS = {
    "convolutions": lambda: nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2), nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"),
        nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16, 3),
    ),
    "paths": lambda: nn.Sequential(
        RelaxedLayer({"factored": FactoredPath((1, 8, 8), (2, 8, 8)), "conv": ConvPath(1, 2, (3, 3))}), nn.Tanh(),
        SparseConvPath(2, 2, (3, 3), learn_lengthscale=True), nn.Tanh(), nn.AvgPool2d(4), nn.Flatten(), nn.Linear(8, 3),
    ),
    "instance norm": lambda: nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.InstanceNorm2d(3, affine=True), nn.Tanh(), nn.AvgPool2d(3), nn.Flatten(), nn.Linear(12, 3)
    ),
    "norms and a free tensor": lambda: nn.Sequential(OrderedDict(
        conv=nn.Conv2d(1, 3, 3), norm=nn.GroupNorm(1, 3), tanh=nn.Tanh(), pool=nn.AvgPool2d(3), flat=nn.Flatten(), scale=Free(),
        free=nn.Linear(12, 3),
    )),
}  # fmt: skip


class Attentive(nn.Module):
    """Attention over points as torch's own function computes it, and a norm whose weight is learned."""

    def __init__(self):
        super().__init__()
        self.packed, self.norm, self.head = nn.Linear(2, 12), nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, points):
        query, key, value = self.packed(points).unflatten(2, (3, 2, 2)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        return self.head(self.norm(mixed).tanh().mean(1))


class Free(nn.Module):
    """A trainable tensor that belongs to no map."""

    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.linspace(0.5, 1.5, 12))

    def forward(self, inputs):
        return inputs * self.factor


def problem(net, generator, **settings):
    model = OrbitAverage(NETS[net](), affine2d().starting(0.13), samples=4, **settings).double()
    inputs = torch.randn(12, 1, 8, 8, generator=generator, dtype=torch.float64)
    return model, (inputs, torch.arange(12) % 3)


def evidence(model, data, rule, likelihood=None):
    prior = TensorwisePrior(model, 0.7)
    sampled = isinstance(rule, Kfac) and isinstance(rule.fisher, MonteCarloFisher)
    seed = torch.Generator().manual_seed(1) if sampled else None
    return laplace_evidence(model, data, likelihood or Categorical(), prior, rule=rule, generator=seed)


def by_differences(model, data, rule, likelihood=None):
    def value(extents):
        with torch.no_grad():
            model.orbit.value.copy_(extents)
            return evidence(model, data, rule, likelihood).total

    start = model.orbit.value.detach().clone()
    found = finite_difference(value, start, 1e-6)
    value(start)
    return found


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("rule", ["kfac", "diagonal", "ggn"])
def test_gradients_in_extents_are_finite_differences(rule, net, generator):
    model, data = problem(net, generator)
    (found,) = torch.autograd.grad(evidence(model, data, RULES[rule]).total, model.orbit.value)
    assert found.abs().min() > 1e-4
    assert_close(found, by_differences(model, data, RULES[rule]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rule", ["kfac", "diagonal", "ggn", "kernel"])
def test_gradients_through_attention_and_norms_are_finite_differences(rule, generator):
    model = OrbitAverage(Attentive(), affine2d(on="points").starting(0.3), samples=4).double()
    data = torch.randn(12, 5, 2, generator=generator, dtype=torch.float64), torch.arange(12) % 3
    (found,) = torch.autograd.grad(evidence(model, data, RULES[rule]).total, model.orbit.value)
    assert_close(found, by_differences(model, data, RULES[rule]), rtol=1e-5, atol=1e-6)
    assert all("forward" not in module.__dict__ for module in model.modules())


@pytest.mark.parametrize("rule", [name for name in RULES if name not in ("kfac", "diagonal", "ggn")])
def test_gradients_through_other_rules_are_finite_differences(rule, generator):
    model, data = problem("convolutions", generator)
    (found,) = torch.autograd.grad(evidence(model, data, RULES[rule]).total, model.orbit.value)
    assert_close(found, by_differences(model, data, RULES[rule]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["gaussian", "gaussian by output", "bernoulli"])
@pytest.mark.parametrize("rule", ["kfac", "ggn"])
def test_gradients_hold_for_every_likelihood(rule, kind, generator):
    model, (inputs, _) = problem("convolutions", generator)
    numbers = torch.randn(12, 3, generator=generator, dtype=torch.float64)
    likelihood, targets = {
        "gaussian": (Gaussian(0.6).double(), numbers),
        "gaussian by output": (Gaussian(0.6, 3).double(), numbers),
        "bernoulli": (Bernoulli(), (numbers > 0).long()),
    }[kind]
    (found,) = torch.autograd.grad(evidence(model, (inputs, targets), RULES[rule], likelihood).total, model.orbit.value)
    assert_close(found, by_differences(model, (inputs, targets), RULES[rule], likelihood), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("rule", [name for name in RULES if name != "kfac, sampled"])
def test_two_passes_give_the_gradient_of_one_with_a_graph(rule, net, generator):
    if net != "convolutions" and rule not in ("kfac", "diagonal", "ggn", "kfac on subsets"):
        return  # what differs between networks is in these
    model, data = problem(net, generator)
    (whole,) = torch.autograd.grad(evidence(model, data, RULES[rule]).total, model.orbit.value)
    with torch.no_grad():  # as in training: gradients are switched on where they are needed, and nowhere else
        (parts,) = evidence_gradient(model, data, Categorical(), TensorwisePrior(model, 0.7), rule=RULES[rule])
    assert_close(parts, whole)


class Dropped(nn.Module):
    """Calls a layer once more than it needs."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(2, 4), nn.Linear(4, 3)

    def forward(self, points):
        self.layer(2 * points)
        return self.head(self.layer(points).tanh()).mean(1)


def test_gradients_go_past_a_call_that_leads_nowhere(generator):
    model = OrbitAverage(Dropped(), affine2d(on="points").starting(0.3), samples=4).double()
    data = torch.randn(12, 5, 2, generator=generator, dtype=torch.float64), torch.arange(12) % 3
    (found,) = torch.autograd.grad(evidence(model, data, RULES["diagonal"]).total, model.orbit.value)
    assert_close(found, by_differences(model, data, RULES["diagonal"]), rtol=1e-5, atol=1e-6)


def test_a_model_is_compared_with_torch_once(generator, monkeypatch):
    checked = []
    monkeypatch.setattr(sums, "check_capture", lambda *args: checked.append(1) or check_capture(*args))
    model, data = problem("convolutions", generator)
    evidence_gradient(model, data, Categorical(), TensorwisePrior(model, 0.7), rule=Kfac(batch_size=5))
    assert checked == [1]  # not in the passes that are differentiated in


def test_random_batches_give_the_gradient_on_average(generator):
    model, data = problem("convolutions", generator)
    prior, rule = TensorwisePrior(model, 0.7), Kfac(batch_size=3)
    (whole,) = evidence_gradient(model, data, Categorical(), prior, rule=rule)
    draws = torch.stack(
        [
            evidence_gradient(model, data, Categorical(), prior, rule=rule, share=0.25, generator=generator)[0]
            for _ in range(100)
        ]
    )
    error = draws.std(0) / len(draws) ** 0.5
    assert (draws.std(0) > 0).all()
    assert ((draws.mean(0) - whole).abs() < 4 * error).all()
    assert (error < 0.3 * whole.norm()).all()


@pytest.mark.parametrize("kind", ["tensors", "loader", "shuffled loader"])
def test_a_share_of_the_data_is_drawn_from_all_of_them(kind):
    """A loader that does not shuffle gives its first batches first, which must not be the only ones to be used."""
    numbers = TensorDataset(torch.arange(22.0)[:, None], torch.zeros(22))
    source = as_source(numbers if kind == "tensors" else DataLoader(numbers, 4, shuffle=kind == "shuffled loader"), CPU)
    seed, sums, found = torch.Generator().manual_seed(0), [], set()
    for _ in range(400):
        drawn = list(some_batches(source, 4, 0.3, seed))
        assert len(drawn) == 2
        sums.append(sum(float(scale * batch[0].sum()) for batch, scale in drawn))
        found |= {int(value) for batch, _ in drawn for value in batch[0]}
    assert found == set(range(22))
    sums = torch.tensor(sums)
    assert abs(sums.mean() - 231) < 4 * sums.std() / 20


def test_the_full_ggn_by_lanczos_gives_its_gradient_on_average(generator):
    group = affine2d("rotation", "scale", on="points").starting(0.4)
    model = OrbitAverage(nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 3)), group, samples=3).double()
    data = torch.randn(10, 2, generator=generator, dtype=torch.float64), torch.arange(10) % 3
    prior, rule = TensorwisePrior(model, 0.7), Lanczos(probes=60, steps=21)
    (exact,) = evidence_gradient(model, data, Categorical(), prior, rule=Ggn())
    with torch.no_grad():
        (found,) = evidence_gradient(model, data, Categorical(), prior, rule=rule, generator=torch.Generator().manual_seed(3))
    assert (found - exact).norm() < 0.15 * exact.norm()
    few = Lanczos(probes=3, steps=21)
    with torch.no_grad():
        (found,) = evidence_gradient(model, data, Categorical(), prior, rule=few, generator=torch.Generator().manual_seed(3))
    total = laplace_evidence(model, data, Categorical(), prior, rule=few, generator=torch.Generator().manual_seed(3)).total
    assert_close(torch.autograd.grad(total, model.orbit.value)[0], found, rtol=1e-6, atol=1e-8)


def test_ekfac_differentiates_with_its_basis_held(generator):
    model, data = problem("convolutions", generator)
    source = TensorSource(*data, CPU)
    precisions = {name: p.detach() for name, p in TensorwisePrior(model, 0.7).precisions().items()}
    with torch.no_grad():
        replay = Ekfac().curvature(model, source, Categorical()).replay
    (found,) = evidence_gradient(model, data, Categorical(), TensorwisePrior(model, 0.7), rule=Ekfac())

    @torch.no_grad()
    def value(extents):
        model.orbit.value.copy_(extents)
        sums, log_likelihood = replay.collect(source)
        return log_likelihood - replay.log_det(sums, precisions) / 2

    start = model.orbit.value.detach().clone()
    assert_close(found, finite_difference(value, start, 1e-6), rtol=1e-5, atol=1e-6)


def test_only_the_graph_of_one_batch_is_kept(generator):
    """What autograd has saved at one time: counted for ten times as much data, it hardly grows."""
    peaks = []
    for size in (30, 300):
        # Softplus saves its input; a map that saves its output would be kept alive by the counting itself.
        net = nn.Sequential(
            nn.Conv2d(1, 3, 3), nn.Softplus(), nn.Conv2d(3, 4, 3), nn.Softplus(), nn.Flatten(), nn.Linear(64, 3)
        )
        model = OrbitAverage(net, affine2d(), samples=4)
        inputs = torch.randn(size, 1, 8, 8, generator=generator)
        alive = peak = 0

        class Saved:
            def __init__(self, tensor):
                nonlocal alive, peak
                self.tensor, count = tensor, tensor.numel()
                alive += count
                peak = max(peak, alive)
                weakref.finalize(self, self.forget, count)

            @staticmethod
            def forget(count):
                nonlocal alive
                alive -= count

        with torch.autograd.graph.saved_tensors_hooks(Saved, lambda saved: saved.tensor):
            rule = Kfac(MonteCarloFisher(), batch_size=10)
            evidence_gradient(model, (inputs, torch.arange(size) % 3), Categorical(), TensorwisePrior(model), rule=rule)
        peaks.append(peak)
    assert peaks[0] > 10 * 4 * 3 * 36  # a batch of one map, at the least
    assert peaks[1] < 1.15 * peaks[0]


def test_any_tensor_of_the_forward_pass_can_be_differentiated_in(generator):
    """Inputs, a tensor in a closure, and a hyperparameter of a user's own module."""

    class Tempered(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 3, dtype=torch.float64)
            self.sharpness = Hyperparameter(torch.tensor(0.8, dtype=torch.float64))

        def forward(self, inputs):
            return self.linear(torch.tanh(self.sharpness * inputs + shift))

    shift = torch.randn(4, generator=generator, dtype=torch.float64).requires_grad_()
    model = Tempered()
    inputs = torch.randn(9, 4, generator=generator, dtype=torch.float64).requires_grad_()
    targets = torch.arange(9) % 3
    tensors = [model.sharpness, shift, inputs]
    for rule in (Kfac(batch_size=4), Diagonal(), Ggn(), TangentKernel(9)):
        total = evidence(model, (inputs, targets), rule).total
        gradients = torch.autograd.grad(total, tensors)
        for tensor, gradient in zip(tensors, gradients, strict=True):
            start = tensor.detach().clone()

            def value(moved, tensor=tensor, rule=rule):
                with torch.no_grad():
                    tensor.copy_(moved)
                    return evidence(model, (inputs, targets), rule).total

            assert_close(gradient, finite_difference(value, start, 1e-6), rtol=1e-5, atol=1e-6)
            value(start)
    prior = TensorwisePrior(model, 0.7)
    two = evidence_gradient(model, (inputs, targets), Categorical(), prior, [model.sharpness, shift], rule=Kfac(batch_size=4))
    once = torch.autograd.grad(evidence(model, (inputs, targets), Kfac(batch_size=4)).total, tensors[:2])
    assert_close(two, once)


@pytest.mark.parametrize("rule", [Kfac(MonteCarloFisher()), Kfac(batch_size=4)])
def test_one_column_goes_back_to_maps_behind_a_tensor_of_a_user(rule, generator):
    """Two classes or one sample make one column; with gradients of a user's own, no map gives the first of all tensors."""

    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(3, 2).double(), nn.Linear(3, 2).double()

        def forward(self, inputs):
            return self.one(inputs.detach()) + self.two(inputs + shift)

    shift = torch.randn(3, generator=generator, dtype=torch.float64).requires_grad_()
    model, targets = Branches(), torch.arange(6) % 2
    inputs = torch.randn(6, 3, generator=generator, dtype=torch.float64).requires_grad_()
    prior, seed = TensorwisePrior(model, 0.7), torch.Generator()
    with torch.no_grad():
        total = laplace_evidence(model, (inputs, targets), Categorical(), prior, rule=rule, generator=seed.manual_seed(1)).total
        plain = inputs.clone()
        shift.requires_grad_(False)
        wanted = laplace_evidence(model, (plain, targets), Categorical(), prior, rule=rule, generator=seed.manual_seed(1)).total
    assert_close(total, wanted)
    shift.requires_grad_()
    found = evidence_gradient(model, (inputs, targets), Categorical(), prior, [shift, inputs], rule=rule, generator=seed)
    assert all(gradient.abs().sum() > 0 for gradient in found)


def test_at_extent_zero_curvature_is_that_of_the_plain_network(generator):
    model, (inputs, targets) = problem("convolutions", generator)
    with torch.no_grad():
        model.orbit.value.zero_()
    source = TensorSource(inputs, targets, CPU)
    for rule in (Kfac(), Kfac(sharing="reduce"), Diagonal(), Ggn(joint=False)):
        with torch.no_grad():
            averaged = rule.curvature(model, source, Categorical())
            plain = rule.curvature(model.net, source, Categorical())
        for name, block in plain.blocks.items():
            assert_close(averaged.blocks[f"net.{name}"].dense(), block.dense(), rtol=1e-9, atol=1e-11)


def test_the_diagonal_and_biases_inside_an_average_are_exact(generator):
    model, (inputs, targets) = problem("convolutions", generator)
    model.eval()
    model.orbit.value.requires_grad_(False)
    wanted = dense_ggn(model, inputs, softmax_hessian)
    source = TensorSource(inputs, targets, CPU)
    diagonal = Diagonal().curvature(model, source, Categorical()).blocks
    kfac = Kfac().curvature(model, source, Categorical()).blocks
    for name, _ in model.net.named_parameters():
        full = f"net.{name}"
        assert_close(diagonal[full].dense(), torch.diag(wanted[full, full].diagonal()))
        if name.endswith("bias"):
            assert_close(kfac[full].dense(), wanted[full, full])


def test_copies_are_averaged_before_moments_are_taken(generator):
    """KFAC of a linear network inside an average is that of the network on averaged inputs."""
    group = affine2d("rotation", on="points").starting(0.8)
    model = OrbitAverage(nn.Linear(2, 3, dtype=torch.float64), group, samples=5).eval()
    inputs = torch.randn(7, 2, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        averaged = model.orbit.transform(model.orbit.even(5), inputs).mean(1)
        found = Kfac().curvature(model, TensorSource(inputs, torch.arange(7) % 3, CPU), Categorical()).blocks
        wanted = Kfac().curvature(model.net, TensorSource(averaged, torch.arange(7) % 3, CPU), Categorical()).blocks
    assert_close(found["net.weight"].dense(), wanted["weight"].dense())


def test_averages_inside_averages_are_averaged(generator):
    inner = OrbitAverage(nn.Linear(2, 3, dtype=torch.float64), affine2d("scale", on="points").starting(0.5), samples=3)
    model = OrbitAverage(inner, affine2d("rotation", on="points").starting(0.8), samples=4).eval()
    inputs = torch.randn(7, 2, generator=generator, dtype=torch.float64)
    source = TensorSource(inputs, torch.arange(7) % 3, CPU)
    for parameter in (model.orbit.value, inner.orbit.value):
        parameter.requires_grad_(False)
    wanted = dense_ggn(model, inputs, softmax_hessian)
    blocks = Kfac().curvature(model, source, Categorical()).blocks
    assert_close(blocks["net.net.bias"].dense(), wanted["net.net.bias", "net.net.bias"])
    blocks = Diagonal().curvature(model, source, Categorical()).blocks
    assert_close(blocks["net.net.weight"].eigenvalues, wanted["net.net.weight", "net.net.weight"].diagonal())


def test_a_subset_bounds_the_evidence_from_below(generator):
    model, data = problem("convolutions", generator)
    prior = TensorwisePrior(model, 0.7)
    with torch.no_grad():
        totals = [
            laplace_evidence(model, data, Categorical(), prior, rule=Subsets(Ggn(), size=size, subsets=None)).total
            for size in (2, 4, 6, 12)
        ]
        whole = laplace_evidence(model, data, Categorical(), prior, rule=Ggn()).total
        same = laplace_evidence(model, data, Categorical(), prior, rule=TangentKernel(4, None)).total
    assert totals == sorted(totals)
    assert_close(totals[-1], whole)
    assert totals[1] < whole
    assert same < whole


def test_confident_outputs_do_not_spoil_the_gradient():
    """Probabilities that underflow have a root whose slope is infinite, unless it is taken in logarithms."""
    outputs = torch.tensor([[200.0, 0.0, -200.0]], requires_grad=True)
    for likelihood in (Categorical(), Bernoulli()):
        for columns in (likelihood.fisher_columns(outputs), likelihood.sampled_columns(outputs, 1)):
            (gradient,) = torch.autograd.grad(columns.sum(), outputs)
            assert gradient.isfinite().all()


def test_what_cannot_be_differentiated_in_is_refused(generator):
    model, data = problem("convolutions", generator)
    prior = TensorwisePrior(model)
    with pytest.raises(ValueError, match=r"depend on every tensor .* number 1, of shape \(2,\), they do not"):
        evidence_gradient(model, data, Categorical(), prior, [model.orbit.value, torch.zeros(2, requires_grad=True)])
    with pytest.raises(ValueError, match=r"share must lie above 0 and be at most 1 .* got 0"):
        evidence_gradient(model, data, Categorical(), prior, share=0.0)
    with pytest.raises(ValueError, match=r"depend on every tensor .* number 0"):
        evidence_gradient(model.net, data, Categorical(), TensorwisePrior(model.net), [torch.zeros(2, requires_grad=True)])
    with pytest.raises(ValueError, match="the model has no hyperparameters, and none were given"):
        evidence_gradient(model.net, data, Categorical(), TensorwisePrior(model.net))
    with pytest.raises(ValueError, match="at least one subset of at least one datum, got 1 of 0"):
        Subsets(size=0)
    ordered = DataLoader(TensorDataset(*data), 4)
    for rule in (Subsets(Kfac(), 5), TangentKernel(5)):
        with pytest.raises(ValueError, match=r"Random subsets need data in random order; .* shuffle=True"):
            laplace_evidence(model, ordered, Categorical(), prior, rule=rule)


@pytest.mark.parametrize("rule", ["kfac", "kfac, reduce", "diagonal", "ggn"])
def test_gradients_in_the_extents_of_a_filter_bank_are_finite_differences(rule, generator):
    bank = FilterBank((1, 6, 6), 4, affine2d("rotation", "scale").starting(0.3), samples=3, activation="tanh")
    model = nn.Sequential(bank, nn.Linear(4, 3)).double()
    data = torch.randn(12, 1, 6, 6, generator=generator, dtype=torch.float64), torch.arange(12) % 3
    extents = bank.orbit.value
    (found,) = torch.autograd.grad(evidence(model, data, RULES[rule]).total, extents)
    (parts,) = evidence_gradient(model, data, Categorical(), TensorwisePrior(model, 0.7), rule=RULES[rule])

    def value(moved):
        with torch.no_grad():
            extents.copy_(moved)
            return evidence(model, data, RULES[rule]).total

    assert_close(found, finite_difference(value, extents.detach().clone(), 1e-6), rtol=1e-5, atol=1e-6)
    assert_close(parts, found)
