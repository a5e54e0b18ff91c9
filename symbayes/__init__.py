"""symbayes learns the symmetries of a neural network from its training data, by Bayesian model selection."""

from typing import TYPE_CHECKING, Any

from symbayes import curvature, dynamics, groups, layers, loggers, models, posterior, surgery
from symbayes.curvature.kfac import Kfac
from symbayes.curvature.rule import Rule
from symbayes.data.load import load
from symbayes.data.packed import Packed
from symbayes.data.task import Task
from symbayes.data.transform import FlipCrop
from symbayes.dynamics.discover import discover
from symbayes.dynamics.discovery import Discovery
from symbayes.equivariance import equivariance
from symbayes.errors import NoPosteriorError, NotFiniteError
from symbayes.evidence.evidence import Evidence, evidence_gradient, laplace_evidence
from symbayes.evidence.exact import exact_evidence
from symbayes.groups.grids import flips, p4m
from symbayes.groups.lie import affine2d
from symbayes.invariance.discrete_average import DiscreteAverage
from symbayes.invariance.filters import FilterBank
from symbayes.invariance.orbit_average import OrbitAverage
from symbayes.layers.path import Path
from symbayes.layers.relaxed import RelaxedLayer
from symbayes.likelihoods.classes import Bernoulli, Categorical, Ordinal
from symbayes.likelihoods.counts import NegativeBinomial, Poisson
from symbayes.likelihoods.likelihood import Likelihood
from symbayes.likelihoods.positions import AtPositions, PerPosition
from symbayes.likelihoods.values import Gaussian, Heteroscedastic
from symbayes.models import allconv
from symbayes.posterior.families import MatrixNormal, MeanField
from symbayes.posterior.laplace import laplace_posterior
from symbayes.posterior.posterior import Posterior
from symbayes.posterior.predict import Prediction, predict
from symbayes.priors import LayerwisePrior, PathwisePrior, ScalarPrior, TensorwisePrior
from symbayes.surgery import harden, prune, relax
from symbayes.training.augmentations import Augmentations, augmentations
from symbayes.training.by_curvature import Augerino, Laplace, Map
from symbayes.training.elbo import Elbo
from symbayes.training.fit import fit, preset
from symbayes.training.loading import load_result
from symbayes.training.optimiser import Optimiser
from symbayes.training.result import Result
from symbayes.training.trainer import Objective, Schedule

if TYPE_CHECKING:
    from symbayes.sklearn import SymmetryClassifier, SymmetryRegressor

__version__ = "0.1.0"

__all__ = [
    "AtPositions",
    "Augerino",
    "Augmentations",
    "Bernoulli",
    "Categorical",
    "Discovery",
    "DiscreteAverage",
    "Elbo",
    "Evidence",
    "FilterBank",
    "FlipCrop",
    "Gaussian",
    "Heteroscedastic",
    "Kfac",
    "Laplace",
    "LayerwisePrior",
    "Likelihood",
    "Map",
    "MatrixNormal",
    "MeanField",
    "NegativeBinomial",
    "NoPosteriorError",
    "NotFiniteError",
    "Objective",
    "Optimiser",
    "OrbitAverage",
    "Ordinal",
    "Packed",
    "Path",
    "PathwisePrior",
    "PerPosition",
    "Poisson",
    "Posterior",
    "Prediction",
    "RelaxedLayer",
    "Result",
    "Rule",
    "ScalarPrior",
    "Schedule",
    "SymmetryClassifier",
    "SymmetryRegressor",
    "Task",
    "TensorwisePrior",
    "affine2d",
    "allconv",
    "augmentations",
    "curvature",
    "discover",
    "dynamics",
    "equivariance",
    "evidence_gradient",
    "exact_evidence",
    "fit",
    "flips",
    "groups",
    "harden",
    "laplace_evidence",
    "laplace_posterior",
    "layers",
    "load",
    "load_result",
    "loggers",
    "models",
    "p4m",
    "posterior",
    "predict",
    "preset",
    "prune",
    "relax",
    "surgery",
]


def __getattr__(name: str) -> Any:
    """Estimators of scikit-learn, which is slow to import, when they are first used."""
    if name not in ("SymmetryClassifier", "SymmetryRegressor"):
        raise AttributeError(f"module 'symbayes' has no attribute {name!r}")
    from symbayes import sklearn

    return getattr(sklearn, name)
