"""Training with running factors, and in their eigenbasis: from data to result."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

import symbayes as sb
from symbayes.data.source import source_for
from symbayes.training.optimiser import PLAIN
from symbayes.training.trainer import Problem
from tests.small import load_few

SCHEDULE = sb.Schedule(epochs=4, batch_size=20, learning_rate=3e-3, warm_up=0.0)
#: Hyper-steps in the first half.
EARLY = {"cool_down": 0.5, "damping": 0.3}


def learned(objective, optimiser, seed=0, schedule=SCHEDULE, **options):
    task = load_few("placed-digits")
    model = sb.allconv(task, ("factored", "conv"), 1, generator=torch.Generator().manual_seed(0))
    settings = {"objective": objective, "optimiser": optimiser, "schedule": schedule}
    return sb.fit(model, task.train, **settings, seed=seed, progress=False, **options)


def estimators(result):
    return [record.evidence.estimator for record in result.history if record.evidence]


@pytest.mark.parametrize("eigenbasis", [0, 1])
def test_hyper_steps_use_the_running_mean_and_the_end_a_pass_over_all_data(eigenbasis):
    result = learned(sb.Laplace(sb.Kfac(), **EARLY), sb.Optimiser(2, eigenbasis=eigenbasis))
    assert estimators(result)[:-1] == ["KFAC (expand, exact Fisher), running mean"] * (len(estimators(result)) - 1)
    assert len(estimators(result)) == 3
    assert result.evidence.estimator == "KFAC (expand, exact Fisher)"
    again = sb.laplace_evidence(result.model, load_few("placed-digits").train, result.likelihood, result.prior, rule=sb.Kfac())
    assert result.log_evidence == pytest.approx(float(again.total.detach()), rel=1e-4)
    assert len(set(result.evidence.precision.values())) > 10  # they were learned


def test_the_rule_for_the_end_is_used_there():
    result = learned(sb.Laplace(final_rule=sb.Kfac()), sb.Optimiser(2, eigenbasis=0))
    assert "running mean" in estimators(result)[0]
    assert result.evidence.estimator == "KFAC (expand, exact Fisher)"


def test_the_same_seed_gives_the_same_result_and_an_eigenbasis_another():
    objective, rotated, plain = sb.Laplace(), sb.Optimiser(2, eigenbasis=1), sb.Optimiser(2, eigenbasis=0)
    first, second, other = (learned(objective, rotated, seed, augment=sb.FlipCrop(1)) for seed in (3, 3, 4))
    assert first.log_evidence == second.log_evidence
    assert first.log_evidence != other.log_evidence
    for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert_close(a, b, rtol=0, atol=0)
    assert learned(objective, plain, 3, augment=sb.FlipCrop(1)).log_evidence != first.log_evidence


def test_where_no_factors_were_collected_hyper_steps_are_by_passes():
    result = learned(sb.Laplace(sb.Kfac()), sb.Optimiser(1000, eigenbasis=1))
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


def test_map_has_an_eigenbasis_too_and_keeps_the_prior():
    objective = sb.Map(sb.Kfac())
    rotated, plain = (
        sb.fit(network(), points(), objective=objective, optimiser=optimiser, schedule=SCHEDULE, progress=False)
        for optimiser in (sb.Optimiser(2, eigenbasis=1), sb.Optimiser(2, eigenbasis=0))
    )
    assert estimators(rotated) == ["KFAC (expand, exact Fisher)"]
    assert set(rotated.evidence.precision.values()) == {1.0}
    assert rotated.log_evidence != plain.log_evidence


def test_where_weights_rest_precisions_move_by_running_factors_as_by_passes():
    """A mean over whole epochs is then the pass itself."""
    objective = sb.Laplace(sb.Kfac(), burn_in=0.0, cool_down=0.5)
    schedule = sb.Schedule(10, 20, 1e-12, 0.0)
    passes, running = (
        sb.fit(network(), points(), objective=objective, optimiser=optimiser, schedule=schedule, progress=False)
        for optimiser in (PLAIN, sb.Optimiser(1, 1000, eigenbasis=0))
    )
    assert max(passes.evidence.precision.values()) > 2
    assert running.evidence.precision == pytest.approx(passes.evidence.precision, rel=1e-4)
    for a, b in zip(passes.history, running.history, strict=True):
        assert (a.evidence is None) == (b.evidence is None)
        assert a.evidence is None or b.evidence.total == pytest.approx(a.evidence.total, rel=1e-5)


def test_factors_are_collected_from_data_sets_and_loaders_too():
    for data in (DataLoader(TensorDataset(*points()), 30, shuffle=True), TensorDataset(*points())):
        schedule = sb.Schedule(6, 128, 3e-3, 0.0)
        result = sb.fit(network(), data, optimiser=sb.Optimiser(2, eigenbasis=1), schedule=schedule, progress=False)
        assert ("running mean" in estimators(result)[0]) == isinstance(data, DataLoader)


def test_a_noise_is_learned_with_running_factors():
    inputs, _ = points()
    targets = inputs[:, :1] + 0.3 * torch.randn(120, 1, generator=torch.Generator().manual_seed(1))
    objective = sb.Laplace(sb.Kfac(), **EARLY)
    result = sb.fit(
        nn.Linear(2, 1), (inputs, targets), likelihood=sb.Gaussian(), objective=objective,
        optimiser=sb.Optimiser(2, eigenbasis=0), schedule=sb.Schedule(60, 20, 0.05, 0.0), progress=False,
    )  # fmt: skip
    assert result.evidence.noise[0] == pytest.approx(0.3, rel=0.15)


def test_models_with_hyperparameters_of_their_own_are_refused():
    task = load_few("upright-digits")
    model = sb.OrbitAverage(nn.Sequential(nn.Flatten(), nn.Linear(256, 10)), sb.affine2d("rotation"), samples=2)
    with pytest.raises(ValueError, match=r"models without hyperparameters of their own.*this one has 1\. Use Optimiser\(r"):
        sb.fit(model, task.train, objective=sb.Laplace(), optimiser=sb.Optimiser(2), epochs=1, progress=False)


def test_an_eigenbasis_may_come_from_passes_over_all_data():
    """So models with hyperparameters have one, too: after the first pass, steps are in its coordinates."""
    task = load_few("upright-digits")
    model = sb.OrbitAverage(nn.Sequential(nn.Flatten(), nn.Linear(256, 10)), sb.affine2d("rotation"), samples=2)
    problem = Problem(model, source_for(model, task.train), sb.Categorical(), sb.TensorwisePrior(model))
    trainer = sb.Laplace().trainer(problem, sb.Schedule(4, 50, 1e-2), sb.Optimiser(running=0, eigenbasis=2))
    state = trainer.init(torch.Generator().manual_seed(0))
    bases = []
    for _ in range(3):
        trainer.epoch(state)
        bases.append(state.descent.rotations[0] is not None)
    assert bases == [False, True, True]
    weight, found = state.descent.parameters[0], state.descent.rotations[0]
    assert found is not None
    assert torch.allclose(found.back(found.into(weight)), weight, atol=1e-5)


def test_settings_that_do_not_go_together_are_refused():
    for objective in (sb.Laplace(sb.curvature.Ggn()), sb.Map(sb.curvature.Ggn()), sb.Augerino(sb.curvature.Ggn())):
        with pytest.raises(
            ValueError,
            match=r"Eigenbases and running factors are by Kfac; got .*Use Optimiser\(running=0, memory=20, eigenbasis=0\)\.",
        ):
            sb.fit(network(), points(), objective=objective, optimiser=sb.Optimiser(5), epochs=1, progress=False)
        with pytest.raises(ValueError, match=r"Eigenbases and running factors are by Kfac; got "):
            sb.fit(network(), points(), objective=objective, optimiser=sb.Optimiser(0), epochs=1, progress=False)
    with pytest.raises(ValueError, match=r"keep_best compares evidences from passes over all the data"):
        sb.fit(network(), points(), objective=sb.Laplace(keep_best=True), optimiser=sb.Optimiser(), epochs=1, progress=False)
    with pytest.raises(ValueError, match=r"Elbo moves means and spreads by Adam on the bound, .*; got Optimiser\(running=10"):
        sb.fit(network(), points(), objective=sb.Elbo(), optimiser=sb.Optimiser(), epochs=1, progress=False)
    for wrong in ({"running": -1}, {"memory": 0}, {"eigenbasis": -1, "running": 1}):
        with pytest.raises(ValueError, match=r"running and eigenbasis must be 0 or more and memory at least 1; got "):
            sb.Optimiser(**wrong)


def test_what_suits_the_rule_and_the_model_is_chosen():
    """Running factors where there can be any; nothing is refused that was not asked for."""
    for objective in (sb.Laplace(sb.curvature.Ggn()), sb.Laplace(keep_best=True), sb.Elbo(), sb.Map(), sb.Laplace()):
        result = sb.fit(network(), points(), objective=objective, schedule=sb.Schedule(6, 20, 3e-3), progress=False)
        assert any("running mean" in name for name in estimators(result)) == (objective == sb.Laplace())
