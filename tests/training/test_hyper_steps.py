"""How often the evidence lower bound moves hyperparameters, and by which gradients."""

import pytest
import torch
from torch import Tensor, nn

import symbayes as sb
from symbayes.data.source import as_source
from symbayes.layout import Hyperparameter
from symbayes.training.trainer import Problem, train


class Scaled(nn.Module):
    """A linear map of scaled inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.log_scale = Hyperparameter(torch.zeros(()))
        self.linear = nn.Linear(1, 1, bias=False)
        with torch.no_grad():
            self.linear.weight.fill_(0.5)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.linear((self.log_scale.exp() * inputs).tanh())


def scales(hyper_every: int, *, batch_size: int = 8, epochs: int = 8, annealing: float = 0.0) -> list[float]:
    """The hyperparameter after every epoch."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.linspace(-2, 2, 8)[:, None]
    targets = (3 * inputs).tanh() + 0.05 * torch.randn(8, 1, generator=generator)
    model = Scaled()
    problem = Problem(model, as_source((inputs, targets), torch.device("cpu")), sb.Gaussian(0.1), sb.TensorwisePrior(model))
    objective = sb.Elbo(sb.posterior.FullCovariance(), annealing=annealing, extent_rate=0.05, hyper_every=hyper_every)
    schedule = sb.Schedule(epochs, batch_size, 0.01)
    return [model.log_scale.item() for _ in train(problem, objective, schedule, generator=generator)]


def test_hyperparameters_rest_between_steps():
    found = [0.0, *scales(hyper_every=3)]
    moved = [epoch for epoch in range(1, 9) if found[epoch] != found[epoch - 1]]
    assert moved == [3, 6]


def test_batches_do_not_count():
    found = [0.0, *scales(hyper_every=4, batch_size=2)]
    assert [epoch for epoch in range(1, 9) if found[epoch] != found[epoch - 1]] == [4, 8]


def test_periods_begin_after_the_warm_up():
    found = [0.0, *scales(hyper_every=2, annealing=0.375)]  # of 8 epochs, the third is the first in full
    assert [epoch for epoch in range(1, 9) if found[epoch] != found[epoch - 1]] == [4, 6, 8]


def test_a_step_goes_down_the_mean_gradient_of_the_second_half(monkeypatch):
    seen, steps = [], []
    grad = torch.autograd.grad

    def watch(*arguments, **options):
        found = grad(*arguments, **options)
        if isinstance(arguments[1][-1], Hyperparameter):  # otherwise it is asked what weights are used for
            seen.append(found[-1].item())
        return found

    monkeypatch.setattr(torch.autograd, "grad", watch)
    monkeypatch.setattr("symbayes.training.hyper.HyperAdam.step", lambda self, gradients: steps.append(gradients))
    scales(hyper_every=4)
    assert len(seen) == 8
    assert [gradient.item() for (gradient,) in steps] == [pytest.approx(sum(seen[i : i + 2]) / 2) for i in (2, 6)]


def test_no_epochs_between_steps_are_refused():
    with pytest.raises(ValueError, match=r"hyper_every must be at least 1, a step of hyperparameters with every batch; got 0"):
        sb.Elbo(hyper_every=0)


def test_a_schedule_without_a_step_of_hyperparameters_is_refused():
    with pytest.raises(ValueError, match=r"every 5 epochs after the annealing.* there are 4 of 6"):
        scales(hyper_every=5, epochs=6, annealing=0.5)
