"""Points in the plane whose class does not change under turns of up to 80°: how far should a network be invariant?

There are three rings around the origin, of radius 1, 2 and 3. On each, one class has its middle above the origin and the other
below; from ring to ring they change places. A point is the middle of its class on its ring, turned by an angle that is uniform
within ±80°, plus Gaussian noise. So the class is kept by turns within a range, and by no full circle: that would tell nothing
apart. A perceptron 2–50–2 with tanh is averaged over turns of its input. Its extent is fixed, or learned by the evidence (full
GGN), or learned by the training loss.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import pi, radians
from typing import Any

import torch
from torch import Generator, Tensor

from papers.figures.toy_picture import picture
from papers.rows import refuse_partial
from symbayes.curvature.ggn import Ggn
from symbayes.groups.lie import affine2d
from symbayes.invariance.orbit_average import OrbitAverage
from symbayes.models import mlp
from symbayes.priors import TensorwisePrior
from symbayes.training.by_curvature import Augerino, Laplace
from symbayes.training.fit import fit
from symbayes.training.optimiser import PLAIN
from symbayes.training.trainer import Objective, Schedule

Numbers = dict[str, Any]
#: Called with the share of all work that is done, and what is trained next.
Progress = Callable[[float, str], None]

_RADII = (1.0, 2.0, 3.0)
#: Half the side of the square on which classes are drawn.
_REACH = 4.0
#: How long a run takes, relative to others: with the extent fixed, and learned in two ways.
_COST = {"fixed": 1.0, "evidence": 2.0, "training loss": 0.6}


@dataclass(frozen=True)
class Settings:
    """What all runs have in common.

    Args:
        data: Points to train on.
        extent: By how much points are turned at most, in degrees.
        noise: Standard deviation of the noise on both coordinates.
        test: Fresh points to test on.
        width: Hidden units.
        samples: Turns that the network is averaged over, the same for all points.
        epochs: Steps, each with all the data.
        precision: Of the prior at the start. Weights have to fit something before a prior can be learned.
        starts: First extents, in degrees, where they are learned.
        scan: Extents that are fixed, in degrees; with the first and the last there is a panel.
        cells: Along each side of the squares on which classes are drawn.
        seed: For data and initial weights.
    """

    data: int = 120
    extent: float = 80.0
    noise: float = 0.2
    test: int = 5000
    width: int = 50
    samples: int = 32
    epochs: int = 800
    precision: float = 0.01
    starts: tuple[float, ...] = (10.0, 45.0, 120.0)
    scan: tuple[float, ...] = (0.0, 30.0, 60.0, 70.0, 80.0, 90.0, 100.0, 120.0, 180.0)
    cells: int = 84
    seed: int = 0

    def __post_init__(self) -> None:
        if not (0 < self.extent < 90 and self.starts and len(self.scan) > 1):
            raise ValueError(
                "Classes of a ring do not overlap when extent is above 0 and below 90 degrees, and there must be a start and "
                f"two extents to scan; got extent={self.extent}, starts={self.starts} and scan={self.scan}."
            )


def run(settings: Settings | None = None, progress: Progress | None = None) -> Numbers:
    """Train at fixed extents, and learn them from several starts; plain numbers, with the picture as SVG under "picture"."""
    settings = settings or Settings()
    todo = [("fixed", extent) for extent in settings.scan]
    todo += [(by, start) for by in ("evidence", "training loss") for start in settings.starts]
    total, done = sum(_COST[by] for by, _ in todo), 0.0
    runs = []
    for by, start in todo:
        if progress:
            progress(done / total, f"{start:g}° {by}" if by == "fixed" else f"by {by}, from {start:g}°")
        runs.append(learn(settings, by, start))
        done += _COST[by]
    inputs, classes = points(settings, settings.data, settings.seed)
    data = [[round(x, 3), round(y, 3), label] for (x, y), label in zip(inputs.tolist(), classes.tolist(), strict=True)]
    found: Numbers = {"settings": asdict(settings), "reach": _REACH, "data": data, "runs": runs}
    return {**found, "picture": picture(found)}


def points(settings: Settings, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """So many points and their classes: as many on each ring and on each side as can be."""
    generator = torch.Generator().manual_seed(seed)
    index = torch.arange(count)
    ring, below = index % len(_RADII), index // len(_RADII) % 2
    turns = (2 * torch.rand(count, generator=generator) - 1) * radians(settings.extent)
    angles = pi / 2 + pi * below + turns
    middles = torch.tensor(_RADII)[ring, None] * torch.stack([angles.cos(), angles.sin()], 1)
    return middles + settings.noise * torch.randn(count, 2, generator=generator), (ring + below) % 2


def learn(settings: Settings, by: str, start: float) -> Numbers:
    """One run: the extent at the end and over epochs, the evidence, scores, and the probability of class 1 over the plane."""
    train, test = points(settings, settings.data, settings.seed), points(settings, settings.test, settings.seed + 1_000_003)
    model = _model(settings, train, start)
    model.orbit.requires_grad_(by != "fixed")
    result = fit(
        model,
        train,
        prior=TensorwisePrior(model, settings.precision),
        objective=_objective(by),
        optimiser=PLAIN,
        schedule=Schedule(settings.epochs, batch_size=settings.data, learning_rate=0.1, warm_up=0.0),
        seed=settings.seed,
        progress=False,
    )
    refuse_partial(result)
    seen, fresh = (result.evaluate(data, by="plug-in") for data in (train, test))
    return {
        "by": by,
        "start": start,
        "extent": model.extents["rotation"],
        "log_evidence": result.log_evidence / settings.data,
        "estimator": result.evidence.estimator,
        "training": {"accuracy": seen["accuracy"], "loss": seen["nll"]},
        "test": {"accuracy": fresh["accuracy"], "loss": fresh["nll"]},
        "history": [round(record.extents["rotation"], 2) for record in result.history],
        "surface": _surface(settings, model),
    }


def _model(settings: Settings, data: tuple[Tensor, Tensor], start: float) -> OrbitAverage:
    generator: Generator = torch.Generator().manual_seed(settings.seed)
    group = affine2d("rotation", on="points").starting(radians(start))
    net = mlp(data, settings.width, generator=generator)
    return OrbitAverage(net, group, settings.samples, stochastic=False, antithetic=True)


def _objective(by: str) -> Objective:
    if by == "training loss":
        return Augerino(Ggn(), strength=0.0, extent_rate=0.02)
    return Laplace(Ggn(), burn_in=0.25, cool_down=0.1, hyper_every=2, damping=0.5, extent_rate=0.05, extent_share=1.0)


@torch.no_grad()
def _surface(settings: Settings, model: OrbitAverage) -> list[list[float]]:
    """The probability of class 1 in the middle of every cell, the top row first."""
    middles = _REACH * ((2 * torch.arange(settings.cells) + 1) / settings.cells - 1)
    y, x = torch.meshgrid(-middles, middles, indexing="ij")
    probability = model(torch.stack([x, y], -1).flatten(0, 1)).softmax(1)[:, 1]
    return [[round(value, 3) for value in row] for row in probability.view(settings.cells, settings.cells).tolist()]
