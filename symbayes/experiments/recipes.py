"""How the networks of ELLA's tables are trained: a recipe for each table and method."""

from dataclasses import dataclass, field

from symbayes.curvature.fisher import MonteCarloFisher
from symbayes.curvature.kfac import Kfac
from symbayes.evidence.objective import Laplace, Map, Objective

METHODS = ("map", "evidence")


def _evidence() -> Objective:
    return Laplace(Kfac(MonteCarloFisher()), frequency=1, damping=0.5, burn_in=0.15, cool_down=0.2)


def _map() -> Objective:
    return Map(Kfac(MonteCarloFisher()))


@dataclass(frozen=True)
class Recipe:
    """How a row is trained.

    Args:
        objective: What is maximised.
        epochs: Passes over the data.
        batch_size: Data in a step.
        learning_rate: Of Adam at the start; it falls to zero along a cosine.
        augment: Whether photographs are flipped and cropped at random, image by image; digits never are.
    """

    objective: Objective = field(default_factory=_evidence)
    epochs: int = 30
    batch_size: int = 250
    learning_rate: float = 3e-3
    augment: bool = False


#: By table and method. To try another schedule, change it here.
RECIPES: dict[str, dict[str, Recipe]] = {
    "table1": {"map": Recipe(_map()), "evidence": Recipe(_evidence())},
    "table2": {"map": Recipe(_map(), 150, augment=True), "evidence": Recipe(_evidence(), 150, augment=True)},
    "table3": {"map": Recipe(_map(), 60, augment=True), "evidence": Recipe(_evidence(), 60, augment=True)},
}
