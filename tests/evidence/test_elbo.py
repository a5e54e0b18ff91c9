"""The evidence lower bound against closed forms: linear regression, dense normals, finite differences."""

from math import log, pi

import pytest
import torch
from torch import nn

import symbayes as sb
from symbayes.evidence.evidence import expected_log_prior, log_precisions, second_moments
from symbayes.posterior.functional import sampled_outputs
from tests.oracles import finite_difference

FAMILIES = {
    "mean-field": sb.MeanField(),
    "matrix-normal": sb.MatrixNormal(),
    "diagonal factors": sb.MatrixNormal(diagonal=True),
    "full": sb.posterior.FullCovariance(),
    "separate": sb.MatrixNormal(biases="separate"),
}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def regression(outputs: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(24, 3, generator=generator(), dtype=torch.float64)
    W = torch.randn(3, outputs, generator=generator(1), dtype=torch.float64)
    return x, x @ W + 0.3 * torch.randn(24, outputs, generator=generator(2), dtype=torch.float64)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def moved(variational: nn.Module) -> nn.Module:
    """With parameters that are no longer alike."""
    with torch.no_grad():
        for parameter in variational.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator(3), dtype=parameter.dtype))
    return variational


def maximised(objective: sb.Elbo, model: nn.Module, batch, likelihood, prior) -> sb.Evidence:
    variational = objective.family.over(model)
    learned = [*model.parameters(), *variational.parameters()]
    optimiser = torch.optim.LBFGS(
        learned, max_iter=1000, tolerance_grad=1e-11, tolerance_change=1e-14, line_search_fn="strong_wolfe"
    )

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        value = -objective.evidence(model, variational, batch, likelihood, prior).total
        value.backward()
        return value

    optimiser.step(loss)
    return objective.evidence(model, variational, batch, likelihood, prior)


def test_full_covariance_reaches_the_exact_evidence_of_linear_regression():
    x, y = regression()
    model, likelihood = nn.Linear(3, 2).double(), sb.Gaussian(0.4).double()
    objective = sb.Elbo(sb.posterior.FullCovariance(), draws="cubature", collapsed=False)
    found = maximised(objective, model, (x, y), likelihood, sb.ScalarPrior(model, 1.7))
    features = torch.cat([x, torch.ones(24, 1, dtype=torch.float64)], 1)
    exact = sb.exact_evidence(features, y, 1.7, likelihood.noise().item())
    assert abs(found.total.item() - exact.total.item()) < 1e-8
    torch.testing.assert_close(sum(found.effective.values()), exact.effective["weight"], rtol=0, atol=1e-5)


def test_the_matrix_normal_is_exact_where_the_posterior_is_one():
    x, y = regression()  # with one noise and one precision for all, it is I ⊗ A
    model, likelihood = nn.Linear(3, 2).double(), sb.Gaussian(0.4).double()
    objective = sb.Elbo(sb.MatrixNormal(), draws="cubature", collapsed=False)
    found = maximised(objective, model, (x, y), likelihood, sb.ScalarPrior(model, 1.7))
    features = torch.cat([x, torch.ones(24, 1, dtype=torch.float64)], 1)
    assert abs(found.total.item() - sb.exact_evidence(features, y, 1.7, likelihood.noise().item()).total.item()) < 1e-8


def test_mean_field_stays_below_the_evidence():
    x, y = regression()
    x = x @ torch.tensor([[1, 0.9, 0], [0, 0.4, 0], [0, 0, 1]], dtype=torch.float64)
    model, likelihood = nn.Linear(3, 2).double(), sb.Gaussian(0.4).double()
    objective = sb.Elbo(sb.MeanField(), draws="cubature", collapsed=False)
    found = maximised(objective, model, (x, y), likelihood, sb.ScalarPrior(model, 1.7))
    features = torch.cat([x, torch.ones(24, 1, dtype=torch.float64)], 1)
    assert found.total < sb.exact_evidence(features, y, 1.7, 0.4).total - 0.1


