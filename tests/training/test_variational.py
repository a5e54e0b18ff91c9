"""Training by the evidence lower bound: what it finds where the answer is known."""

from inspect import unwrap
from itertools import pairwise

import pytest
import torch
from torch import nn

import symbayes as sb
from symbayes.data.source import as_source
from symbayes.layout import Hyperparameter
from symbayes.posterior import FullCovariance, HiddenUnits
from symbayes.training.elbo import ANNEALED_FROM
from symbayes.training.fit import preset
from symbayes.training.trainer import Problem, train


def regression(count: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 4, generator=generator)
    return x, x @ torch.tensor([[1.0], [-2.0], [0.5], [0.0]]) + 0.3 * torch.randn(count, 1, generator=generator)


def test_it_finds_the_evidence_noise_and_precision_of_linear_regression():
    x, y = regression()
    torch.manual_seed(0)
    model = nn.Linear(4, 1, bias=False)
    objective = sb.Elbo(FullCovariance(), draws="cubature", annealing=0.0)
    schedule = sb.Schedule(epochs=300, batch_size=60, learning_rate=0.03)
    found = sb.fit(model, (x, y), likelihood=sb.Gaussian(), objective=objective, schedule=schedule, progress=False)

    logs = torch.zeros(2, dtype=torch.float64, requires_grad=True)  # of δ and σ, where the exact evidence is highest
    optimiser = torch.optim.LBFGS([logs], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        value = -sb.exact_evidence(x.double(), y.double(), logs[0].exp(), logs[1].exp()).total
        value.backward()
        return value

    optimiser.step(loss)
    precision, noise = logs.detach().exp().tolist()
    exact = sb.exact_evidence(x.double(), y.double(), precision, noise)
    assert found.log_evidence == pytest.approx(exact.total.item(), abs=0.02)
    assert found.log_evidence <= exact.total.item() + 1e-4
    assert found.likelihood.noise().item() == pytest.approx(noise, rel=0.01)
    assert found.evidence.precision["weight"] == pytest.approx(precision, rel=0.02)
    assert found.evidence.effective["weight"] == pytest.approx(exact.effective["weight"].item(), rel=0.01)
    covariance = torch.linalg.inv(x.double().T @ x.double() / noise**2 + precision * torch.eye(4, dtype=torch.float64))
    torch.testing.assert_close(found.posterior.variances()["weight"][0].double(), covariance.diagonal(), rtol=0.05, atol=0)


def test_noise_by_gradient_ends_where_it_does_in_closed_form():
    data = regression()
    found = {}
    for noise in ("closed form", "gradient"):
        torch.manual_seed(0)
        objective = sb.Elbo(FullCovariance(), draws="cubature", noise=noise, spread_rate=3.0, annealing=0.0)
        schedule = sb.Schedule(epochs=400, batch_size=60, learning_rate=0.02, warm_up=0.0)
        model = nn.Linear(4, 1)
        result = sb.fit(model, data, likelihood=sb.Gaussian(), objective=objective, schedule=schedule, progress=False)
        found[noise] = result.likelihood.noise().item()
    assert found["gradient"] == pytest.approx(found["closed form"], rel=0.02)


class _Waves(nn.Module):
    """A hyperparameter of a user's own: the frequency of fixed features."""

    def __init__(self, frequency: float) -> None:
        super().__init__()
        self.frequency = Hyperparameter(torch.tensor(frequency))
        self.map = nn.Linear(2, 1, bias=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.map(torch.cat([(self.frequency * inputs).sin(), (self.frequency * inputs).cos()], 1))


@pytest.mark.parametrize("annealing", [0.0, 0.3])
def test_hyperparameters_of_a_user_are_learned(annealing):
    torch.manual_seed(0)
    x = torch.rand(80, 1) * 4 - 2
    data = (x, (2.0 * x).sin() + 0.1 * torch.randn(80, 1))
    model = _Waves(1.6)
    objective = sb.Elbo(FullCovariance(), annealing=annealing)
    schedule = sb.Schedule(epochs=100, batch_size=80, learning_rate=0.05)
    result = sb.fit(model, data, likelihood=sb.Gaussian(0.3), objective=objective, schedule=schedule, progress=False)
    assert result.model.frequency.item() == pytest.approx(2.0, abs=0.05)


@pytest.mark.parametrize("every", [1, 3, 4])
def test_hyperparameters_move_after_so_many_epochs(every):
    x = torch.linspace(-2, 2, 20)[:, None]
    model = _Waves(1.6)
    problem = Problem(model, as_source((x, (2.0 * x).sin()), torch.device("cpu")), sb.Gaussian(0.3), sb.TensorwisePrior(model))
    objective = sb.Elbo(FullCovariance(), annealing=0.0, hyper_every=every)
    found = [float(model.frequency.detach())]
    for _ in train(problem, objective, sb.Schedule(2 * every, 20), generator=torch.Generator().manual_seed(0)):
        found.append(float(model.frequency.detach()))
    assert [one != other for one, other in pairwise(found)] == [epoch % every == 0 for epoch in range(1, 2 * every + 1)]
    # As many epochs as there must be for one step, and one less.
    list(train(problem, objective, sb.Schedule(every, 20), generator=torch.Generator().manual_seed(0)))
    if every > 1:
        with pytest.raises(ValueError, match=rf"so there must be as many; there are {every - 1} of {every - 1}"):
            list(train(problem, objective, sb.Schedule(every - 1, 20), generator=torch.Generator().manual_seed(0)))


def relaxed(targets_shift: bool) -> sb.Result:
    """A layer with a path that shares weights over positions and one that does not, on data where that is right or wrong."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(150, 1, 8, generator=generator)
    if targets_shift:
        y = 0.8 * x + 0.5 * x.roll(1, 2) - 0.4 * x.roll(-1, 2)
    else:
        y = (x.flatten(1) @ torch.randn(8, 8, generator=generator) / 3)[:, None]
    y = (y + 0.2 * torch.randn(150, 1, 8, generator=generator)).flatten(1)
    layer = sb.RelaxedLayer(
        {
            "conv": sb.layers.ConvPath(1, 1, (3,), generator=generator),
            "dense": sb.layers.DensePath((1, 8), (1, 8), generator=generator),
        }
    )
    model = nn.Sequential(layer, nn.Flatten())
    schedule = sb.Schedule(epochs=250, batch_size=150, learning_rate=0.05)
    objective = sb.Elbo(sb.MeanField(), annealing=0.1, spread_rate=4.0)
    return sb.fit(model, (x, y), likelihood=sb.Gaussian(0.5), objective=objective, schedule=schedule, progress=False)


def test_precisions_choose_the_symmetry_of_the_data():
    found = {case: {row.path: row for row in relaxed(case).symmetries.rows} for case in (True, False)}
    assert found[True]["conv"].share > 0.85
    assert found[True]["dense"].precision > 1000 * found[True]["conv"].precision
    assert found[False]["dense"].effective > 55
    assert found[False]["dense"].precision < found[False]["conv"].precision


def test_a_result_predicts_and_survives_saving(tmp_path):
    task = sb.load("placed-digits")
    part = (task.train[0][:60], task.train[1][:60])
    result = sb.fit(sb.allconv(task, width=1), part, objective=sb.Elbo(sb.MatrixNormal()), epochs=2, progress=False)
    assert result.posterior.predicts == "sampled"
    prediction = result.predict(part[0], samples=4)
    assert prediction.mean.shape == (60, 10)
    assert prediction.epistemic.max() > 0
    result.save(tmp_path)
    again = sb.load_result(tmp_path)
    torch.testing.assert_close(again.predict(part[0], samples=4).mean, prediction.mean)
    assert again.evidence.estimator == "evidence lower bound (matrix-normal, 32 draws)"
    assert len(again.history) == 2
    assert all(record.evidence is not None for record in again.history)


def test_weights_and_spreads_are_both_learned_whatever_their_rates():
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    before, spread = model.weight.detach().clone(), sb.MeanField().over(model)().variances()["weight"].detach()
    objective = sb.Elbo(sb.MeanField(), spread_rate=1.0)
    result = sb.fit(model, regression(), likelihood=sb.Gaussian(), objective=objective, epochs=3, progress=False)
    assert (result.model.weight != before).all()
    assert (result.posterior.variances()["weight"] != spread).all()


def test_the_same_seed_gives_the_same_result():
    def run() -> float:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
        return sb.fit(model, regression(), likelihood=sb.Gaussian(), objective=sb.Elbo(), epochs=3, progress=False).log_evidence

    assert run() == run()


def test_the_divergence_is_let_in_and_reported_in_full():
    objective = sb.Elbo(annealing=0.5)
    weights = [objective.weight_at(epoch, 10) for epoch in range(1, 11)]
    assert weights == sorted(weights)
    assert ANNEALED_FROM < weights[0] < 0.01
    assert weights[4:] == [1.0] * 6
    assert sb.Elbo(annealing=0.0).weight_at(1, 10) == 1.0
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    problem = Problem(model, as_source(regression(), torch.device("cpu")), sb.Gaussian(), sb.TensorwisePrior(model))
    records = list(train(problem, sb.Elbo(annealing=0.9), sb.Schedule(2, 60), generator=torch.Generator().manual_seed(0)))
    for record in records:
        found = record.evidence
        assert found.total == pytest.approx(found.log_likelihood + found.log_prior + found.log_volume)
        assert found.log_prior + found.log_volume < -1  # not a thousandth of it


def test_what_is_no_objective_is_refused():
    with pytest.raises(TypeError, match=r"must be a Laplace, Map, Augerino or Elbo, or an Objective of your own; got str"):
        unwrap(preset)(None, "evidence")  # by its own words: types are checked before in tests, and not by users


@pytest.mark.filterwarnings("ignore:Networks and priors are made for targets")
def test_weights_that_diverge_are_refused():
    x, y = regression()
    with pytest.raises(sb.NotFiniteError, match="must be finite"):
        sb.fit(nn.Linear(4, 1), (x, y * 1e30), likelihood=sb.Gaussian(), objective=sb.Elbo(), epochs=3, progress=False)


def test_units_that_may_not_change_places_are_refused_before_training():
    x, y = regression()
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
    start = model[0].weight.detach().clone()
    wrong = HiddenUnits("0", 3, {"0.weight": -2, "2.weight": -1})  # without the bias
    objective = sb.Elbo(permutations=2, units=(wrong,))
    with pytest.raises(ValueError, match="permuting units '0' changes"):
        sb.fit(model, (x, y), likelihood=sb.Gaussian(), objective=objective, epochs=1, progress=False)
    torch.testing.assert_close(model[0].weight, start, rtol=0, atol=0)


class Recurrent(nn.Module):
    """Weights that are shared in ways whose curvature is not known."""

    def __init__(self, case: str) -> None:
        super().__init__()
        self.case, self.inner, self.last = case, nn.Linear(4, 4), nn.Linear(4, 2)
        self.other = nn.LSTM(4, 4, batch_first=True) if case == "lstm" else nn.Linear(4, 4)
        if case == "tied":
            self.other.weight = self.inner.weight
        if case not in ("tied", "lstm", "unused"):
            del self.other

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.inner(inputs).tanh()
        match self.case:
            case "tied":
                hidden = self.other(hidden).tanh()
            case "lstm":
                hidden = self.other(hidden[:, None])[0][:, 0]
            case "twice":
                hidden = self.inner(hidden).tanh()
            case "by name":
                hidden = hidden + self.inner(input=inputs)
        return self.last(hidden)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("case", ["tied", "twice", "lstm", "by name"])
def test_any_model_is_trained_as_it_is(case, tmp_path):
    torch.manual_seed(0)
    x, y = regression()
    data = x, (y[:, 0] > 0).long()
    result = sb.fit(Recurrent(case), data, objective=sb.Elbo(), epochs=2, progress=False)
    assert result.posterior.parts
    assert set(result.evidence.effective) == set(dict(result.model.named_parameters()))
    result.save(tmp_path)
    again = sb.load_result(tmp_path, model=Recurrent(case))
    torch.testing.assert_close(again.predict(x, samples=8).mean, result.predict(x, samples=8).mean)


def test_weights_without_use_are_refused():
    x, y = regression()
    with pytest.raises(RuntimeError, match="outputs of the model do not depend on it"):
        sb.fit(Recurrent("unused"), (x, (y[:, 0] > 0).long()), objective=sb.Elbo(), epochs=1, progress=False)
