"""Training as a generator of records: it prints, plots and saves nothing, and alone changes what is learned."""

from torch import Generator

from symbayes.evidence.elbo import Elbo
from symbayes.evidence.objective import ByCurvature, Objective
from symbayes.training.by_curvature import train_by_curvature
from symbayes.training.problem import Problem
from symbayes.training.schedule import Schedule, Training
from symbayes.training.variational import train_variational


def train(problem: Problem, objective: Objective, schedule: Schedule, *, generator: Generator) -> Training:
    """Weights and, unless the objective keeps them, precisions, noise and extents together; a record after every epoch.

    Returns:
        A generator of records, which returns what gives the posterior.

    Raises:
        NotFiniteError: If the loss stops being a number.
        TypeError: If the objective is of no known kind.
    """
    match objective:
        case Elbo():
            return train_variational(problem, objective, schedule, generator)
        case ByCurvature():
            return train_by_curvature(problem, objective, schedule, generator)
        case _:
            raise TypeError(f"The objective must be a Laplace, Map, Augerino or Elbo; got {type(objective).__name__}.")
