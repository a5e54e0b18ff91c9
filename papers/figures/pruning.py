"""How far networks can be pruned: by the surgeon and by magnitude, in one shot and in several, and with the same tuning."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import mean, stdev

import torch
from torch import Tensor, nn
from torch.nn import functional

from papers.ella.recipes import is_photographs
from papers.rows import refuse_partial
from symbayes.curvature.kfac import Kfac
from symbayes.curvature.rule import MonteCarloFisher
from symbayes.data.task import Task
from symbayes.data.transform import FlipCrop
from symbayes.models import allconv
from symbayes.priors import Prior, TensorwisePrior
from symbayes.surgery.harden import harden
from symbayes.surgery.prune import pruned
from symbayes.training.by_curvature import Laplace, Map
from symbayes.training.fit import fit
from symbayes.training.result import Result
from symbayes.training.trainer import Schedule

KEEPS = (0.5, 0.3, 0.2, 0.1)
SHOTS = (1, 5)
UNITS = ("channels", "weights")
#: Pruning is by up to so many data; of tuning, the learning rate.
_DATA, _RATE = 2000, 1e-3


@dataclass(frozen=True)
class Row:
    """One pruned network, in plain numbers."""

    task: str
    network: str
    seed: int
    units: str
    by: str
    shots: int
    keep: float
    #: Those that are left, and those there were.
    parameters: int
    whole: int
    #: For a datum, likewise.
    operations: int
    operations_of_whole: int
    #: On test data: of the whole network, once it is pruned, and once it is tuned; single weights are not, which would not stay
    #: zero.
    accuracy_of_whole: float
    accuracy: float
    tuned: float | None


def small(task: Task, generator: torch.Generator) -> nn.Module:
    """Three convolutions and two linear layers."""
    channels, side = task.train[0].shape[1], task.train[0].shape[-1]
    cells = ((side + 3) // 4 // 2) ** 2
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(),
        nn.Conv2d(32, 32, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(32 * cells, 64), nn.ReLU(), nn.Linear(64, task.classes),
    )  # fmt: skip


def conv(task: Task, generator: torch.Generator) -> nn.Module:
    """CONV of ELLA's tables, as plain layers."""
    model = allconv(task, ("conv",), equivariant_stride=False, generator=generator)
    return harden(model, task.train[0][:8], off=0.0)


class BasicBlock(nn.Module):
    """Two convolutions beside a shortcut (He et al. 2016)."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or channels != width:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.relu(self.norm1(self.conv1(inputs)))
        return torch.relu(self.norm2(self.conv2(hidden)) + self.shortcut(inputs))


def resnet18(task: Task, generator: torch.Generator) -> nn.Module:
    """ResNet-18 as it is for CIFAR-10: a first convolution of 3×3 and no pooling before the blocks."""
    widths = (64, 64, 128, 128, 256, 256, 512, 512)
    strides = (1, 1, 2, 1, 2, 1, 2, 1)
    blocks = [BasicBlock(c, d, s) for c, d, s in zip((64, *widths), widths, strides, strict=False)]
    first = nn.Conv2d(task.train[0].shape[1], 64, 3, 1, 1, bias=False)
    last = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, task.classes)
    return nn.Sequential(first, nn.BatchNorm2d(64), nn.ReLU(), *blocks, *last)


NETWORKS: dict[str, Callable[[Task, torch.Generator], nn.Module]] = {"small": small, "conv": conv, "resnet18": resnet18}


def prunings(
    task: Task,
    networks: Iterable[tuple[int, Result]],
    network: str,
    tuning: int,
    units: Sequence[str],
    say: Callable[[str], None],
) -> Iterator[Row]:
    """Prune trained networks, each with its seed, in every way, and tune what is left."""
    data = task.train[0][:_DATA], task.train[1][:_DATA]
    for seed, result in networks:
        whole, _ = scores(result.model, task)
        for of, keep, by, shots in product(units, KEEPS, ("surgeon", "magnitude"), SHOTS):
            say(f"seed {seed}: {100 * keep:g} % of {of} by {by}, shots {shots}")
            found = pruned(result.model, data, keep, by=by, units=of, prior=result.prior, shots=shots)
            accuracy, _ = scores(found.model, task)
            after = tuned(found.model, task, tuning, seed, result.prior) if of == "channels" else None
            sizes, counts = found.parameters, found.operations
            yield Row(
                task.name, network, seed, of, by, shots, keep, sizes[1], sizes[0], counts[1], counts[0], whole, accuracy, after
            )


def trained(
    task: Task, network: str, epochs: int, seeds: Sequence[int], device: str, say: Callable[[str], None]
) -> Iterator[tuple[int, Result]]:
    """Networks by the evidence, and their seeds."""
    for seed in seeds:
        say(f"seed {seed}: training")
        with torch.random.fork_rng():  # layers of torch draw their weights from the global generator
            torch.manual_seed(seed)
            model = NETWORKS[network](task, torch.Generator().manual_seed(seed)).to(device)
        # The full GGN of a large network, which a search of the scale would ask for, takes longer than its training.
        objective = Laplace(final_rule=Kfac(MonteCarloFisher())) if network == "resnet18" else None
        augment = _augmentation(task)
        result = fit(model, task.train, objective=objective, epochs=epochs, augment=augment, seed=seed, progress=False)
        yield seed, refuse_partial(result)


def _augmentation(task: Task) -> FlipCrop | None:
    return FlipCrop() if is_photographs(task.name) else None


def tuned(model: nn.Module, task: Task, epochs: int, seed: int, prior: Prior | None = None) -> float:
    """The accuracy of a smaller model after some epochs by MAP, under the prior of the whole one, or a precision of 1."""
    own = TensorwisePrior(model)
    if prior is not None:
        own.load_state_dict(prior.state_dict())
    objective, schedule = Map(Kfac(MonteCarloFisher())), Schedule(epochs=epochs, learning_rate=_RATE)
    augment = _augmentation(task)
    result = fit(
        model, task.train, prior=own, objective=objective, schedule=schedule, augment=augment, seed=seed, progress=False
    )
    refuse_partial(result)
    return scores(model, task)[0]


@torch.no_grad()
def scores(model: nn.Module, task: Task) -> tuple[float, float]:
    """Accuracy and loss on test data."""
    device, right, loss = next(model.parameters()).device, 0, 0.0
    model.eval()
    for inputs, targets in zip(task.test[0].split(500), task.test[1].split(500), strict=True):
        outputs = model(inputs.to(device)).cpu()
        right += int((outputs.argmax(1) == targets.cpu()).sum())
        loss += float(functional.cross_entropy(outputs, targets.cpu(), reduction="sum"))
    return right / len(task.test[0]), loss / len(task.test[0])


def means(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Over seeds, in words: keep, units, by, shots, operations, and accuracies with their standard deviations, in percent."""
    found: list[tuple[str, ...]] = []
    for of, keep, by, shots in dict.fromkeys((row.units, row.keep, row.by, row.shots) for row in rows):
        some = [row for row in rows if (row.units, row.keep, row.by, row.shots) == (of, keep, by, shots)]
        after = [row.tuned for row in some if row.tuned is not None]
        operations = mean(row.operations / row.operations_of_whole for row in some)
        setting = f"{100 * keep:g} %", of, by, str(shots), f"{100 * operations:.0f} %"
        found.append((*setting, _spread([row.accuracy for row in some]), _spread(after)))
    return found


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "–"
    spread = f" ± {100 * stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * mean(values):.1f}{spread}"
