"""p(y | f): what the outputs of a network mean."""

from symbayes.likelihoods.classes import Bernoulli, Categorical, Ordinal
from symbayes.likelihoods.counts import NegativeBinomial, Poisson
from symbayes.likelihoods.likelihood import Likelihood, is_registered, register, registered
from symbayes.likelihoods.positions import AtPositions, PerPosition
from symbayes.likelihoods.values import Gaussian, Heteroscedastic

__all__ = [
    "AtPositions",
    "Bernoulli",
    "Categorical",
    "Gaussian",
    "Heteroscedastic",
    "Likelihood",
    "NegativeBinomial",
    "Ordinal",
    "PerPosition",
    "Poisson",
    "is_registered",
    "register",
    "registered",
]
