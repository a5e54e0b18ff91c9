"""Steps in an eigenbasis: plain steps on rotated parameters, with what is known of gradients carried over."""

import torch
from torch import nn
from torch.testing import assert_close

from symbayes.training.optimiser import ProximalAdam, Rotation


def rotation_of(generator, shape=(1, 3, 4)):
    sides = [torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64)).Q for n in shape[1:]]
    return Rotation(shape, sides[0][None], sides[1][None])


def parameters(generator):
    return [nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64)) for shape in ((3, 4), (3,))]


def gradients(weights):
    """Of a loss that is not the same in all coordinates."""
    return torch.autograd.grad(sum((k + 1) * ((w - k) ** 4).sum() for k, w in enumerate(weights)), weights)


def test_rotated_steps_are_plain_steps_on_rotated_parameters(generator):
    ours = parameters(generator)
    R = rotation_of(generator)
    theirs = [nn.Parameter(R.into(ours[0]).detach().clone()), nn.Parameter(ours[1].detach().clone())]
    rotated, plain = ProximalAdam(ours, (0.9, 0.99)), ProximalAdam(theirs, (0.9, 0.99))
    rotated.rotate([R, None])
    for step in range(30):
        for optimiser in (rotated, plain):
            optimiser.set(0.1 / (1 + step), [2.0, 0.7])
        found = gradients([R.back(theirs[0].detach()).requires_grad_(), theirs[1]])
        plain.step((R.into(found[0]), found[1]))
        rotated.step(gradients(ours))
        assert_close(ours[0].detach(), R.back(theirs[0].detach()))
        assert_close(ours[1], theirs[1])


def test_rotating_changes_no_weight_and_carries_the_gradients_over(generator):
    weights = parameters(generator)
    optimiser = ProximalAdam(weights)
    optimiser.set(0.1, [0.5, 0.5])
    for _ in range(4):
        optimiser.step(gradients(weights))
    before = [weight.detach().clone() for weight in weights]
    mean, squares = optimiser.means[0].clone(), optimiser.squares[0].clone()
    first, second = rotation_of(generator), rotation_of(generator)
    old = torch.eye(12, dtype=torch.float64)
    for R in (first, second):
        optimiser.rotate([Rotation(R.shape, R.left.clone(), R.right.clone()), None])
        assert_close(R.back(optimiser.means[0]), mean)  # the same vector
        new = torch.kron(R.left[0].T.contiguous(), R.right[0].T.contiguous())
        squares = (new @ old.T).square() @ squares.flatten()  # variances of what is independent in the old coordinates
        assert_close(optimiser.squares[0].flatten(), squares)
        old = new
        assert_close(weights[0].detach(), before[0], rtol=0, atol=0)
    assert_close(optimiser.rotations[0].into(mean), second.into(mean), rtol=0, atol=0)
    optimiser.rotate([None, None])  # as before
    assert_close(second.back(optimiser.means[0]), mean)
    optimiser.step(gradients(weights))
    assert not torch.equal(weights[0].detach(), before[0])


def test_a_step_after_a_second_rotation_is_of_the_weights_there_are(generator):
    """Coordinates that are kept from step to step must follow the rotation."""
    weights = parameters(generator)
    optimiser = ProximalAdam(weights)
    for _ in range(3):
        optimiser.set(0.1, [0.5, 0.5])
        optimiser.rotate([rotation_of(generator), None])
        optimiser.step(gradients(weights))
    before = weights[0].detach().clone()
    optimiser.rotate([rotation_of(generator), None])
    optimiser.set(0.0, [0.5, 0.5])
    optimiser.step(gradients(weights))
    assert_close(weights[0].detach(), before)


def test_where_the_curvature_is_a_kronecker_product_rotated_steps_are_far_fewer(generator):
    left, right = (torch.linalg.qr(torch.randn(8, 8, generator=generator, dtype=torch.float64)).Q for _ in range(2))
    scales = torch.logspace(0, -3, 8, dtype=torch.float64)
    G, A = left * scales @ left.T, right * scales @ right.T

    def steps(rotated):
        weight = nn.Parameter(torch.zeros(8, 8, dtype=torch.float64))
        goal = left @ torch.ones(8, 8, dtype=torch.float64) @ right.T
        optimiser = ProximalAdam([weight], (0.9, 0.99))
        if rotated:
            optimiser.rotate([Rotation((1, 8, 8), left[None], right[None])])
        for count in range(3000):
            error = weight - goal
            loss = (error * (G @ error @ A)).sum() / 2
            # Errors must vanish along directions of little curvature, too.
            if error.detach().norm() < 0.05 * goal.norm():
                return count
            optimiser.set(0.03 * 0.999**count, [0.0])
            optimiser.step(torch.autograd.grad(loss, [weight]))
        return count

    assert steps(rotated=True) < 200
    assert steps(rotated=False) > 5 * steps(rotated=True)
