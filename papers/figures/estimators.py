"""How far the estimators of the curvature are from the full GGN, on small relaxed networks trained on digits.

Dense references in double precision, so networks of a few thousand parameters and a part of the data.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from papers.data import load
from symbayes.curvature.diagonal import Diagonal
from symbayes.curvature.ggn import FullCurvature, Ggn
from symbayes.curvature.kernel import TangentKernel
from symbayes.curvature.kfac import Ekfac, Kfac
from symbayes.curvature.lanczos import Lanczos
from symbayes.curvature.rule import BlockCurvature, Curvature, EmpiricalFisher, MonteCarloFisher, Rule
from symbayes.data.source import TensorSource
from symbayes.likelihoods.classes import Categorical
from symbayes.models import allconv
from symbayes.priors import ScalarPrior, TensorwisePrior
from symbayes.training.by_curvature import Map
from symbayes.training.optimiser import PLAIN
from symbayes.training.trainer import Problem, Schedule, train

NETWORKS = (("conv",), ("factored", "conv"))
PRECISIONS = (1.0, 10.0, 100.0)
RULES: tuple[Rule, ...] = (
    Ggn(),
    Lanczos(probes=4, steps=60),
    TangentKernel(subset=100, subsets=2),
    Ggn(joint=False),
    Ekfac(),
    Kfac(),
    Kfac(pool_blocks=True),
    Kfac(sharing="reduce"),
    Kfac(MonteCarloFisher(1)),
    Kfac(EmpiricalFisher()),
    Diagonal(),
)


@dataclass(frozen=True)
class Row:
    """One estimator on one network: its trace, and its log|I + H/δ| for several δ."""

    estimator: str
    trace: float | None
    log_det: tuple[float, ...]


def compare(paths: tuple[str, ...], *, width: int, epochs: int, num_data: int, seed: int = 0) -> Iterator[Row]:
    """Train a network by MAP on placed digits, then estimate its curvature by every rule, the full GGN first."""
    task = load("placed-digits")
    generator = torch.Generator().manual_seed(seed)
    model = allconv(task, paths, width, generator=generator).double()
    inputs, targets = task.train[0][:num_data].double(), task.train[1][:num_data]
    source = TensorSource(inputs, targets, torch.device("cpu"))
    problem = Problem(model, source, Categorical(), TensorwisePrior(model))
    objective, schedule = Map(Diagonal(MonteCarloFisher())), Schedule(epochs, 128, 3e-3, warm_up=0.0)
    for _ in train(problem, objective, schedule, PLAIN, generator=generator):
        pass
    for rule in RULES:
        with torch.no_grad():
            curvature = rule.curvature(model, source, Categorical(), generator=torch.Generator().manual_seed(seed))
            log_det = tuple(float(curvature.log_det(ScalarPrior(model, delta).precisions())) for delta in PRECISIONS)
        yield Row(curvature.estimator, _trace(curvature), log_det)


def _trace(curvature: Curvature) -> float | None:
    match curvature:
        case FullCurvature():
            return float(curvature.H.trace())
        case BlockCurvature():
            return float(sum(curvature.trace().values()))
        case _:
            return None
