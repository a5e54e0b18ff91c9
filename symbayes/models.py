"""The networks of the papers, as functions."""

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from math import ceil, log2, sqrt

import torch
from torch import Generator, Tensor, nn

from symbayes.data.task import Task
from symbayes.layers.conv import ConvPath
from symbayes.layers.dense import DensePath
from symbayes.layers.factored import FactoredPath
from symbayes.layers.relaxed import RelaxedLayer
from symbayes.layers.sparse import SparseConvPath, SparseFactoredPath
from symbayes.layers.subsample import centre, divides

_log = logging.getLogger("symbayes")

_CHANNELS = (1, 2, 2, 4, 4, 8, 8, 16)
#: Blocks in the order in which they are given a stride of 2, as many as the input needs.
_STRIDE_ORDER = (7, 5, 3, 1, 6, 4, 2, 0)

Shape = tuple[int, ...]


def _conv(inputs: Shape, outputs: Shape, stride: int, scale: float, generator: Generator | None) -> nn.Module:
    kernel = (3,) * (len(inputs) - 1)
    return ConvPath(inputs[0], outputs[0], kernel, stride=stride, scale=scale, generator=generator)


def _dense(inputs: Shape, outputs: Shape, stride: int, scale: float, generator: Generator | None) -> nn.Module:
    return DensePath(inputs, outputs, scale=scale, generator=generator)


def _factored(inputs: Shape, outputs: Shape, stride: int, scale: float, generator: Generator | None) -> nn.Module:
    return FactoredPath(inputs, outputs, scale=scale, generator=generator)


def _sparse(
    inputs: Shape, outputs: Shape, stride: int, scale: float, generator: Generator | None, learn: bool = False
) -> nn.Module:
    return SparseFactoredPath(inputs, outputs, learn_lengthscale=learn, scale=scale, generator=generator)


def _sparse_conv(
    inputs: Shape,
    outputs: Shape,
    stride: int,
    scale: float,
    generator: Generator | None,
    learn: bool = False,
    anchors: float = 0.5,
) -> nn.Module:
    kernel = (3,) * (len(inputs) - 1)
    return SparseConvPath(
        inputs[0], outputs[0], kernel, anchors=anchors, learn_lengthscale=learn, stride=stride, scale=scale,
        generator=generator,
    )  # fmt: skip


#: How to build a path of a block, by name.
PATHS: dict[str, Callable[[Shape, Shape, int, float, Generator | None], nn.Module]] = {
    "dense": _dense,
    "factored": _factored,
    "conv": _conv,
    "sparse": _sparse,
    "sparse_conv": _sparse_conv,
}


_SYMMETRIC = {"conv", "sparse_conv"}
#: Initial standard deviation of the output of a path that breaks a symmetry, relative to one that keeps it.
RELAXATION = 0.03


class AllConv(nn.Sequential):
    """Blocks of relaxed layers and ReLUs, then two linear layers; `description` says how it was laid out.

    All strides go through the centre of the input, so that with convolutions alone the network is exactly invariant.
    """

    #: What `allconv` was called with, in plain numbers and words, so that a saved result can be built again.
    recipe: dict[str, object]
    description: str

    def forward(self, inputs: Tensor) -> Tensor:
        features, cell = inputs, centre(inputs)
        for layer in self:
            if isinstance(layer, RelaxedLayer):
                features = layer(features, cell)
                cell = cell // layer.stride
            else:
                features = layer(features)
        return features


def allconv(
    data: Task | tuple[Tensor, Tensor],
    paths: Sequence[str] = ("factored", "conv"),
    width: int = 10,
    *,
    filter_anchors: float = 0.5,
    learn_lengthscales: bool = False,
    generator: Generator | None = None,
) -> AllConv:
    """ELLA's network for a task: eight blocks of width a, 2a, 2a, 4a, 4a, 8a, 8a, 16a and a head of 64a units.

    As many blocks halve the map as it takes to end at a single position: on 32×32 those of the paper. Each block is a
    `RelaxedLayer` over the named paths. Paths that break a symmetry which another keeps start small, so that training begins
    near the symmetric network and leaves it only where the data ask for it.

    Args:
        data: Gives the shape of inputs and the number of classes: a task, or a pair of inputs and class numbers.
        paths: Of every block: "dense" (FC), "factored" (F-FC), "conv" (CONV), "sparse" (S-FC), "sparse_conv" (S-CONV), in any
            combination.
        width: The number a of channels of the first block.
        filter_anchors: Of a sparse filter, as a share of its cells: 0.5 gives 4 of 9, 0.8 gives 7. Sparse fully connected
            paths have an anchor for every two cells.
        learn_lengthscales: Whether the lengthscales ω of sparse paths are learned, with priors of their own.
        generator: For the initial weights; the global one when None.

    Raises:
        ValueError: If a path is unknown, or inputs have no grid or too large a one.
    """
    if isinstance(data, Task):
        in_shape, classes = data.in_shape, data.classes
    else:
        in_shape, classes = tuple(data[0].shape[1:]), int(data[1].max()) + 1
    return build_allconv(
        in_shape, classes, paths, width, generator, filter_anchors=filter_anchors, learn_lengthscales=learn_lengthscales
    )


