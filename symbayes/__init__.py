"""symbayes learns the symmetries of a neural network from its training data, by Bayesian model selection."""

from symbayes.curvature.diagonal import Diagonal
from symbayes.curvature.ekfac import Ekfac
from symbayes.curvature.fisher import EmpiricalFisher, ExactFisher, MonteCarloFisher
from symbayes.curvature.ggn import Ggn
from symbayes.curvature.kernel import Kernel
from symbayes.curvature.kfac import Kfac
from symbayes.curvature.lanczos import Lanczos
from symbayes.curvature.preconditioned import Preconditioned
from symbayes.curvature.subsets import Subsets
from symbayes.data.augment import FlipCrop
from symbayes.data.load import load
from symbayes.data.task import Task
from symbayes.discovery.discover import discover
from symbayes.discovery.discovery import Discovery
from symbayes.discovery.search import Search
from symbayes.dynamics.integrators import Euler, ImplicitMidpoint, Leapfrog, Midpoint, RungeKutta
from symbayes.dynamics.network import HamiltonianNetwork
from symbayes.dynamics.neural import NeuralObservables
from symbayes.dynamics.observables import Quadratics
from symbayes.dynamics.quadratic import conserved_quadratics, euclidean, unitary
from symbayes.dynamics.simulate import simulate
from symbayes.dynamics.systems import System, system
from symbayes.dynamics.trajectories import Trajectories, load_trajectories
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
from symbayes.training.loading import load_result
from symbayes.training.result import Result
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
    "Discovery",
    "Ekfac",
    "Elbo",
    "EmpiricalFisher",
    "Euler",
    "Evidence",
    "ExactFisher",
    "FactoredPath",
    "FilterBank",
    "FlipCrop",
    "FullCovariance",
    "Gaussian",
    "Ggn",
    "GroupConvPath",
    "GroupPool",
    "HamiltonianNetwork",
    "HiddenUnits",
    "ImplicitMidpoint",
    "Kernel",
    "Kfac",
    "Lanczos",
    "Laplace",
    "LayerwisePrior",
    "Leapfrog",
    "Map",
    "MatrixNormal",
    "MeanField",
    "Midpoint",
    "MonteCarloFisher",
    "NeuralObservables",
    "NoPosteriorError",
    "NotFiniteError",
    "OrbitAverage",
    "OrbitPath",
    "Path",
    "PathwisePrior",
    "Permutations",
    "Posterior",
    "Preconditioned",
    "Prediction",
    "Quadratics",
    "RelaxedLayer",
    "Result",
    "RungeKutta",
    "ScalarPrior",
    "Schedule",
    "Search",
    "SeparableGroupPath",
    "SpaceGroup",
    "SparseConvPath",
    "SparseFactoredPath",
    "Subsets",
    "System",
    "Task",
    "TensorwisePrior",
    "Trajectories",
    "Translation",
    "affine1d",
    "affine2d",
    "allconv",
    "automorphisms",
    "board",
    "check_units",
    "colours",
    "conserved_quadratics",
    "copies",
    "cube",
    "cyclic",
    "dihedral",
    "discover",
    "euclidean",
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
    "load_trajectories",
    "mlp",
    "p4",
    "p4m",
    "pairs",
    "predict",
    "residual",
    "simulate",
    "small_cnn",
    "symmetric",
    "system",
    "unitary",
]
