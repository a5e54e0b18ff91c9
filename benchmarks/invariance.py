"""What learning extents costs: curvature and the gradient through it, in gradients of the same averaged network."""

from collections.abc import Callable

import torch

from benchmarks.timing import Timing, interleaved
from symbayes.curvature.kfac import Kfac
from symbayes.curvature.rule import MonteCarloFisher
from symbayes.data.source import TensorSource
from symbayes.evidence.evidence import gradient_through
from symbayes.groups.lie import affine2d
from symbayes.invariance.orbit_average import OrbitAverage
from symbayes.likelihoods.classes import Categorical
from symbayes.models import lenet
from symbayes.priors import TensorwisePrior

SAMPLES = 8
#: Of the data, for the gradient in extents: what training uses by default, and all.
SHARES = (0.25, 1.0)


def measure_invariance(size: int, batch_size: int, repeats: int) -> dict[str, Timing]:
    """LeNet on images of MNIST's size, averaged over transformations: each part in units of one gradient pass over the data."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(size, 1, 28, 28, generator=generator)
    targets = torch.randint(0, 10, (size,), generator=generator)
    model = OrbitAverage(lenet((inputs, targets), generator=generator), affine2d(), SAMPLES)
    data, likelihood, prior = TensorSource(inputs, targets, torch.device("cpu")), Categorical(), TensorwisePrior(model)
    rule = Kfac(MonteCarloFisher(), batch_size=batch_size)
    weights = list(model.net.parameters())
    with torch.no_grad():
        known = rule.curvature(model, data, likelihood, generator=generator)

    def gradient() -> None:
        for x, y in data.batches(batch_size):
            torch.autograd.grad(-likelihood.log_prob(model(x), y).mean(), weights)

    @torch.no_grad()
    def evidence() -> None:
        rule.curvature(model, data, likelihood, generator=generator).log_det(prior.precisions())

    def through(share: float) -> Callable[[], object]:
        return lambda: gradient_through(known, prior, [model.orbit.value], share, generator)

    cases: dict[str, Callable[[], object]] = {"gradient": gradient, "evidence": evidence}
    cases |= {f"through, {share:g} of the data": through(share) for share in SHARES}
    return interleaved(cases, "gradient", repeats)
