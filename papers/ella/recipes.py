"""How the networks of ELLA's tables are trained: a recipe for each table, network and method."""

from dataclasses import dataclass, replace

from symbayes.curvature.fisher import MonteCarloFisher
from symbayes.curvature.kfac import Kfac
from symbayes.evidence.objective import ByCurvature, Laplace, Map

METHODS = ("map", "evidence")
#: Networks of more than a hundred million weights, whose factors of up to 10 240 features take seconds to decompose.
LARGE = ("fc", "fc+conv")
#: Networks with a factor of 1 024 features for every channel, which takes as long to decompose as some epochs of training.
FACTORED = ("f-fc", "f-fc+conv", "s-fc-u", "s-fc+s-conv-u", "s-fc-omega", "s-fc+s-conv-omega", "mixed")

_RULE, _EXACT = Kfac(MonteCarloFisher()), Kfac()
_MAP = Map(_RULE, _EXACT, running=10, turned=2)
_EVIDENCE = Laplace.amortised(rule=_RULE, final_rule=_EXACT)


@dataclass(frozen=True)
class Recipe:
    """How a row is trained.

    Args:
        objective: What is maximised.
        epochs: Passes over the data.
        batch_size: Data in a step.
        learning_rate: Of Adam after warming up; it falls to zero along a cosine.
        warm_up: Share of the epochs in which it rises.
        augment: Whether photographs are flipped and cropped at random, image by image; digits never are.
        symmetric_start: Whether paths that break a symmetry which another keeps begin switched off.
    """

    objective: ByCurvature = _EVIDENCE
    epochs: int = 30
    batch_size: int = 250
    learning_rate: float = 6e-3
    warm_up: float = 0.1
    augment: bool = False
    symmetric_start: bool = False


#: By table and method, before what photographs and large networks take. To try another schedule, change it here.
_RECIPES: dict[str, dict[str, Recipe]] = {
    "table1": {"map": Recipe(_MAP), "evidence": Recipe(_EVIDENCE)},
    "table2": {"map": Recipe(_MAP), "evidence": Recipe(replace(_EVIDENCE, frequency=2), symmetric_start=True)},
    "table3": {"map": Recipe(_MAP), "evidence": Recipe(_EVIDENCE, symmetric_start=True)},
}


def is_photographs(task: str) -> bool:
    """Whether the data of a task are photographs, not digits."""
    return task.endswith("cifar10")


def recipe(table: str, task: str, network: str, method: str) -> Recipe:
    """How a row is trained.

    Photographs take more epochs than digits, and are augmented. Curvature of many features is decomposed seldom. The final
    evidence of large networks is by one random column. Where their dense paths begin on, they have a lower learning rate,
    because tensors of so many features are not turned, and fewer epochs.
    """
    usual = _RECIPES[table][method]
    if is_photographs(task):
        usual = replace(usual, epochs=100, augment=True)
    if network in FACTORED:
        every = 4 if usual.epochs >= 50 else 2
        seldom = replace(usual.objective, turned=every)
        return replace(usual, objective=replace(seldom, frequency=every) if isinstance(seldom, Laplace) else seldom)
    if network not in LARGE:
        return usual
    objective = replace(usual.objective, final_rule=None, turned=4)
    if isinstance(objective, Laplace):
        objective = replace(objective, frequency=4)
    large = replace(usual, objective=objective)
    begins_on = network == "fc" or not usual.symmetric_start
    return replace(large, epochs=min(usual.epochs, 50), learning_rate=2e-3) if begins_on else large
