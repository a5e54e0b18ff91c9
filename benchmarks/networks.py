"""The networks that are measured, in plain torch so that a peer can run the same ones."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from symbayes.models import build_allconv

#: Channels in and out, size of the input map and stride of the eight blocks of the paper at width 10.
BLOCKS = (
    (3, 10, 32, 1),
    (10, 20, 32, 2),
    (20, 20, 16, 1),
    (20, 40, 16, 2),
    (40, 40, 8, 1),
    (40, 80, 8, 2),
    (80, 80, 4, 2),
    (80, 160, 2, 2),
)


@dataclass(frozen=True)
class Network:
    """A network by name, with the shape of its inputs."""

    name: str
    title: str
    in_shape: tuple[int, ...]
    build: Callable[[], nn.Module]


def allconv_paths() -> nn.Module:
    """The paper's CONV network of our own paths, subsampled equivariantly."""
    return build_allconv((3, 32, 32), 10, ("conv",), 10, generator=torch.Generator().manual_seed(0))


def allconv_relaxed() -> nn.Module:
    """The paper's F-FC+CONV."""
    return build_allconv((3, 32, 32), 10, ("factored", "conv"), 10, generator=torch.Generator().manual_seed(0))


def allconv_plain() -> nn.Sequential:
    """The same network of `nn.Conv2d`: circular padding, the same strides, kept positions at the origin."""
    layers: list[nn.Module] = []
    for c_in, c_out, _, stride in BLOCKS:
        layers += [nn.Conv2d(c_in, c_out, 3, stride, padding=1, padding_mode="circular"), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(160, 640), nn.ReLU(), nn.Linear(640, 10))


def cnn() -> nn.Sequential:
    """A usual CNN: three convolutions of 32, 64 and 64 channels with max pooling, then 1024-128-10."""
    layers: list[nn.Module] = []
    for c_in, c_out in ((3, 32), (32, 64), (64, 64)):
        layers += [nn.Conv2d(c_in, c_out, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 10))


def mlp() -> nn.Sequential:
    """784-256-256-10."""
    return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))


NETWORKS = {
    network.name: network
    for network in (
        Network("allconv-paths", "CONV network, width 10, of paths", (3, 32, 32), allconv_paths),
        Network("allconv", "CONV network, width 10, of nn.Conv2d", (3, 32, 32), allconv_plain),
        Network("cnn", "CNN 32-64-64, 1024-128-10", (3, 32, 32), cnn),
        Network("mlp", "MLP 784-256-256-10", (784,), mlp),
    )
}


def data_for(network: Network, size: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Random inputs of unit variance and random classes."""
    return torch.randn(size, *network.in_shape, generator=generator), torch.randint(10, (size,), generator=generator)
