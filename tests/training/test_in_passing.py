"""Training with the curvature collected in passing, and in coordinates turned by it: from data to result."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

import symbayes as sb
from tests.small import load_few

SCHEDULE = sb.Schedule(epochs=4, batch_size=20)


def learned(objective, seed=0, schedule=SCHEDULE, **options):
    task = load_few("placed-digits")
    model = sb.allconv(task, ("factored", "conv"), 1, generator=torch.Generator().manual_seed(0))
    return sb.fit(model, task.train, objective=objective, schedule=schedule, seed=seed, progress=False, **options)


def estimators(result):
    return [record.evidence.estimator for record in result.history if record.evidence]


@pytest.mark.parametrize("turned", [0, 1])
def test_hyper_steps_use_the_running_mean_and_the_end_a_pass_over_all_data(turned):
    result = learned(sb.Laplace(sb.Kfac(), running=2, turned=turned, frequency=1))
    assert estimators(result)[:-1] == ["KFAC (expand, exact Fisher), running mean"] * (len(estimators(result)) - 1)
    assert len(estimators(result)) == 3
    assert result.evidence.estimator == "KFAC (expand, exact Fisher)"
    again = sb.laplace_evidence(result.model, load_few("placed-digits").train, result.likelihood, result.prior, rule=sb.Kfac())
    assert result.log_evidence == pytest.approx(float(again.total.detach()), rel=1e-4)
    assert len(set(result.evidence.precision.values())) > 10  # they were learned


def test_the_rule_for_the_end_is_used_there():
    result = learned(sb.Laplace(running=2, final_rule=sb.Kfac()))
    assert "running mean" in estimators(result)[0]
    assert result.evidence.estimator == "KFAC (expand, exact Fisher)"


def test_the_same_seed_gives_the_same_result_and_turning_another():
    objective = sb.Laplace(running=2, turned=1)
    first, second, other = (learned(objective, seed, augment=sb.FlipCrop(1)) for seed in (3, 3, 4))
    assert first.log_evidence == second.log_evidence
    assert first.log_evidence != other.log_evidence
    for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert_close(a, b, rtol=0, atol=0)
    assert learned(sb.Laplace(running=2), 3, augment=sb.FlipCrop(1)).log_evidence != first.log_evidence


def test_where_no_batch_is_looked_at_hyper_steps_are_by_passes():
    result = learned(sb.Laplace(sb.Kfac(), running=1000, turned=1))
    assert estimators(result) == ["KFAC (expand, exact Fisher)"] * len(estimators(result))
    assert len(estimators(result)) > 1


def points(n=120):
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(n) % 3
    centres = torch.tensor([[2.0, 0.0], [-2.0, 1.0], [0.0, -2.0]])
    return centres[targets] + 0.7 * torch.randn(n, 2, generator=generator), targets


def network():
    with torch.random.fork_rng():
        torch.random.manual_seed(0)
        return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))


def test_map_may_be_turned_and_keeps_the_prior():
    turned, plain = (
        sb.fit(network(), points(), objective=sb.Map(sb.Kfac(), running=2, turned=turned), schedule=SCHEDULE, progress=False)
        for turned in (1, 0)
    )
    assert estimators(turned) == ["KFAC (expand, exact Fisher)"]
    assert set(turned.evidence.precision.values()) == {1.0}
    assert turned.log_evidence != plain.log_evidence


def test_where_weights_rest_precisions_move_in_passing_as_by_passes():
    """A mean over whole epochs is then the pass itself."""
    settings = {"frequency": 1, "damping": 0.5, "burn_in": 0.0}
    passes, passing = (
        sb.fit(network(), points(), objective=objective, schedule=sb.Schedule(10, 20, 1e-12), progress=False)
        for objective in (sb.Laplace(sb.Kfac(), **settings), sb.Laplace(sb.Kfac(), running=1, memory=1000, **settings))
    )
    assert max(passes.evidence.precision.values()) > 2
    assert passing.evidence.precision == pytest.approx(passes.evidence.precision, rel=1e-4)
    for a, b in zip(passes.history, passing.history, strict=True):
        assert (a.evidence is None) == (b.evidence is None)
        assert a.evidence is None or b.evidence.total == pytest.approx(a.evidence.total, rel=1e-5)


def test_data_sets_and_loaders_are_looked_at_too():
    for data in (DataLoader(TensorDataset(*points()), 30, shuffle=True), TensorDataset(*points())):
        result = sb.fit(network(), data, objective=sb.Laplace(running=2, turned=1), epochs=6, progress=False)
        assert ("running mean" in estimators(result)[0]) == isinstance(data, DataLoader)


def test_a_noise_is_learned_in_passing():
    inputs, _ = points()
    targets = inputs[:, :1] + 0.3 * torch.randn(120, 1, generator=torch.Generator().manual_seed(1))
    objective = sb.Laplace(sb.Kfac(), running=2, frequency=1)
    result = sb.fit(
        nn.Linear(2, 1), (inputs, targets), likelihood=sb.Gaussian(), objective=objective,
        schedule=sb.Schedule(60, 20, 0.05), progress=False,
    )  # fmt: skip
    assert result.evidence.noise[0] == pytest.approx(0.3, rel=0.15)


def test_models_with_hyperparameters_of_their_own_are_refused():
    task = load_few("upright-digits")
    model = sb.OrbitAverage(nn.Sequential(nn.Flatten(), nn.Linear(256, 10)), sb.affine2d("rotation"), samples=2)
    with pytest.raises(ValueError, match=r"for models without hyperparameters of their own.*this one has 1\. Use running=0\."):
        sb.fit(model, task.train, objective=sb.Laplace(running=2), epochs=1, progress=False)


@pytest.mark.parametrize("objective", [sb.Laplace, sb.Map])
def test_settings_that_do_not_go_together_are_refused(objective):
    with pytest.raises(ValueError, match=r"curvature in passing \(running\) is by Kfac; got .*Use running=0\."):
        objective(sb.curvature.Ggn(), running=5)
    with pytest.raises(ValueError, match=r"turned by the running curvature \(turned\), so it must be collected: running=10\."):
        objective(turned=1)
    for wrong in ({"running": -1}, {"memory": 0}, {"turned": -1, "running": 1}):
        with pytest.raises(ValueError, match=r"running and turned must be 0 or more and memory at least 1; got "):
            objective(**wrong)
