"""Posteriors over weights, their families, and predictions."""

from symbayes.posterior.families import Family, FullCovariance, MatrixNormal, MeanField
from symbayes.posterior.laplace import laplace_posterior
from symbayes.posterior.posterior import Posterior
from symbayes.posterior.predict import Calibration, Prediction, predict
from symbayes.posterior.tempering import tempered
from symbayes.posterior.units import HiddenUnits, check_units, hidden_units

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
    "tempered",
]
