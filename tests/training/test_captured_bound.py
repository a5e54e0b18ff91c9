"""Steps of the bound that are captured: what they read is what steps from the CPU draw, and they end where those do."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from symbayes.data.source import as_source
from symbayes.dynamics.network import HamiltonianNetwork, Perceptron
from symbayes.dynamics.observables import Quadratics
from symbayes.likelihoods.values import Gaussian
from symbayes.posterior.families import MatrixNormal
from symbayes.priors import TensorwisePrior
from symbayes.training import elbo
from symbayes.training.elbo import Elbo
from symbayes.training.hyper import adam_over, adam_state, load_adam, set_rates
from symbayes.training.trainer import Problem, Schedule
from tests.replays import captured_into, from_cpu, on_a_card, replayed

DATA = 46  # four batches of ten, and six that are left


pytestmark = pytest.mark.usefixtures("types_without_draws")


def learned(steps, device="cpu", dtype=torch.float64, epochs=6, **settings):
    """Weights, observables and evidence after training with these steps."""
    generator = torch.Generator().manual_seed(0)
    net = Perceptron(4, 8, 1, generator=generator)
    observables = Quadratics.random(2, 4, 0.1, generator=generator)
    model = HamiltonianNetwork(net, 0.1, observables, samples=4).to(device, dtype)
    inputs = torch.randn(DATA, 4, generator=generator, dtype=dtype)
    data = as_source((inputs, inputs.flip(1)), torch.device(device))
    problem = Problem(model, data, Gaussian(0.3).to(device, dtype), TensorwisePrior(model).to(device))
    objective = Elbo(MatrixNormal(biases="deterministic"), local=False, annealing=0.3, **settings)
    trainer = objective.trainer(problem, Schedule(epochs, 10, 0.01, 0.0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(elbo, "steps_for", steps)
        state = trainer.init(torch.Generator().manual_seed(1))
        records = [trainer.epoch(state) for _ in range(epochs)]
    found = {name: value.detach().clone() for name, value in model.named_parameters()}
    return found, [record.evidence.total for record in records], model.passes


def same(one, other, **tolerance):
    assert_close(one[0], other[0], **tolerance)
    assert_close(torch.tensor(one[1]), torch.tensor(other[1]), **tolerance)
    assert one[2] == other[2]


def test_what_is_drawn_ahead_is_what_every_pass_draws():
    one = learned(replayed)
    same(one, learned(from_cpu), rtol=0, atol=0)
    assert one[2] == 6 * 5


def test_sums_are_as_precise_as_the_loss():
    data = as_source((torch.zeros(46, 2), torch.zeros(46)), torch.device("cpu"))
    for dtype in (torch.float32, torch.float64):
        given = (data, 10, lambda batch, dtype=dtype: torch.tensor(1 / 3, dtype=dtype), None, lambda: True, [], None)
        one, other = (make(*given).epoch(torch.Generator().manual_seed(0)) for make in (replayed, from_cpu))
        assert one.dtype == other.dtype == dtype
        assert_close(one, other, rtol=0, atol=0)


def test_steps_that_keep_gradients_are_not_captured():
    seen = []

    def noticing(*given):
        steps = replayed(*given)
        steps._capture = seen.append
        return steps

    same(learned(noticing, hyper_every=2), learned(from_cpu, hyper_every=2), rtol=0, atol=0)
    assert not seen
    learned(noticing, epochs=2)
    assert seen


def test_memories_of_adam_come_back_in_the_precision_of_their_parameter():
    """As where a state is loaded on another device."""
    weight = nn.Parameter(torch.ones(3))
    adam = adam_over([{"params": [weight]}])
    set_rates(adam, [0.1])
    weight.grad = torch.ones(3)
    adam.step()
    other = nn.Parameter(torch.ones(3, dtype=torch.float64))
    anew = adam_over([{"params": [other]}])
    set_rates(anew, [0.1])
    load_adam(anew, adam_state(adam))
    other.grad = torch.ones(3, dtype=torch.float64)
    anew.step()
    assert other.dtype == torch.float64


@on_a_card
def test_captured_steps_of_the_bound_are_those_from_the_cpu():
    captured = []
    one = learned(captured_into(captured), device="cuda")
    assert captured[0]._graphs
    same(one, learned(from_cpu, device="cuda"), rtol=1e-9, atol=1e-12)