@pytest.mark.parametrize("make", [sb.ScalarPrior, sb.LayerwisePrior, sb.TensorwisePrior])
def test_collapsed_and_explicit_forms_agree_at_the_optimum(make):
    model = network()
    prior, likelihood, family = make(model), sb.Gaussian().double(), sb.MatrixNormal()
    variational = moved(family.over(model))
    learned = [*model.parameters(), *variational.parameters()]

    def bound(collapsed: bool) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        objective = sb.Elbo(family, collapsed=collapsed)
        total = objective.evidence(model, variational, regression(), likelihood, prior, generator=generator()).total
        return total, torch.autograd.grad(total, learned)

    collapsed = bound(True)
    with torch.no_grad():
        posterior = variational()
        prior.log_precision.copy_(log_precisions(prior, second_moments(posterior, posterior.variances()), frozenset()))
    explicit = bound(False)
    torch.testing.assert_close(collapsed, explicit)
    for step in (-0.1, 0.2):
        prior.log_precision.data += step
        assert bound(False)[0] < collapsed[0]


def test_the_collapsed_divergence_in_closed_form():
    model = nn.Linear(3, 2, bias=False).double()  # KL* = ½ (d log v* − log|Σ|), v* = E‖θ‖² / d
    variational = moved(sb.MatrixNormal().over(model))
    found = sb.Elbo(sb.MatrixNormal()).evidence(model, variational, regression(), sb.Gaussian().double(), sb.ScalarPrior(model))
    spread = variational().parts[0][1]
    moments = spread.left.square().sum() * spread.right.square().sum() + model.weight.square().sum()
    expected = (6 * (moments / 6).log() - spread.log_det()) / 2
    torch.testing.assert_close(-(found.log_prior + found.log_volume), expected)


def test_precisions_that_are_not_learned_are_kept():
    model = network()
    prior = sb.TensorwisePrior(model, 5.0, learn=["*weight"])
    posterior = sb.MeanField().over(model)()
    found = log_precisions(prior, second_moments(posterior, posterior.variances()), frozenset())
    kept = [i for i, group in enumerate(prior.groups) if group.endswith("bias")]
    torch.testing.assert_close(found[kept], prior.log_precision.detach()[kept])
    assert (found - log(5.0)).abs()[[i for i in range(4) if i not in kept]].min() > 1e-3


def test_deterministic_biases_have_no_prior():
    model = network()
    family = sb.MeanField(biases="deterministic")
    variational = family.over(model)
    objective = sb.Elbo(family)
    found = objective.evidence(model, variational, regression(), sb.Gaussian().double(), sb.TensorwisePrior(model))
    with torch.no_grad():
        model[0].bias.add_(100.0)
    again = objective.evidence(model, variational, regression(), sb.Gaussian().double(), sb.TensorwisePrior(model))
    torch.testing.assert_close(found.log_prior, again.log_prior)
    assert found.effective["0.bias"] == 4
    found.total.backward()
    assert model[0].bias.grad is not None


def test_batches_stand_for_all_the_data():
    x, y = regression()
    model, likelihood = nn.Linear(3, 2).double(), sb.Gaussian(0.4).double()
    objective, prior = sb.Elbo(sb.MeanField(), draws="cubature"), sb.ScalarPrior(model)
    variational = objective.family.over(model)
    whole = objective.evidence(model, variational, (x, y), likelihood, prior)
    parts = [
        objective.evidence(model, variational, (x[i : i + 8], y[i : i + 8]), likelihood, prior, num_data=24)
        for i in range(0, 24, 8)
    ]
    torch.testing.assert_close(torch.stack([part.total for part in parts]).mean(), whole.total)
    assert {part.num_data for part in parts} == {24}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("local", [True, False])
