"""The perceptron of energies: its value by hand, and its gradient as autograd gives it."""

import pytest
import torch
from torch.func import functional_call, vmap
from torch.testing import assert_close

from symbayes.dynamics.network import ACTIVATIONS, Perceptron
from symbayes.dynamics.phase import gradient


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("size", "width", "hidden"), [(2, 5, 1), (4, 7, 2), (6, 3, 4), (1, 1, 1)])
def test_its_gradient_is_that_of_autograd(size, width, hidden, activation, generator):
    net = Perceptron(size, width, hidden, activation=activation, generator=generator).double()
    states = torch.randn(9, size, generator=generator, dtype=torch.float64)
    assert_close(net.gradient(states), gradient(lambda x: net(x)[:, 0], states), rtol=1e-12, atol=1e-12)


def test_its_value_by_hand():
    net = Perceptron(2, 1, 1)
    with torch.no_grad():
        net.layers[0].weight.copy_(torch.tensor([[1.0, -2.0]]))
        net.layers[0].bias.fill_(0.5)
        net.last.weight.fill_(3.0)
    before = torch.tensor(1.0 * 0.3 - 2.0 * 0.4 + 0.5)
    assert_close(net(torch.tensor([[0.3, 0.4]])), (3 * before.exp().log1p()).view(1, 1))


def test_its_gradient_can_be_differentiated_in_the_weights(generator):
    net = Perceptron(2, 3, 2, generator=generator).double()
    states = torch.randn(4, 2, generator=generator, dtype=torch.float64)
    names = [name for name, _ in net.named_parameters()]

    class Gradient(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            return self.net.gradient(x)

    def of(*values):
        return functional_call(Gradient(), {f"net.{n}": v for n, v in zip(names, values, strict=True)}, (states,))

    assert torch.autograd.gradcheck(of, tuple(net.parameters()))


def test_it_works_for_many_weights_at_once(generator):
    net = Perceptron(2, 3, 2, generator=generator).double()
    states = torch.randn(4, 2, generator=generator, dtype=torch.float64)
    many = {name: torch.stack([value, -value]) for name, value in net.named_parameters()}
    found = vmap(lambda of: functional_call(net, of, (states,)))(many)
    assert_close(found[0], net(states))


def test_initial_weights_follow_the_generator():
    first, second = (Perceptron(2, generator=torch.Generator().manual_seed(3)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert first.last.bias is None


def test_sizes_below_one_are_refused():
    with pytest.raises(ValueError, match="size, width and hidden must be at least 1; got 2, 0 and 1"):
        Perceptron(2, 0, 1)
    with pytest.raises(ValueError, match="activation must be one of softplus, elu; got 'relu'"):
        Perceptron(2, activation="relu")
