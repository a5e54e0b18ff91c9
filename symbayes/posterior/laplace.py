from torch import nn

from symbayes.curvature.rule import Curvature
from symbayes.posterior.posterior import Posterior
from symbayes.priors import Prior


def laplace_posterior(curvature: Curvature, model: nn.Module, prior: Prior) -> Posterior:
    raise NotImplementedError