def test_gradients_by_finite_differences(name, local):
    model, family = network(), FAMILIES[name]
    prior, likelihood = sb.TensorwisePrior(model), sb.Gaussian(0.7).double()
    variational = moved(family.over(model))
    objective = sb.Elbo(family, collapsed=False, local=local)
    learned = [*model.parameters(), *variational.parameters(), prior.log_precision, likelihood.log_noise]

    def bound() -> torch.Tensor:
        return objective.evidence(model, variational, regression(), likelihood, prior, generator=generator()).total

    gradients = torch.autograd.grad(bound(), learned)
    for parameter, gradient in zip(learned, gradients, strict=True):
        start = parameter.detach().clone()
        direction = torch.randn(start.shape, generator=generator(4), dtype=start.dtype)

        def along(step: torch.Tensor, parameter=parameter, start=start, direction=direction) -> torch.Tensor:
            with torch.no_grad():
                parameter.copy_(start + step * direction)
                return bound()

        expected = finite_difference(along, torch.zeros(1, dtype=torch.float64))
        along(torch.zeros(1))
        torch.testing.assert_close((gradient * direction).sum()[None], expected, rtol=1e-6, atol=1e-6)


LOCAL = {
    "linear": (lambda: nn.Linear(3, 4).double(), (3,)),
    "dense path": (lambda: sb.layers.DensePath((3,), (2, 2)).double(), (3,)),
    "factored": (lambda: nn.Sequential(sb.layers.FactoredPath((2, 3), (2, 2)).double(), nn.Flatten()), (2, 3)),
}


@pytest.mark.parametrize("family", ["mean-field", "matrix-normal", "separate"])
@pytest.mark.parametrize("case", LOCAL)
def test_local_noise_has_the_distribution_of_drawn_weights(case, family):
    """For one datum, outputs under local noise and under drawn weights agree in mean and covariance."""
    build, shape = LOCAL[case]
    torch.manual_seed(0)
    model = build()
    model = nn.Sequential(model, nn.Flatten())
    variational = moved(FAMILIES[family].over(model))
    x = torch.randn(1, *shape, generator=generator(), dtype=torch.float64)
    local = variational.local(x)
    assert local
    with torch.no_grad():
        posterior = variational()
        drawn, noisy = (
            sampled_outputs(model, posterior, x, 40_000, local=which, generator=generator(5))[:, 0] for which in ({}, local)
        )
    scale = drawn.std(0).max()
    assert (drawn.mean(0) - noisy.mean(0)).abs().max() < 6 * scale / 40_000**0.5
    assert (drawn.T.cov() - noisy.T.cov()).abs().max() < 0.06 * scale**2


def test_local_noise_has_less_variance():
    model = network()
    variational = sb.MeanField(std=0.5).over(model)
    prior, likelihood = sb.TensorwisePrior(model), sb.Gaussian(0.5).double()
    found = {}
    for local in (True, False):
        objective = sb.Elbo(sb.MeanField(), local=local, draws="random", samples=1)
        with torch.no_grad():
            totals = [
                objective.evidence(model, variational, regression(), likelihood, prior, generator=generator(seed)).total
                for seed in range(100)
            ]
        found[local] = torch.stack(totals)
    assert found[True].std() < 0.6 * found[False].std()
    error = (found[True].var() / 100 + found[False].var() / 100).sqrt()
    assert (found[True].mean() - found[False].mean()).abs() < 4 * error


