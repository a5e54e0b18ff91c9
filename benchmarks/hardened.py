"""What a hardened network takes, in forward passes of the network that was written by hand with the same symmetry."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.networks import NETWORKS, data_for
from benchmarks.timing import Timing, interleaved
from symbayes.layers.relaxed import RelaxedLayer
from symbayes.surgery.harden import harden
from symbayes.surgery.relax import relax

STRICT, RELAXED, HARDENED = "strict", "relaxed", "hardened"
#: Sides and channels of the maps of a fully connected network that has become convolutional.
_SIDE, _CHANNELS = 14, 4


def measure_hardened(batch_size: int, repeats: int) -> dict[str, dict[str, Timing]]:
    """Networks whose second paths were switched off, and matrices of which convolutions are left."""
    generator = torch.Generator().manual_seed(0)
    found = {}
    for name in ("allconv", "cnn"):
        inputs, _ = data_for(NETWORKS[name], batch_size, generator)
        strict = NETWORKS[name].build()
        found[NETWORKS[name].title] = _measure(strict, relax(strict, inputs[:8], generator=generator), inputs, repeats)
    inputs = torch.randn(batch_size, _CHANNELS, _SIDE, _SIDE, generator=generator)
    relaxed = relax(_matrices(), inputs[:8], "conv", grid=(_SIDE, _SIDE), generator=generator)
    found["three matrices that became convolutions"] = _measure(_convolutions(), relaxed, inputs, repeats)
    return found


@torch.no_grad()
def _measure(strict: nn.Module, relaxed: nn.Module, inputs: Tensor, repeats: int) -> dict[str, Timing]:
    for layer in relaxed.modules():
        if isinstance(layer, RelaxedLayer):
            for name, path in layer.paths.items():
                for weight in path.parameters():
                    weight.normal_(0, 0.1) if name == "conv" else weight.zero_()
    networks = {STRICT: strict, RELAXED: relaxed, HARDENED: harden(relaxed, inputs[:8])}
    return interleaved({name: _forward(network.eval(), inputs) for name, network in networks.items()}, STRICT, repeats)


def _forward(network: nn.Module, inputs: Tensor) -> Callable[[], object]:
    @torch.no_grad()
    def run() -> None:
        network(inputs)

    return run


def _matrices() -> nn.Sequential:
    size = _CHANNELS * _SIDE**2
    linear = [layer for _ in range(3) for layer in (nn.Linear(size, size), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *linear, nn.Linear(size, 10))


def _convolutions() -> nn.Sequential:
    """Circular, as paths for linear layers are."""
    conv = partial(nn.Conv2d, _CHANNELS, _CHANNELS, 3, padding=1, padding_mode="circular")
    layers = [layer for _ in range(3) for layer in (conv(), nn.ReLU())]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(_CHANNELS * _SIDE**2, 10))
