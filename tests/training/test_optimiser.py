"""The implicit prior: stable for every precision, and at rest where the posterior is."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from symbayes.training.optimiser import WIDE, ProximalAdam, Rotation


def test_it_comes_to_rest_at_the_mode_of_the_posterior(generator):
    features = torch.randn(30, 3, generator=generator, dtype=torch.float64)
    targets = torch.randn(30, generator=generator, dtype=torch.float64)
    weight = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    optimiser = ProximalAdam([weight])
    for step in range(4000):
        loss = (features @ weight - targets).square().mean() / 2
        optimiser.set(0.05 * 0.998**step, [5.0 / 30])
        optimiser.step(torch.autograd.grad(loss, [weight]))
    wanted = torch.linalg.solve(features.T @ features + 5.0 * torch.eye(3, dtype=torch.float64), features.T @ targets)
    assert_close(weight.detach(), wanted, rtol=1e-3, atol=1e-5)


def test_huge_precisions_switch_weights_off_and_nothing_diverges(generator):
    weights = [nn.Parameter(torch.randn(4, generator=generator)) for _ in range(2)]
    optimiser = ProximalAdam(weights)
    for _ in range(50):
        loss = sum((weight - 1).square().sum() for weight in weights)
        optimiser.set(0.1, [1e12, 0.0])
        optimiser.step(torch.autograd.grad(loss, weights))
    assert_close(weights[0].detach(), torch.zeros(4), rtol=0, atol=1e-6)
    assert_close(weights[1].detach(), torch.ones(4), rtol=0, atol=0.3)


def test_without_a_prior_it_is_torch_s_adam(generator):
    start = torch.randn(5, generator=generator, dtype=torch.float64)
    ours, theirs = (nn.Parameter(start.clone()) for _ in range(2))
    optimiser, reference = ProximalAdam([ours]), torch.optim.Adam([theirs], lr=0.03)
    for _ in range(20):
        optimiser.set(0.03, [0.0])
        optimiser.step(torch.autograd.grad((ours**4).sum(), [ours]))
        reference.zero_grad()
        (theirs**4).sum().backward()
        reference.step()
    assert_close(ours, theirs)


@pytest.mark.parametrize("rotated", [False, True])
def test_slow_parameters_move_as_alone_at_a_lower_rate(rotated, generator):
    starts = [torch.randn(3, 4, generator=generator, dtype=torch.float64) for _ in range(2)]
    gradients = [[torch.randn(3, 4, generator=generator, dtype=torch.float64) for _ in range(2)] for _ in range(5)]
    together = [nn.Parameter(start.clone()) for start in starts]
    alone = [nn.Parameter(start.clone()) for start in starts]
    optimisers = [ProximalAdam(together), ProximalAdam(alone[:1]), ProximalAdam(alone[1:])]
    optimisers[0].slow, optimisers[0].share = [False, True], 0.1
    optimisers[0].set(0.03, [2.0, 5.0])
    optimisers[1].set(0.03, [2.0])
    optimisers[2].set(0.003, [5.0])
    if rotated:
        for optimiser in optimisers:
            turn = Rotation((1, 3, 4), torch.linalg.qr(starts[0] @ starts[0].T).Q[None], None)
            optimiser.rotate([turn for _ in optimiser.parameters])
    for first, second in gradients:
        optimisers[0].step((first, second))
        optimisers[1].step((first,))
        optimisers[2].step((second,))
    assert_close(together, alone)


@pytest.mark.parametrize("slow", [False, True])
def test_wide_matrices_move_at_a_third_of_the_rate_or_a_tenth(slow, generator):
    starts = [torch.randn(WIDE + 1, WIDE + 1, generator=generator), torch.randn(3, WIDE + 1, generator=generator)]
    gradients = [torch.randn(start.shape, generator=generator) for start in starts]
    moved = [nn.Parameter(start.clone()) for start in starts]
    together = ProximalAdam(moved)
    together.slow, together.share = [slow, slow], 0.5
    together.set(0.03, [2.0, 2.0])
    together.step(tuple(gradients))
    for index, rate in enumerate((0.03 * 0.5 * 0.1, 0.03 * 0.5) if slow else (0.01, 0.03)):
        alone = nn.Parameter(starts[index][:3].clone())  # which is not wide on both sides
        optimiser = ProximalAdam([alone])
        optimiser.set(rate, [2.0])
        optimiser.step((gradients[index][:3],))
        assert_close(moved[index][:3], alone)


def test_what_was_saved_when_all_parameters_moved_alike_is_read(generator):
    weights = [nn.Parameter(torch.randn(3, generator=generator))]
    optimiser = ProximalAdam(weights)
    optimiser.set(0.1, [1.0])
    saved = optimiser.state_dict()
    optimiser.step((torch.ones(3),))
    saved["numbers"] = saved["numbers"][:2].clone()
    again = ProximalAdam(weights)
    again.load_state_dict(saved)
    assert float(again.steps) == 1