class Net(nn.Module):
    """Two layers, of which the first is used as the case says."""

    def __init__(self, case: str) -> None:
        super().__init__()
        self.case, self.first, self.last = case, nn.Linear(3, 3), nn.Linear(3, 2)
        if case == "subclass":
            self.first = Doubled(3, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        match self.case:
            case "rows of sets":
                hidden = self.first(inputs.flatten(0, 1)).unflatten(0, inputs.shape[:2]).mean(1)
            case "by name":
                hidden = self.first(input=inputs)
            case "weight used again":
                hidden = self.first(inputs).tanh() @ self.first.weight
            case "the same for all data":
                hidden = inputs + self.first(torch.ones(1, 3))
            case _:
                hidden = self.first(inputs)
        return self.last(hidden.tanh())


class Doubled(nn.Linear):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(inputs)


ODD = {"rows of sets": (4, 3), "by name": (3,), "weight used again": (3,), "the same for all data": (3,), "subclass": (3,)}


@pytest.mark.parametrize("case", ODD)
def test_noise_is_drawn_behind_maps_only_where_their_weights_meet_a_datum_once(case):
    torch.manual_seed(0)
    model, inputs = Net(case), torch.randn(5, *ODD[case])
    variational = sb.MatrixNormal(std=0.5).over(model)
    local = variational.local(inputs)
    assert [site.module for site in local.values()] == (["first", "last"] if case == "by name" else ["last"])
    with torch.no_grad():
        drawn, noisy = (
            sampled_outputs(model, variational(), inputs, 20_000, local=which, generator=generator(5)) for which in ({}, local)
        )
    torch.testing.assert_close(noisy.mean(0), drawn.mean(0), rtol=0, atol=0.03)
    torch.testing.assert_close(noisy.std(0), drawn.std(0), rtol=0.05, atol=0)


def test_inputs_may_be_whole_numbers():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(12, 2))
    batch = torch.randint(0, 7, (5, 3)), torch.randint(0, 2, (5,))
    variational = sb.MatrixNormal().over(model)
    assert [site.module for site in variational.local(batch[0]).values()] == ["2"]
    found = sb.Elbo().evidence(model, variational, batch, sb.Categorical(), sb.TensorwisePrior(model))
    assert found.total.isfinite()


SHARED = {
    "positions": (lambda: nn.Sequential(nn.Linear(3, 2), nn.Flatten()), (5, 3)),
    "convolution": (lambda: nn.Sequential(nn.Conv1d(3, 2, 3), nn.Flatten()), (3, 5)),
    "copies": (
        lambda: sb.OrbitAverage(nn.Sequential(nn.Flatten(), nn.Linear(16, 2)), sb.affine2d("rotation"), 3),
        (1, 4, 4),
    ),
}


@pytest.mark.parametrize("case", SHARED)
def test_shared_weights_are_drawn(case):
    torch.manual_seed(0)
    build, shape = SHARED[case]
    model, inputs = build(), torch.randn(4, *shape)
    variational = sb.MeanField().over(model)
    assert not variational.local(inputs)
    outputs = sampled_outputs(model, variational(), inputs, 3, generator=generator())
    assert outputs.shape[:2] == (3, 4)
    assert outputs.std(0).min() > 0


@pytest.mark.parametrize("training", [True, False])
def test_batch_norms_see_weights_one_after_the_other(training):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).train(training)
    variational = sb.MatrixNormal().over(model)
    before = model[1].running_mean.clone()
    found = sb.Elbo().evidence(
        model, variational, (torch.randn(6, 3), torch.randint(0, 2, (6,))), sb.Categorical(), sb.TensorwisePrior(model)
    )
    found.total.backward()
    assert (model[1].running_mean != before).any() == training
    assert all(p.grad is not None for p in [*model.parameters(), *variational.parameters()])


def test_extents_have_the_gradient_of_the_bound():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.Tanh(), nn.Linear(4, 2))
    model = sb.OrbitAverage(net, sb.affine2d("rotation", "translation").starting(0.3), 4).double().eval()
    batch = (torch.randn(6, 1, 4, 4, generator=generator(), dtype=torch.float64), torch.arange(6) % 2)
    objective = sb.Elbo(sb.MatrixNormal())
    variational, prior = objective.family.over(model), sb.TensorwisePrior(model)

    def bound(value: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            model.orbit.value.copy_(value)
        return objective.evidence(model, variational, batch, sb.Categorical(), prior, generator=generator()).total

    start = model.orbit.value.detach().clone()
    (gradient,) = torch.autograd.grad(bound(start), [model.orbit.value])
    expected = finite_difference(lambda value: bound(value).detach(), start)
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-6)
    assert gradient.abs().max() > 1e-3


