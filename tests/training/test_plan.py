"""What a fit will need: counted, against what it holds."""

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import symbayes as sb
from symbayes.cli.app import app
from symbayes.data.source import TensorSource
from symbayes.training.plan import plan
from symbayes.training.scale import ScaleSearch
from symbayes.training.trainer import Problem


def network():
    with torch.random.fork_rng():
        torch.random.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(384, 3))


def points(n):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, 1, 8, 8, generator=generator), torch.arange(n) % 3


def test_memory_is_what_a_training_holds():
    model, data = network(), points(400)
    found = plan(model, data, 400, epochs=20)
    problem = Problem(model, TensorSource(*data, torch.device("cpu")), sb.Categorical(), sb.TensorwisePrior(model))
    usual = sb.preset(problem, epochs=20)
    trainer = usual.objective.trainer(problem, usual.schedule, usual.optimiser)
    state = trainer.init(torch.Generator().manual_seed(0))
    for _ in range(2):
        trainer.epoch(state)
    weights = sum(weight.nbytes for weight in model.parameters())
    assert found.memory["weights"] == found.memory["gradients"] == weights
    descent = state.descent
    held = [*descent.means, *descent.squares, *descent._pulls, *descent._places]
    held += [side for rotation in descent.rotations if rotation is not None for side in rotation.sides().values()]
    assert sum(tensor.nbytes for tensor in held) <= found.memory["optimiser"] <= 1.1 * sum(tensor.nbytes for tensor in held)
    running = sum(mean.nbytes for mean in state.running._means.values())
    assert running <= found.memory["factors, running and of a batch"] <= 2.1 * running
    assert found.batch_size == usual.schedule.batch_size == 25
    assert found.epochs == 20


def test_time_is_measured_and_grows_with_the_data():
    model = network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = plan(model, points(32), 32_000, epochs=10)
    assert found.gradient > 0
    assert found.factors > 0
    assert found.epoch > 1 + found.factors / 10
    assert found.total > 10 * found.epoch
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_search_looks_at_half_of_the_data_or_fewer():
    few, many, more = (plan(network(), points(8), n, epochs=20).products for n in (1000, 100_000, 200_000))
    search = ScaleSearch()
    trials = (3 + search.tries) * search.steps  # before it, of all symmetry, of every scale, and of the finish
    assert few - many == pytest.approx(trials * (0.5 - search.data / 100_000))
    assert many - more == pytest.approx(trials * search.data / 200_000)


def test_the_command_says_what_is_needed_or_what_is_wrong():
    command = ["plan", "tests.training.test_plan:network", "--inputs", "1,8,8", "--data", "1000"]
    said = CliRunner().invoke(app, command)
    assert said.exit_code == 0, said.output
    assert "1,215 weights, 1,000 data in batches of 62" in said.output
    assert "memory, together" in said.output
    wrong = CliRunner().invoke(app, ["plan", "tests.training.test_plan", "--inputs", "1,8,8", "--data", "1000"])
    assert wrong.exit_code == 2
    assert "package.module:function" in wrong.output
    for model, inputs, message in (("network", "1x8x8", "with commas"), ("flat", "4", "outputs")):
        command = ["plan", f"tests.training.test_plan:{model}", "--inputs", inputs, "--data", "1000"]
        wrong = CliRunner().invoke(app, command)
        assert wrong.exit_code == 2
        assert message in wrong.output


def flat():
    return nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))
