"""A network averaged over discrete transformations: what it is at its limits, its curvature, and how it is learned."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from symbayes.curvature.diagonal import Diagonal
from symbayes.curvature.ggn import Ggn
from symbayes.curvature.kernel import TangentKernel
from symbayes.curvature.kfac import Ekfac, Kfac
from symbayes.curvature.lanczos import Lanczos, Preconditioned
from symbayes.data.source import TensorSource
from symbayes.evidence.evidence import laplace_evidence
from symbayes.groups.discrete import mirror, permuted_channels, quarter_turns, time_reversal
from symbayes.groups.lie import affine2d
from symbayes.invariance.discrete_average import DiscreteAverage, Probabilities
from symbayes.invariance.extents import all_extents, describe_extents
from symbayes.invariance.orbit_average import OrbitAverage
from symbayes.layout import Hyperparameter, Layout, hyperparameters
from symbayes.likelihoods.classes import Categorical
from symbayes.priors import TensorwisePrior
from symbayes.training.by_curvature import Laplace
from symbayes.training.fit import fit
from symbayes.training.hyper import HyperAdam
from symbayes.training.optimiser import PLAIN
from symbayes.training.trainer import Schedule
from tests.oracles import dense_ggn, finite_difference, joined, softmax_hessian

CPU = torch.device("cpu")


@pytest.fixture
def net():
    return nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(48, 3)).double()


@pytest.fixture
def images(generator):
    return torch.randn(6, 2, 4, 4, generator=generator, dtype=torch.float64)


def set_probabilities(model, values):
    with torch.no_grad():
        model.discrete.value.copy_(torch.tensor(values))
    return model


def test_without_probability_it_is_the_plain_network(net, images):
    for generators in ([mirror("x"), quarter_turns()], []):
        model = DiscreteAverage(net, generators, start=0.0)
        assert_close(model(images), net(images), rtol=0, atol=1e-13)


def test_with_all_powers_alike_it_is_invariant_whatever_its_weights_are(net, images):
    model = DiscreteAverage(net, [mirror("x"), quarter_turns()], start=1.0)
    for moved in (images.flip(3), images.flip(2), images.rot90(1, (2, 3)), images.transpose(2, 3)):
        assert_close(model(moved), model(images), rtol=0, atol=1e-12)
        assert (net(moved) - net(images)).abs().max() > 0.1


@pytest.mark.parametrize("fixed", [False, True])
def test_invariance_is_as_exact_as_the_precision_of_weights(fixed, generator):
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 2)).double()
    model = DiscreteAverage(net, [permuted_channels((1, 2, 0))], start=1.0)
    if fixed:
        model.discrete.fix({"channels": 1.0})
    inputs = torch.randn(5, 3, 2, 2, generator=generator, dtype=torch.float64)
    assert_close(model(inputs[:, [1, 2, 0]]), model(inputs), rtol=0, atol=1e-14)


def test_it_is_the_mean_by_probabilities_of_its_elements(net, images):
    """Generator by generator, one after the other: the mirror first."""
    model = set_probabilities(DiscreteAverage(net, [mirror("x"), quarter_turns()]), [0.2, 0.3])
    wanted = torch.zeros(6, 3, dtype=torch.float64)
    for flips, p in ((False, 0.8), (True, 0.2)):
        for turns, q in enumerate((0.7, 0.1, 0.1, 0.1)):
            moved = images.flip(3) if flips else images
            wanted += p * q * net(torch.rot90(moved, turns, (3, 2)))
    assert_close(model(images), wanted)
    assert_close(model.discrete.weights().sum(), torch.ones((), dtype=torch.float64))


def test_what_a_mirror_changes_the_sign_of_is_scaled(net, images):
    even, odd = (net(images) + net(images.flip(3))) / 2, (net(images) - net(images.flip(3))) / 2
    model = set_probabilities(DiscreteAverage(net, [mirror("x")]), [0.15])
    assert_close(model(images), even + (1 - 2 * 0.15) * odd)


@pytest.mark.parametrize(
    ("shape", "generators"),
    [((2, 7), [time_reversal()]), ((1, 3, 4, 5), [mirror("x", 3), mirror("y", 3), mirror("z", 3)])],
)
def test_sequences_and_volumes_are_averaged_too(shape, generators, generator):
    net = nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), 3))
    inputs = torch.randn(5, *shape, generator=generator)
    model = DiscreteAverage(net, generators, start=1.0)
    for axis in range(2, inputs.ndim):
        assert_close(model(inputs.flip(axis)), model(inputs))


def averaged(kind, generator, start=0.4):
    """A network of every kind of map that curvature knows in its own way, averaged by unequal weights."""
    torch.manual_seed(3)
    nets = {
        "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(32, 3)),
        "convolutions": lambda: nn.Sequential(
            nn.Conv2d(2, 3, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(12, 3)
        ),
        "norm": lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.GroupNorm(1, 3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3)),
        "orbit": lambda: OrbitAverage(
            nn.Sequential(nn.Flatten(), nn.Linear(32, 4), nn.Tanh(), nn.Linear(4, 3)), affine2d("rotation"), 2
        ),
    }
    model = DiscreteAverage(nets[kind](), [mirror("x"), quarter_turns()], start).double()
    inputs = torch.randn(7, 2, 4, 4, generator=generator, dtype=torch.float64)
    return model, (inputs, torch.arange(7) % 3)


def exact_blocks(model, inputs):
    return dense_ggn(model.eval(), inputs, softmax_hessian), [name for name, p in model.net.named_parameters()]


@pytest.mark.parametrize("kind", ["linear", "convolutions", "norm", "orbit"])
def test_rules_that_are_exact_by_tensor_are_so_for_unequal_weights(kind, generator):
    model, (inputs, targets) = averaged(kind, generator)
    model.discrete.fix({"mirror_x": 0.3, "quarter_turns": 0.8})
    for amounts in model.modules():
        if isinstance(amounts, OrbitAverage):
            amounts.orbit.requires_grad_(False)
    data = TensorSource(inputs, targets, CPU)
    exact = dense_ggn(model.eval(), inputs, softmax_hessian)
    by_tensor = Ggn(joint=False).curvature(model, data, Categorical()).blocks
    diagonal = Diagonal().curvature(model, data, Categorical()).blocks
    ekfac = Ekfac().curvature(model, data, Categorical()).blocks
    for name in Layout.of(model).tensors:
        assert_close(by_tensor[name].dense(), exact[name, name])
        assert_close(diagonal[name].dense().diagonal(), exact[name, name].diagonal())
        assert_close(ekfac[name].trace(), exact[name, name].trace())


@pytest.mark.parametrize("start", [0.0, 0.4, 1.0])
def test_kfac_of_a_linear_map_and_one_datum_is_exact(start, generator):
    """f = W Σ p_g g x: the weights of copies belong into the mean of its inputs, where a plain mean would be wrong."""
    model, (inputs, targets) = averaged("linear", generator, start)
    model.discrete.requires_grad_(False)
    for datum, target in zip(inputs, targets, strict=True):
        data = TensorSource(datum[None], target[None], CPU)
        exact = dense_ggn(model.eval(), datum[None], softmax_hessian)
        for name, block in Kfac().curvature(model, data, Categorical()).blocks.items():
            assert_close(block.dense(), exact[name, name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["linear", "convolutions", "orbit"])
def test_kfac_without_probability_is_that_of_the_plain_network(kind, generator):
    model, (inputs, targets) = averaged(kind, generator, 0.0)
    model.requires_grad_(True)
    data = TensorSource(inputs, targets, CPU)
    with torch.no_grad():
        found = Kfac().curvature(model, data, Categorical()).blocks
        wanted = Kfac().curvature(model.net, data, Categorical()).blocks
    for name, block in wanted.items():
        assert_close(found[f"net.{name}"].dense(), block.dense())


def test_kfac_averages_rows_inside_an_average_inside_an_average(generator):
    """Of a linear map: Kronecker factors of the input that all averages together make, and of exact gradients."""
    linear = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    inner = OrbitAverage(linear, affine2d("rotation"), 3, stochastic=False)
    model = set_probabilities(DiscreteAverage(DiscreteAverage(inner, [mirror("y")]), [mirror("x")]), [0.1]).double()
    set_probabilities(model.net, [0.35])
    model.requires_grad_(False)
    linear.requires_grad_(True)
    inputs = torch.randn(5, 1, 4, 4, generator=generator, dtype=torch.float64)
    data = TensorSource(inputs, torch.arange(5) % 3, CPU)

    def mean_input(images):
        copies = inner.orbit.transform(inner.orbit.even(3), images)
        return copies.mean(1)

    either = 0.65 * mean_input(inputs) + 0.35 * mean_input(inputs.flip(2))
    mirrored = 0.65 * mean_input(inputs.flip(3)) + 0.35 * mean_input(inputs.flip(3).flip(2))
    plain = TensorSource(0.9 * either + 0.1 * mirrored, torch.arange(5) % 3, CPU)
    wanted = Kfac().curvature(linear, plain, Categorical()).blocks
    for name, block in Kfac().curvature(model, data, Categorical()).blocks.items():
        assert_close(block.dense(), wanted[name.removeprefix("net.net.net.")].dense())


RULES = {
    "kfac": Kfac(batch_size=4),
    "kfac, reduce": Kfac(sharing="reduce", batch_size=4),
    "diagonal": Diagonal(batch_size=4),
    "ggn": Ggn(batch_size=4),
    "kernel": TangentKernel(subset=7, batch_size=4),
}


@pytest.mark.parametrize("kind", ["linear", "convolutions", "norm"])
@pytest.mark.parametrize("rule", RULES)
def test_gradients_in_probabilities_are_finite_differences(rule, kind, generator):
    model, data = averaged(kind, generator)
    prior = TensorwisePrior(model, 0.7)

    def value(probabilities):
        with torch.no_grad():
            model.discrete.value.copy_(probabilities)
            return laplace_evidence(model, data, Categorical(), prior, rule=RULES[rule]).total

    start = model.discrete.value.detach().clone()
    wanted = finite_difference(value, start, 1e-6)
    value(start)
    total = laplace_evidence(model, data, Categorical(), prior, rule=RULES[rule]).total
    (found,) = torch.autograd.grad(total, model.discrete.value)
    assert_close(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rule", [Ggn(), Lanczos(200, 60), Preconditioned(Kfac(), 60, 100)], ids=str)
def test_the_evidence_by_the_full_ggn_is_that_of_jacobians(rule, generator):
    model, (inputs, targets) = averaged("linear", generator, 0.4)
    model.discrete.requires_grad_(False)
    prior = TensorwisePrior(model, 0.7)
    names = list(Layout.of(model).tensors)
    H = joined(dense_ggn(model.eval(), inputs, softmax_hessian), names)
    wanted = torch.logdet(torch.eye(len(H), dtype=torch.float64) + H / 0.7)
    seed = torch.Generator().manual_seed(0)
    found = laplace_evidence(model, (inputs, targets), Categorical(), prior, rule=rule, generator=seed)
    P = sum(prior.sizes.values())
    log_det = -2 * found.log_volume + P * torch.log(torch.tensor(2 * torch.pi / 0.7, dtype=torch.float64))
    error = 0.0 if isinstance(rule, Ggn) else 8 * found.standard_error  # of half of it, so four
    assert_close(log_det, wanted, rtol=1e-7, atol=max(error, 1e-8))


def test_probabilities_are_hyperparameters_within_bounds(net):
    model = DiscreteAverage(net, [mirror("x"), quarter_turns()])
    assert model.probabilities == pytest.approx({"mirror_x": 0.25, "quarter_turns": 0.375})
    assert list(hyperparameters(model)) == ["discrete.value"]
    assert isinstance(deepcopy(model).discrete.value, Hyperparameter)
    adam = HyperAdam(model)
    adam.set(5.0)
    adam.step([torch.tensor([1.0, -1.0], dtype=torch.float64)])
    assert model.probabilities == pytest.approx({"mirror_x": 0.0, "quarter_turns": 0.75})
    assert all_extents(model) == pytest.approx({"mirror_x": 0.0, "quarter_turns": 75.0})
    assert [summary.bound for summary in describe_extents(model)] == [50.0, 75.0]
    model.discrete.fix({"mirror_x": 1.0, "quarter_turns": 0.0})
    assert model.probabilities == pytest.approx({"mirror_x": 0.5, "quarter_turns": 0.0})
    assert hyperparameters(model) == {}
    assert hyperparameters(DiscreteAverage(net, [])) == {}
    assert all_extents(DiscreteAverage(net, [])) == {}


def test_data_are_drawn_by_their_probabilities(generator):
    of = Probabilities([mirror("x"), permuted_channels((1, 0))])
    with torch.no_grad():
        of.value.copy_(torch.tensor([0.1, 0.4]))
    inputs = torch.arange(8.0).view(1, 2, 2, 2).expand(20000, -1, -1, -1)
    moved = of.draw(inputs, generator)
    for element, wanted in zip(of.elements.rearrangements, of.weights().tolist(), strict=True):
        share = (moved == element.act(inputs[:1])).flatten(1).all(1).double().mean()
        assert share == pytest.approx(wanted, abs=0.015)


def test_the_evidence_learns_a_mirror_where_there_is_one(generator):
    """Sides do not matter in one task, and are the target of the other."""
    draw = torch.Generator().manual_seed(0)
    signs = torch.where(torch.rand(160, generator=draw) < 0.5, 1.0, -1.0)
    profile = torch.tensor([1.0, 0.5, -0.5, -1.0])
    inputs = signs[:, None, None, None] * profile + 0.3 * torch.randn(160, 1, 1, 4, generator=draw)
    sizes = (inputs.square().sum((1, 2, 3)) > 2.5).long()
    found = []
    for targets in (sizes, (signs > 0).long()):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 2))
        model = DiscreteAverage(net, [mirror("x")])
        fit(
            model, (inputs, targets), objective=Laplace(Kfac(), burn_in=0.3, extent_rate=0.1), optimiser=PLAIN,
            schedule=Schedule(40, 20, 2e-2), progress=False,
        )  # fmt: skip
        found.append(model.probabilities["mirror_x"])
    assert found[0] > 0.4
    assert found[1] < 0.1


def test_what_cannot_be_averaged_is_refused(net, images):
    with pytest.raises(ValueError, match=r"start must be from 0 \(off\) to 1 \(all powers alike\), got 2.0"):
        DiscreteAverage(net, [mirror("x")], start=2.0)
    with pytest.raises(ValueError, match=r"a share from 0 to 1 for each of mirror_x; got \{'mirror_y': 0\.5\}"):
        DiscreteAverage(net, [mirror("x")]).discrete.fix({"mirror_y": 0.5})
    with pytest.raises(ValueError, match=r"Inputs must be sequences \[n, c, t\]"):
        DiscreteAverage(net, [time_reversal()])(images)
