"""Rules by which the curvature of a log-likelihood is found."""

from symbayes.curvature.diagonal import Diagonal
from symbayes.curvature.ggn import Ggn
from symbayes.curvature.kernel import Subsets, TangentKernel
from symbayes.curvature.kfac import Ekfac, Kfac
from symbayes.curvature.lanczos import Lanczos, Preconditioned
from symbayes.curvature.memory import memory_budget
from symbayes.curvature.rule import Curvature, EmpiricalFisher, ExactFisher, Fisher, MonteCarloFisher, Rule

__all__ = [
    "Curvature",
    "Diagonal",
    "Ekfac",
    "EmpiricalFisher",
    "ExactFisher",
    "Fisher",
    "Ggn",
    "Kfac",
    "Lanczos",
    "MonteCarloFisher",
    "Preconditioned",
    "Rule",
    "Subsets",
    "TangentKernel",
    "memory_budget",
]