def build_allconv(
    in_shape: Shape,
    classes: int,
    paths: Sequence[str],
    width: int,
    generator: Generator | None = None,
    *,
    filter_anchors: float = 0.5,
    learn_lengthscales: bool = False,
) -> AllConv:
    """`allconv` for inputs of a given shape."""
    unknown = [name for name in paths if name not in PATHS]
    if unknown or not paths:
        raise ValueError(f"paths must name some of {', '.join(PATHS)}; got {tuple(paths)}.")
    if len(in_shape) < 2:
        raise ValueError(f"allconv needs inputs [n, channels, *grid], got a shape of {in_shape} for one input.")
    halvings = max(ceil(log2(size)) for size in in_shape[1:])
    if halvings > len(_CHANNELS):
        limit = 2 ** len(_CHANNELS)
        raise ValueError(f"allconv takes grids of up to {limit} cells a side, got {in_shape[1:]}. Resize the inputs.")
    strides = [2 if block in _STRIDE_ORDER[:halvings] else 1 for block in range(len(_CHANNELS))]
    scales = _scales(paths)
    builders = PATHS | {
        "sparse": partial(_sparse, learn=learn_lengthscales),
        "sparse_conv": partial(_sparse_conv, learn=learn_lengthscales, anchors=filter_anchors),
    }
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    shape, maps, exact = tuple(in_shape), [], True
    for index, (channels, stride) in enumerate(zip(_CHANNELS, strides, strict=True), start=1):
        out_shape = (channels * width, *(ceil(size / stride) for size in shape[1:]))
        built = {name: builders[name](shape, out_shape, stride, scales[name], generator) for name in paths}
        even = divides(stride, shape[1:])
        layers[f"block{index}"] = RelaxedLayer(built, stride=stride, equivariant_stride=even)
        layers[f"relu{index}"] = nn.ReLU()
        exact = exact and even
        shape = out_shape
        maps.append("×".join(map(str, shape[1:])))
    layers["flatten"] = nn.Flatten()
    layers["head1"] = _linear(shape[0], 64 * width, generator)
    layers["relu9"] = nn.ReLU()
    layers["head2"] = _linear(64 * width, classes, generator)
    model = AllConv(layers)
    model.recipe = {"in_shape": list(in_shape), "classes": classes, "paths": list(paths), "width": width}
    model.recipe |= {"filter_anchors": filter_anchors, "learn_lengthscales": learn_lengthscales}
    parameters = sum(parameter.numel() for parameter in model.parameters())
    model.description = (
        f"all-convolutional network of {' + '.join(paths)} paths, width {width}, {parameters:,} parameters; strides "
        f"{' '.join(map(str, strides))}, maps {' '.join(maps)}"
        + ("" if exact or _SYMMETRIC.isdisjoint(paths) else "; maps of odd size are not subsampled equivariantly")
    )
    _log.info(model.description)
    return model


def _scales(paths: Sequence[str]) -> dict[str, float]:
    """Initial scale by path: those that keep a symmetry share the variance, those beside them start at RELAXATION."""
    first = [name for name in paths if name in _SYMMETRIC] or list(paths)
    return {name: 1 / sqrt(len(first)) if name in first else RELAXATION for name in paths}


def _linear(d_in: int, d_out: int, generator: Generator | None) -> nn.Linear:
    layer = nn.Linear(d_in, d_out)
    bound = sqrt(6 / d_in)
    with torch.no_grad():
        layer.weight.uniform_(-bound, bound, generator=generator)
        layer.bias.zero_()
    return layer
