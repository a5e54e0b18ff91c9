"""Steps of averaged networks that are captured: what they read is what steps from the CPU draw, and they end where those do."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import symbayes as sb
from symbayes.data.source import as_source
from symbayes.groups.lie import affine2d, constant
from symbayes.training import by_curvature
from symbayes.training.by_curvature import Laplace
from symbayes.training.optimiser import PLAIN
from symbayes.training.trainer import Problem, Schedule
from tests.replays import captured_into, from_cpu, on_a_card, replayed

pytestmark = pytest.mark.usefixtures("types_without_draws")


def learned(steps, device="cpu", dtype=torch.float64, epochs=8, within=lambda model: model, **settings):
    """Weights, extents, losses and the number of passes after training with these steps."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(25, 6), nn.Tanh(), nn.Linear(6, 3))
    average = sb.OrbitAverage(net, affine2d("rotation", "scale").shared("scale"), samples=4, **settings)
    model = within(average).to(device, dtype)
    inputs = torch.randn(46, 1, 5, 5, generator=generator, dtype=dtype)  # four batches of ten, and six that are left
    data = as_source((inputs, torch.arange(46) % 3), torch.device(device))
    prior = sb.TensorwisePrior(model).to(device)
    problem = Problem(model, data, sb.Categorical(), prior)
    trainer = Laplace(extent_rate=0.05).trainer(problem, Schedule(epochs, 10, 0.01, 0.0), PLAIN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(by_curvature, "steps_for", steps)
        state = trainer.init(torch.Generator().manual_seed(1))
        records = [trainer.epoch(state) for _ in range(epochs)]
    found = {name: value.detach().clone() for name, value in model.named_parameters()}
    return found, torch.tensor([record.loss for record in records]), average.passes


@pytest.mark.parametrize("settings", [{}, {"antithetic": True}, {"stochastic": False}])
def test_what_is_drawn_ahead_is_what_every_pass_draws(settings):
    one, other = (learned(steps, **settings) for steps in (replayed, from_cpu))
    assert_close(one, other, rtol=0, atol=0)
    assert one[2] == (0 if "stochastic" in settings else 8 * 5)


def test_an_average_that_sees_several_copies_draws_for_all_of_them():
    mirrored = lambda average: sb.DiscreteAverage(average, [sb.groups.mirror("x")])  # noqa: E731
    one, other = (learned(steps, within=mirrored) for steps in (replayed, from_cpu))
    assert_close(one, other, rtol=0, atol=0)


class Twice(nn.Module):
    """Two passes in a step."""

    def __init__(self, average):
        super().__init__()
        self.average = average

    def forward(self, inputs):
        return self.average(inputs) + self.average(inputs.flip(3))


def test_every_pass_of_a_step_has_draws_of_its_own():
    one, other = (learned(steps, within=Twice) for steps in (replayed, from_cpu))
    assert_close(one, other, rtol=0, atol=0)
    assert one[2] == 8 * 5 * 2


def test_an_epoch_that_breaks_off_leaves_nothing_behind():
    average = sb.OrbitAverage(nn.Flatten(), affine2d("rotation"), samples=2)
    data = as_source((torch.randn(60, 1, 5, 5), torch.zeros(60)), torch.device("cpu"))
    breaks = False

    def step(batch):
        average(batch[0])
        if breaks:
            raise KeyboardInterrupt
        return torch.zeros(())

    run = replayed(data, 10, step, None, lambda: True, [], average)
    run.epoch(torch.Generator().manual_seed(0))
    assert average.passes == 6
    breaks = True
    with pytest.raises(KeyboardInterrupt):
        run.epoch(torch.Generator().manual_seed(1))
    average(torch.randn(3, 1, 5, 5))
    assert average.passes == 7
    assert set(vars(average)) == set(vars(sb.OrbitAverage(nn.Flatten(), affine2d("rotation"), samples=2)))


def test_constants_are_the_numbers():
    like = torch.empty(0, dtype=torch.float64)
    assert_close(constant([[1, 0.5], [0, -2]], like), torch.tensor([[1, 0.5], [0, -2]], dtype=torch.float64))


@on_a_card
def test_captured_steps_of_an_average_are_those_from_the_cpu():
    captured = []
    one = learned(captured_into(captured), device="cuda")
    assert captured[0]._graphs
    assert_close(one, learned(from_cpu, device="cuda"), rtol=1e-9, atol=1e-12)
    assert_close(constant([[1, 0.5], [0, -2]], torch.empty(0, device="cuda")).cpu(), torch.tensor([[1, 0.5], [0, -2]]))
