"""How the networks of ELLA's tables are trained: a recipe for each table, network and method."""

from dataclasses import dataclass, field

from symbayes.curvature.kfac import Kfac
from symbayes.curvature.rule import MonteCarloFisher
from symbayes.training.by_curvature import ByCurvature, Laplace, Map
from symbayes.training.optimiser import Optimiser
from symbayes.training.trainer import Schedule

METHODS = ("map", "evidence")
#: Networks of more than a hundred million weights, whose factors of up to 10 240 features take seconds to decompose.
LARGE = ("fc", "fc+conv")
#: Networks with a factor of 1 024 features for every channel, which takes as long to decompose as some epochs of training.
FACTORED = ("f-fc", "f-fc+conv", "s-fc-u", "s-fc+s-conv-u", "s-fc-omega", "s-fc+s-conv-omega", "mixed")
#: Tables in which paths that break a symmetry begin switched off, where the evidence is maximised.
_SYMMETRIC = ("table2", "table3")
_RULE, _EXACT = Kfac(MonteCarloFisher()), Kfac()


@dataclass(frozen=True)
class Recipe:
    """How a row is trained; by default as `sb.fit` does.

    Args:
        objective: What is maximised.
        optimiser: How weights are moved.
        schedule: How long and how fast.
        augment: Whether photographs are flipped and cropped at random, image by image; digits never are.
        symmetric_start: Whether paths that break a symmetry which another keeps begin switched off.
    """

    objective: ByCurvature = field(default_factory=lambda: Laplace(_RULE, _EXACT))
    optimiser: Optimiser = field(default_factory=Optimiser)
    schedule: Schedule = field(default_factory=lambda: Schedule(30))
    augment: bool = False
    symmetric_start: bool = False


def is_photographs(task: str) -> bool:
    """Whether the data of a task are photographs, not digits."""
    return task.endswith("cifar10")


def recipe(table: str, task: str, network: str, method: str) -> Recipe:
    """How a row is trained.

    Photographs take more epochs than digits, and are augmented. Curvature of many features is decomposed seldom. The final
    evidence of large networks is by one random column. Where their dense paths begin on, they have a lower learning rate,
    because tensors of so many features have no eigenbasis, and fewer epochs.
    """
    photographs, large = is_photographs(task), network in LARGE
    symmetric_start = method == "evidence" and table in _SYMMETRIC
    epochs = 100 if photographs else 30
    hyper_every, eigenbasis = 2 if table == "table2" else 1, 2
    if large or network in FACTORED:
        hyper_every = eigenbasis = 4 if large or epochs >= 50 else 2
    final = None if large else _EXACT
    schedule = Schedule(epochs)
    if large and (network == "fc" or not symmetric_start):
        schedule = Schedule(min(epochs, 50), learning_rate=2e-3)
    return Recipe(
        Laplace(_RULE, final, hyper_every=hyper_every) if method == "evidence" else Map(_RULE, final),
        Optimiser(eigenbasis=eigenbasis),
        schedule,
        augment=photographs,
        symmetric_start=symmetric_start,
    )
