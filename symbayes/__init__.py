"""symbayes learns the symmetries of a neural network from its training data, by Bayesian model selection."""

from symbayes.curvature.diagonal import Diagonal
from symbayes.curvature.ekfac import Ekfac
from symbayes.curvature.fisher import EmpiricalFisher, ExactFisher, MonteCarloFisher
from symbayes.curvature.ggn import Ggn
from symbayes.curvature.kernel import Kernel
from symbayes.curvature.kfac import Kfac
from symbayes.curvature.lanczos import Lanczos
from symbayes.curvature.subsets import Subsets
from symbayes.data.load import load
from symbayes.data.task import Task
from symbayes.errors import NoPosteriorError, NotFiniteError
from symbayes.evidence.elbo import Elbo
from symbayes.evidence.exact import exact_evidence
from symbayes.evidence.gradient import evidence_gradient
from symbayes.evidence.laplace import laplace_evidence
from symbayes.evidence.objective import Augerino, Laplace, Map
from symbayes.evidence.terms import Evidence
from symbayes.groups.actions import board, copies, cyclic, dihedral, pairs, symmetric
from symbayes.groups.graph import automorphisms
from symbayes.groups.permutation import Permutations, from_table
from symbayes.groups.space import SpaceGroup, cube, flips, p4, p4m
from symbayes.groups.translation import Translation
from symbayes.groups.warp import affine1d, affine2d, colours
from symbayes.invariance.filter_bank import FilterBank
from symbayes.invariance.orbit_average import OrbitAverage
from symbayes.layers.conv import ConvPath
from symbayes.layers.dense import DensePath
from symbayes.layers.factored import FactoredPath
from symbayes.layers.group_conv import GroupConvPath, GroupPool, SeparableGroupPath
from symbayes.layers.orbit import OrbitPath
from symbayes.layers.path import Path
from symbayes.layers.relaxed import RelaxedLayer
from symbayes.layers.sparse import SparseConvPath, SparseFactoredPath
from symbayes.likelihoods import Bernoulli, Categorical, Gaussian
from symbayes.models.allconv import allconv
from symbayes.models.lila import lenet, mlp, residual, small_cnn
from symbayes.posterior.calibration import Calibration
from symbayes.posterior.families import FullCovariance, MatrixNormal, MeanField
from symbayes.posterior.laplace import laplace_posterior
from symbayes.posterior.permutations import HiddenUnits
from symbayes.posterior.posterior import Posterior
from symbayes.posterior.prediction import Prediction
from symbayes.posterior.predictive import predict
from symbayes.posterior.units import check_units, hidden_units
from symbayes.priors import LayerwisePrior, PathwisePrior, ScalarPrior, TensorwisePrior
from symbayes.training.fit import fit
from symbayes.training.result import Result, load_result
from symbayes.training.schedule import Schedule

__version__ = "0.1.0"

__all__ = [
    "Augerino",
    "Bernoulli",
    "Calibration",
    "Categorical",
    "ConvPath",
    "DensePath",
    "Diagonal",
    "Ekfac",
    "Elbo",
    "EmpiricalFisher",
    "Evidence",
    "ExactFisher",
    "FactoredPath",
    "FilterBank",
    "FullCovariance",
    "Gaussian",
    "Ggn",
    "GroupConvPath",
    "GroupPool",
    "HiddenUnits",
    "Kernel",
    "Kfac",
    "Lanczos",
    "Laplace",
    "LayerwisePrior",
    "Map",
    "MatrixNormal",
    "MeanField",
    "MonteCarloFisher",
    "NoPosteriorError",
    "NotFiniteError",
    "OrbitAverage",
    "OrbitPath",
    "Path",
    "PathwisePrior",
    "Permutations",
    "Posterior",
    "Prediction",
    "RelaxedLayer",
    "Result",
    "ScalarPrior",
    "Schedule",
    "SeparableGroupPath",
    "SpaceGroup",
    "SparseConvPath",
    "SparseFactoredPath",
    "Subsets",
    "Task",
    "TensorwisePrior",
    "Translation",
    "affine1d",
    "affine2d",
    "allconv",
    "automorphisms",
    "board",
    "check_units",
    "colours",
    "copies",
    "cube",
    "cyclic",
    "dihedral",
    "evidence_gradient",
    "exact_evidence",
    "fit",
    "flips",
    "from_table",
    "hidden_units",
    "laplace_evidence",
    "laplace_posterior",
    "lenet",
    "load",
    "load_result",
    "mlp",
    "p4",
    "p4m",
    "pairs",
    "predict",
    "residual",
    "small_cnn",
    "symmetric",
]
