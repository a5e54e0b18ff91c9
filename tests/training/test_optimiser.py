"""The implicit prior: stable for every precision, and at rest where the posterior is."""

import torch
from torch import nn
from torch.testing import assert_close

from symbayes.training.optimiser import ProximalAdam


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
