"""How the networks of ELLA's tables are trained: as `sb.fit` does, for every table, network and method alike."""

from dataclasses import dataclass

from symbayes.training.fit import preset
from symbayes.training.optimiser import Optimiser
from symbayes.training.trainer import Objective, Problem, Schedule

METHODS = ("map", "evidence")
#: Passes over the data: photographs take more than digits.
_EPOCHS_OF_PHOTOGRAPHS, _EPOCHS_OF_DIGITS = 100, 30


@dataclass(frozen=True)
class Recipe:
    """How a row is trained.

    Args:
        objective: What is maximised.
        optimiser: How weights are moved.
        schedule: How long and how fast.
        augment: Whether photographs are flipped and cropped at random, image by image; digits never are.
    """

    objective: Objective
    optimiser: Optimiser
    schedule: Schedule
    augment: bool = False


def is_photographs(task: str) -> bool:
    """Whether the data of a task are photographs, not digits."""
    return task.endswith("cifar10")


def recipe(problem: Problem, task: str, method: str, epochs: int | None = None) -> Recipe:
    """How a row is trained: by the preset, for as many epochs by MAP as by the evidence.

    By MAP all precisions stay at 1, and the evidence is estimated as for rows that maximise it.

    Args:
        problem: The network, its data and its prior.
        task: Which says how long, and whether images are augmented.
        method: "map" or "evidence".
        epochs: If not as usual.
    """
    photographs = is_photographs(task)
    usual = preset(problem, epochs=epochs or (_EPOCHS_OF_PHOTOGRAPHS if photographs else _EPOCHS_OF_DIGITS))
    chosen = usual if method == "evidence" else usual.by_map()
    return Recipe(chosen.objective, chosen.optimiser, chosen.schedule, augment=photographs)
