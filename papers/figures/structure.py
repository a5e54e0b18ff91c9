"""From matrices that mix tokens to convolutions: a network without convolutions is relaxed, learned and hardened.

The network is an MLP-mixer (Tolstikhin et al. 2021) whose channels are mixed over tokens group by group, each by a matrix with
a weight for every pair of tokens. Beside each matrix stands a convolution over the grid of tokens, as one path among two.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from symbayes.data.task import Task
from symbayes.data.transform import FlipCrop
from symbayes.surgery.harden import hardened
from symbayes.surgery.relax import relax
from symbayes.training.fit import fit

#: Data by which is told which paths are used.
_LOOKED_AT = 256
_PATCH = 2
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
    #: Layers that mix tokens: all, and those that are convolutions alone once they are hardened.
    layers: int
    convolutions: int
    #: Of the relaxed network, and of the hardened one.
    parameters: tuple[int, int]
    operations: tuple[int, int]
    accuracy: tuple[float, float]
    nll: tuple[float, float]
    seconds: float


class MixerBlock(nn.Module):
    """Tokens are mixed group by group of channels, then channels at every token; both beside a shortcut."""

    def __init__(self, channels: int, tokens: int, groups: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.tokens = nn.ModuleList(nn.Linear(tokens, tokens) for _ in range(groups))
        self.channels = nn.Sequential(nn.Linear(channels, 2 * channels), nn.GELU(), nn.Linear(2 * channels, channels))

    def forward(self, inputs: Tensor) -> Tensor:
        parts = self.norm1(inputs).transpose(1, 2).chunk(len(self.tokens), dim=1)
        mixed = torch.cat([mix(part) for mix, part in zip(self.tokens, parts, strict=True)], dim=1)
        hidden = inputs + functional.gelu(mixed).transpose(1, 2)
        given: Tensor = hidden + self.channels(self.norm2(hidden))
        return given


class Mixer(nn.Module):
    """Patches of 2×2 pixels are tokens, which blocks mix; their mean is classified."""

    def __init__(self, task: Task, channels: int, groups: int, depth: int) -> None:
        super().__init__()
        colours, *sides = task.train[0].shape[1:]
        self.grid = tuple(side // _PATCH for side in sides)
        self.patches = nn.Linear(colours * _PATCH**2, channels)
        self.blocks = nn.Sequential(*(MixerBlock(channels, self.grid[0] * self.grid[1], groups) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(channels), nn.Linear(channels, task.classes)

    def forward(self, images: Tensor) -> Tensor:
        patches = functional.pixel_unshuffle(images, _PATCH).flatten(2).transpose(1, 2)
        given: Tensor = self.head(self.norm(self.blocks(self.patches(patches))).mean(1))
        return given


def structures(
    task: Task,
    channels: int,
    groups: int,
    depth: int,
    epochs: int,
    seeds: Sequence[int],
    device: str,
    say: Callable[[str], None],
) -> Iterator[tuple[Row, nn.Module]]:
    """Networks that were learned and hardened, seed by seed, with what there is to say of them."""
    for seed in seeds:
        say(f"seed {seed}: training")
        with torch.random.fork_rng():  # layers of torch draw their weights from the global generator
            torch.manual_seed(seed)
            mixer = Mixer(task, channels, groups, depth)
        example = task.train[0][:_LOOKED_AT]
        model = relax(mixer, example[:8], "conv", "*.tokens.*", grid=mixer.grid, generator=torch.Generator().manual_seed(seed))
        augment = FlipCrop() if "cifar10" in task.name else None
        result = fit(model.to(device), task.train, epochs=epochs, augment=augment, seed=seed, progress=False)
        before, evidence = _scores(result.model, task), result.evidence
        for off in OFF:
            say(f"seed {seed}: hardening")
            found = hardened(result.model, example.to(device), off=off)
            after = _scores(found.model, task)
            row = Row(
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
                (before[1], after[1]),
                result.history[-1].seconds,
            )
            yield row, found.model


@torch.no_grad()
def _scores(model: nn.Module, task: Task) -> tuple[float, float]:
    """Accuracy and loss on test data."""
    device, right, loss = next(model.parameters()).device, 0, 0.0
    model.eval()
    for inputs, targets in zip(task.test[0].split(500), task.test[1].split(500), strict=True):
        outputs = model(inputs.to(device)).cpu()
        right += int((outputs.argmax(1) == targets.cpu()).sum())
        loss += float(functional.cross_entropy(outputs, targets.cpu(), reduction="sum"))
    return right / len(task.test[0]), loss / len(task.test[0])
