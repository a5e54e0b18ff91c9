"""From matrices to convolutions: a network without convolutions is relaxed, learned and hardened.

A residual network looks at all features of an image at once, by matrices with a weight for every pair of them, and at each cell
by itself. Beside each matrix stands a convolution over the grid of cells, as one path of two.
"""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from papers.ella.recipes import is_photographs
from papers.figures.pruning import scores, tuned
from papers.rows import refuse_partial
from symbayes.curvature.evaluate import evaluating
from symbayes.data.task import Task
from symbayes.data.transform import FlipCrop
from symbayes.surgery.harden import hardened
from symbayes.surgery.relax import relax
from symbayes.training.fit import fit

#: Data by which is told which paths are used.
_LOOKED_AT = 256
#: Shares of the variance of outputs that hardening may change.
OFF = (1e-3, 1e-2)


@dataclass(frozen=True)
class Row:
    """One network, in plain numbers."""

    task: str
    seed: int
    epochs: int
    #: What hardening was allowed to change, as a share of the variance of outputs.
    off: float
    log_evidence: float
    standard_error: float | None
    estimator: str
    #: Layers over all features: all, and those that are convolutions alone once they are hardened.
    layers: int
    convolutions: int
    #: Of the relaxed network, and of the hardened one.
    parameters: tuple[int, int]
    operations: tuple[int, int]
    accuracy: tuple[float, float]
    #: Of the hardened one after some epochs by MAP; None where there were none.
    tuned: float | None
    nll: tuple[float, float]
    seconds: float


class Block(nn.Module):
    """Two branches beside a shortcut: one matrix for all features, and a small network for every cell."""

    def __init__(self, channels: int, cells: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        self.whole = nn.Linear(channels * cells, channels * cells)
        self.cells = nn.Sequential(nn.Linear(channels, 2 * channels), nn.ReLU(), nn.Linear(2 * channels, channels))

    def forward(self, maps: Tensor) -> Tensor:
        maps = maps + self.whole(torch.relu(self.norm1(maps)).flatten(1)).view_as(maps)
        hidden: Tensor = self.cells(torch.relu(self.norm2(maps)).movedim(1, -1))
        return maps + hidden.movedim(-1, 1)


class Merge(nn.Module):
    """Four cells become one, by a matrix that all of them share."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.four = nn.Linear(4 * channels, width)

    def forward(self, maps: Tensor) -> Tensor:
        given: Tensor = self.four(functional.pixel_unshuffle(maps, 2).movedim(1, -1))
        return given.movedim(-1, 1)


def fully_connected(task: Task, width: int, blocks: Sequence[int]) -> nn.Sequential:
    """Stages of blocks; from one to the next the sides of the grid are halved, and there are four times the channels.

    Raises:
        ValueError: If images are too small for so many stages.
    """
    channels, side, layers = task.train[0].shape[1], task.train[0].shape[-1], list[nn.Module]()
    if side % 2 ** len(blocks):
        raise ValueError(f"The side of images must be a multiple of 2 for every stage; {side} is not for {len(blocks)} stages.")
    for stage, count in enumerate(blocks):
        side, wider = side // 2, width * 4**stage
        layers += [Merge(channels, wider), *(Block(wider, side**2) for _ in range(count))]
        channels = wider
    last = nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, task.classes)
    return nn.Sequential(*layers, *last)


def relaxed(network: nn.Sequential, images: Tensor, generator: torch.Generator) -> nn.Module:
    """Every matrix over all features beside a convolution over the grid that they lie on."""
    model: nn.Module = network
    maps = images
    for name, layer in network.named_children():
        if isinstance(layer, Block):
            grid = tuple(maps.shape[2:])
            model = relax(model, images, "conv", f"{name}.whole", grid=grid, generator=generator)
        with evaluating(network), torch.no_grad():
            maps = layer(maps)
    return model


def structures(
    task: Task,
    width: int,
    blocks: Sequence[int],
    epochs: int,
    tuning: int,
    seeds: Sequence[int],
    device: str,
    say: Callable[[str], None],
) -> Iterator[Row]:
    """Networks that were learned and hardened, seed by seed, and what there is to say of them."""
    for seed in seeds:
        say(f"seed {seed}: training")
        with torch.random.fork_rng():  # layers of torch draw their weights from the global generator
            torch.manual_seed(seed)
            network = fully_connected(task, width, blocks)
        example = task.train[0][:_LOOKED_AT]
        model = relaxed(network, example[:8], torch.Generator().manual_seed(seed))
        augment = FlipCrop() if is_photographs(task.name) else None
        result = fit(model.to(device), task.train, epochs=epochs, augment=augment, seed=seed, progress=False)
        refuse_partial(result)
        before, evidence = scores(result.model, task), result.evidence
        for off in OFF:
            say(f"seed {seed}: hardening")
            found = hardened(result.model, example.to(device), off=off)
            after = scores(found.model, task)
            say(f"seed {seed}: tuning")
            in_the_end = tuned(deepcopy(found.model), task, tuning, seed) if tuning else None
            yield Row(
                task.name,
                seed,
                epochs,
                off,
                result.log_evidence / result.num_data,
                None if evidence.standard_error is None else evidence.standard_error / result.num_data,
                evidence.estimator,
                len(found.layers),
                sum(kept == "conv" for _, kept in found.layers.values()),
                found.parameters,
                found.operations,
                (before[0], after[0]),
                in_the_end,
                (before[1], after[1]),
                result.history[-1].seconds,
            )
