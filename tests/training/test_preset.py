"""What `fit` does where nothing is asked for: the settings of the tables, as far as a model and its data allow."""

from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import symbayes as sb
from symbayes.curvature import Diagonal
from symbayes.data.source import as_source
from symbayes.training.optimiser import PLAIN
from symbayes.training.trainer import Problem

fit_module = import_module("symbayes.training.fit")


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.random.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def data(size: int = 400) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(size, 1, 2, 2, generator=torch.Generator().manual_seed(0)), torch.arange(size) % 3


def problem(model: nn.Module, size: int = 400) -> Problem:
    return Problem(model, as_source(data(size), torch.device("cpu")), sb.Categorical(), sb.TensorwisePrior(model))


def test_a_fit_without_settings_is_one_with_those_of_the_preset():
    model = network()
    usual = sb.preset(problem(model), epochs=3)
    parts = {"objective": usual.objective, "optimiser": usual.optimiser, "schedule": usual.schedule}
    explicit = sb.fit(model, data(), **parts, progress=False)
    default = sb.fit(network(), data(), epochs=3, progress=False)
    assert default.evidence == explicit.evidence
    assert "running mean" in default.history[1].evidence.estimator
    full = "full GGN by Lanczos (2 probes, 1 steps), preconditioned by KFAC (expand, exact Fisher)"
    assert default.evidence.estimator == full
    assert "25 steps" in str(sb.preset(problem(model)).objective.final_rule)


def test_the_full_ggn_is_for_models_and_data_that_can_be_gone_through_often():
    loader = DataLoader(TensorDataset(*data()), 50)
    model = network()
    others = [
        Problem(model, as_source(loader, torch.device("cpu")), sb.Categorical(), sb.TensorwisePrior(model)),
        problem(sb.OrbitAverage(network(), sb.affine2d("rotation"), samples=2)),
    ]
    for other in others:
        objective = sb.preset(other).objective
        assert (objective.search, objective.final_rule) == (None, sb.Kfac())
        assert objective.symmetric_start
    assert sb.preset(problem(model)).objective.search is not None


@pytest.mark.parametrize(("weights", "memory", "there_is"), [(10**8, 40 * 8 * 10**8, True), (10**8, 40 * 8 * 10**8 - 1, False)])
def test_on_a_gpu_the_full_ggn_is_for_models_that_it_has_room_for(weights, memory, there_is, monkeypatch):
    weight = SimpleNamespace(device=torch.device("cuda"), nbytes=4 * weights, numel=lambda: weights)
    monkeypatch.setattr(fit_module, "weights", lambda model: {"weight": weight})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=memory))
    assert fit_module._has_room(network()) is there_is
    weight.device = torch.device("cpu")
    assert not fit_module._has_room(network())


def test_factors_that_take_long_to_decompose_are_decomposed_seldom():
    long = nn.Sequential(nn.Flatten(), nn.Linear(4, 2200), nn.Linear(2200, 3))
    assert [sb.preset(problem(long), epochs=n).objective.hyper_every for n in (100, 30, 3)] == [4, 2, 1]
    assert sb.preset(problem(long), epochs=100).optimiser.eigenbasis == 4
    assert sb.preset(problem(network()), epochs=100).objective.hyper_every == 1


@pytest.mark.parametrize(("size", "batch_size"), [(60, 16), (1400, 87), (4000, 250), (60_000, 250)])
def test_few_data_have_small_batches(size, batch_size):
    assert sb.preset(problem(network(), size)).schedule.batch_size == batch_size


def test_models_with_extents_have_no_running_factors():
    model = sb.OrbitAverage(network(), sb.affine2d("rotation"), samples=2)
    assert sb.preset(problem(model)).optimiser == sb.Optimiser(running=0)
    assert sb.preset(problem(model)).objective.burn_in > sb.preset(problem(network())).objective.burn_in
    assert sb.preset(problem(model), sb.Laplace(Diagonal())).optimiser == PLAIN
    assert sb.preset(problem(network())).optimiser == sb.Optimiser()
    assert sb.preset(problem(network()), sb.Elbo()).optimiser == PLAIN


def test_extents_rest_until_a_network_has_begun_to_fit_and_weights_move_in_an_eigenbasis():
    model = sb.OrbitAverage(network(), sb.affine2d("rotation"), samples=2)
    usual = sb.preset(problem(model), epochs=15)
    trainer = usual.objective.trainer(problem(model), usual.schedule, usual.optimiser)
    state = trainer.init(torch.Generator().manual_seed(0))
    seen = [(trainer.epoch(state).evidence is not None, model.extents["rotation"]) for _ in range(4)]
    assert [moves for moves, _ in seen] == [False, False, True, True]
    assert seen[0][1] == seen[1][1] != seen[2][1]
    assert any(rotation is not None for rotation in state.descent.rotations)


def test_the_same_by_map_has_the_same_steps_and_the_same_judge():
    usual = sb.preset(problem(network()), epochs=3)
    by_map = usual.by_map()
    assert by_map.objective == sb.Map(usual.objective.rule, usual.objective.final_rule)
    assert (by_map.optimiser, by_map.schedule) == (usual.optimiser, usual.schedule)
    with pytest.raises(TypeError, match="MAP is judged by the rule of an objective by curvature; Elbo has none"):
        sb.preset(problem(network()), sb.Elbo(), epochs=3).by_map()