def test_permutations_of_hidden_units_raise_the_bound():
    model = network()
    family, prior, likelihood = sb.MeanField(std=0.2), sb.TensorwisePrior(model), sb.Gaussian().double()
    variational = family.over(model)
    with torch.no_grad():
        plain, corrected = (
            sb.Elbo(family, samples=200, permutations=count, local=False).evidence(
                model, variational, regression(), likelihood, prior, generator=generator()
            )
            for count in (0, 7)
        )
    assert 0.5 < corrected.log_volume - plain.log_volume <= log(8)
    torch.testing.assert_close(corrected.log_likelihood, plain.log_likelihood)
    assert "hidden units in 8 orders" in corrected.estimator


def test_terms_are_those_of_every_estimate():
    model = network()
    found = sb.Elbo().evidence(
        model, sb.MatrixNormal().over(model), regression(), sb.Gaussian().double(), sb.TensorwisePrior(model)
    )
    torch.testing.assert_close(found.total, found.log_likelihood + found.log_prior + found.log_volume)
    assert found.places["0.weight"] == ("0", "Linear")
    assert str(found).endswith("evidence lower bound (matrix-normal, 2 draws)")


@pytest.mark.parametrize(
    "settings",
    [
        {"draws": "some"},
        {"noise": "none"},
        {"samples": 3},
        {"samples": 0, "draws": "random"},
        {"permutations": -1},
        {"annealing": 1.0},
        {"extent_rate": 0.0},
        {"spread_rate": -1.0},
    ],
)
def test_settings_are_checked(settings):
    with pytest.raises(ValueError, match="got"):
        sb.Elbo(**settings)


def test_what_does_not_fit_together_is_refused():
    model, other = network(), network()
    x, y = regression()
    objective, likelihood = sb.Elbo(), sb.Gaussian().double()
    variational, prior = objective.family.over(model), sb.TensorwisePrior(model)
    with pytest.raises(ValueError, match="over this very model"):
        objective.evidence(other, variational, (x, y), likelihood, prior)
    with pytest.raises(ValueError, match="unmatched"):
        objective.evidence(model, variational, (x, y), likelihood, sb.TensorwisePrior(nn.Linear(3, 2)))
    with pytest.raises(ValueError, match=r"Each of the 24 inputs.* 5 targets"):
        objective.evidence(model, variational, (x, y[:5]), likelihood, prior)
    with pytest.raises(ValueError, match="num_data=3"):
        objective.evidence(model, variational, (x, y), likelihood, prior, num_data=3)
    with pytest.raises(ValueError, match="count must be at least 1"):
        objective.evidence(model, variational, (x, y), likelihood, prior, samples=0)
    flat = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)).double()
    with pytest.raises(ValueError, match=r"outputs \[n, c\].* shape \(8,\)"):
        objective.evidence(flat, objective.family.over(flat), (x, y[:, 0]), likelihood, sb.TensorwisePrior(flat))


def test_something_must_be_uncertain():
    model = nn.Linear(3, 2)
    model.weight.requires_grad_(False)
    with pytest.raises(ValueError, match="weights that are uncertain"):
        sb.MeanField(biases="deterministic").over(model)


def test_sums_over_tensors_are_in_the_order_of_the_model():
    """So that they are rounded alike in every process, whatever its hash seed: training goes on in another one."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(7, 7) for _ in range(12))).double()
    prior = sb.TensorwisePrior(model).double()
    moments = {name: torch.rand((), dtype=torch.float64) * 10 ** (k % 7) for k, name in enumerate(prior.group_of)}
    deterministic = frozenset({"3.bias"})
    total = torch.zeros((), dtype=torch.float64)
    for name, precision in prior.precisions().items():
        if name not in deterministic:
            total = total + (prior.sizes[name] * (precision.log() - log(2 * pi)) - precision * moments[name]) / 2
    assert expected_log_prior(prior, moments, prior.precisions(), deterministic) == total
