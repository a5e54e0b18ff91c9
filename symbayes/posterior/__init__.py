"""Posteriors over weights, their families, and predictions."""

from symbayes.posterior.calibration import Calibration
from symbayes.posterior.families import Family, FullCovariance, MatrixNormal, MeanField
from symbayes.posterior.laplace import laplace_posterior
from symbayes.posterior.permutations import HiddenUnits
from symbayes.posterior.posterior import Posterior
from symbayes.posterior.predict import Prediction, predict
from symbayes.posterior.units import check_units, hidden_units

__all__ = [
    "Calibration",
    "Family",
    "FullCovariance",
    "HiddenUnits",
    "MatrixNormal",
    "MeanField",
    "Posterior",
    "Prediction",
    "check_units",
    "hidden_units",
    "laplace_posterior",
    "predict",
]
