"""The networks of the papers, as functions: allconv (ELLA), and those that learn invariance.

They have no symmetry built in but the translation of convolutions: what is invariant is learned. Initial weights are those of
torch, U(±1/√fan_in), drawn from the generator that is given; `residual` starts as Fixup says (Zhang et al. 2019).
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, log2, prod, sqrt
from typing import Any

import torch
from torch import Generator, Tensor, nn

from symbayes.data.task import Task
from symbayes.groups.grids import SpaceGroup, cube, flips, p4, p4m
from symbayes.layers.conv import ConvPath
from symbayes.layers.dense import DensePath, Scale, Shift
from symbayes.layers.factored import FactoredPath
from symbayes.layers.group_conv import GroupConvPath, GroupPool, SeparableGroupPath
from symbayes.layers.relaxed import RelaxedLayer, centre, divides
from symbayes.layers.smooth import SparseConvPath, SparseFactoredPath, SparseGroupConvPath

#: What networks are built for: a task, or a pair of inputs and class numbers.
Classified = Task | tuple[Tensor, Tensor]
Shape = tuple[int, ...]


def shape_and_classes(data: Classified) -> tuple[Shape, int]:
    """The shape of one input, and the number of classes."""
    if isinstance(data, Task):
        return data.in_shape, data.classes
    return tuple(data[0].shape[1:]), int(data[1].max()) + 1


_log = logging.getLogger("symbayes")

_CHANNELS = (1, 2, 2, 4, 4, 8, 8, 16)
#: Blocks in the order in which they are given a stride of 2, as many as the input needs.
_STRIDE_ORDER = (7, 5, 3, 1, 6, 4, 2, 0)

#: Groups of group convolutions, by name, for grids of some dimensions.
GROUPS: dict[str, Callable[[int], SpaceGroup]] = {
    "p4": lambda dims: p4(),
    "p4m": lambda dims: p4m(),
    "flips": flips,
    "cube": lambda dims: cube(),
}


@dataclass(frozen=True)
class Slot:
    """Where a path goes: a block of a network."""

    in_shape: Shape
    out_shape: Shape
    stride: int
    #: Of the network's features, which then have a channel for every turn; None when they are plain maps.
    group: SpaceGroup | None
    #: Whether the block is the first, which sees plain maps.
    first: bool
    #: How a path starts: what all of them take.
    start: dict[str, Any]
    #: Of sparse paths.
    filter_anchors: float
    learn_lengthscales: bool
    learn_locations: bool = False

    @property
    def channels(self) -> tuple[int, int]:
        return self.in_shape[0], self.out_shape[0]

    @property
    def kernel(self) -> Shape:
        return (3,) * (len(self.in_shape) - 1)

    @property
    def filter_basis(self) -> dict[str, Any]:
        """Of a sparse filter."""
        learned = {"learn_lengthscale": self.learn_lengthscales, "learn_locations": self.learn_locations}
        return {"anchors": self.filter_anchors, **learned}


def _dense(slot: Slot) -> nn.Module:
    return DensePath(slot.in_shape, slot.out_shape, **slot.start)


def _factored(slot: Slot) -> nn.Module:
    return FactoredPath(slot.in_shape, slot.out_shape, **slot.start)


def _sparse(slot: Slot) -> nn.Module:
    return SparseFactoredPath(slot.in_shape, slot.out_shape, learn_lengthscale=slot.learn_lengthscales, **slot.start)


def _conv_path(slot: Slot) -> nn.Module:
    return ConvPath(*slot.channels, slot.kernel, stride=slot.stride, **slot.start)


def _sparse_conv(slot: Slot) -> nn.Module:
    return SparseConvPath(*slot.channels, slot.kernel, stride=slot.stride, **(slot.filter_basis | slot.start))


def _gconv(slot: Slot, kind: Callable[..., nn.Module] = GroupConvPath, **options: Any) -> nn.Module:
    if slot.group is None:
        raise ValueError("A group convolution needs the group of the features.")
    c_in, c_out = slot.channels
    fields = c_in if slot.first else c_in // slot.group.order, c_out // slot.group.order
    return kind(*fields, slot.group, lifting=slot.first, stride=slot.stride, **options, **slot.start)


def _sparse_gconv(slot: Slot) -> nn.Module:
    return _gconv(slot, SparseGroupConvPath, **slot.filter_basis)


@dataclass(frozen=True)
class PathKind:
    """How to build a path of a block, and how much symmetry it has: 0 is none, 1 translation, 2 a group with more."""

    build: Callable[[Slot], nn.Module]
    symmetry: int


PATHS = {
    "dense": PathKind(_dense, 0),
    "factored": PathKind(_factored, 0),
    "sparse": PathKind(_sparse, 0),
    "conv": PathKind(_conv_path, 1),
    "sparse_conv": PathKind(_sparse_conv, 1),
    "gconv": PathKind(_gconv, 2),
    "sparse_gconv": PathKind(_sparse_gconv, 2),
    "gconv_pointwise": PathKind(partial(_gconv, mixing="pointwise"), 2),
    "gconv_separable": PathKind(partial(_gconv, kind=SeparableGroupPath), 2),
    "gconv_depthwise": PathKind(partial(_gconv, kind=SeparableGroupPath, depthwise=True), 2),
}


class AllConv(nn.Sequential):
    """Blocks of relaxed layers and ReLUs, then two linear layers; `description` says how it was laid out.

    All strides go through the centre of the input, so that with convolutions alone the network is exactly invariant; unless
    they are plain.
    """

    #: What `allconv` was called with, in plain numbers and words, so that a saved result can be built again.
    recipe: dict[str, object]
    description: str

    def forward(self, inputs: Tensor) -> Tensor:
        centred = any(isinstance(layer, RelaxedLayer) and layer.equivariant_stride for layer in self)
        features, cell = inputs, centre(inputs) if centred else None
        for layer in self:
            if isinstance(layer, RelaxedLayer):
                features = layer(features, cell)
                cell = None if cell is None else cell // layer.stride
            else:
                features = layer(features)
        return features


def allconv(
    data: Classified,
    paths: Sequence[str] = ("factored", "conv"),
    width: int = 10,
    *,
    relaxation: float = 0.03,
    group: str = "p4",
    filter_anchors: float = 0.5,
    learn_lengthscales: bool = False,
    learn_locations: bool = False,
    equivariant_stride: bool = True,
    generator: Generator | None = None,
) -> AllConv:
    """ELLA's network for a task: eight blocks of width a, 2a, 2a, 4a, 4a, 8a, 8a, 16a and a head of 64a units.

    As many blocks halve the map as it takes to end at a single position: on 32×32 those of the paper. Each block is a
    `RelaxedLayer` over the named paths. Paths that break a symmetry which another keeps start small, so that training begins
    near the symmetric network and leaves it only where the data ask for it.

    With a group convolution among the paths, features have a channel for every turn of the group, the largest over turns goes
    to the head, and only group convolutions have biases: those of others would break the symmetry beside their weights.

    Args:
        data: Gives the shape of inputs and the number of classes: a task, or a pair of inputs and class numbers.
        paths: Of every block, in any combination: "dense" (FC), "factored" (F-FC), "sparse" (S-FC), "conv" (CONV),
            "sparse_conv" (S-CONV), "gconv" (GCONV), "sparse_gconv" (S-GCONV), "gconv_pointwise", "gconv_separable",
            "gconv_depthwise".
        width: The number a of channels of the first block.
        relaxation: Initial standard deviation of the output of a path that breaks a symmetry, relative to one that keeps it.
        group: Of group convolutions: "p4" or "p4m" on images, "cube" on volumes, "flips" on these and on sequences.
        filter_anchors: Of a sparse filter, as a share of its cells: 0.5 gives 4 of 9, 0.8 gives 7. Sparse fully connected
            paths have an anchor for every two cells.
        learn_lengthscales: Whether the lengthscales ω of sparse paths are learned, with priors of their own.
        learn_locations: Whether the locations of the anchors of sparse filters are, too. Those of sparse fully connected paths
            stay where they are: the curvature of a location costs a backward pass through the basis for every datum.
        equivariant_stride: Whether strides go through the centre of the input, so that paths keep their symmetry exactly. With
            plain strides they keep it up to the stride; natural images, which have no clear centre, are then learned better.
        generator: For the initial weights; the global one when None.

    Raises:
        ValueError: If a path or the group is unknown, or inputs have no grid, too large a one, or one that does not turn.
    """
    in_shape, classes = shape_and_classes(data)
    return build_allconv(
        in_shape, classes, paths, width, relaxation=relaxation, group=group, filter_anchors=filter_anchors,
        learn_lengthscales=learn_lengthscales, learn_locations=learn_locations, equivariant_stride=equivariant_stride,
        generator=generator,
    )  # fmt: skip


def build_allconv(
    in_shape: Shape,
    classes: int,
    paths: Sequence[str],
    width: int,
    *,
    relaxation: float = 0.03,
    group: str = "p4",
    filter_anchors: float = 0.5,
    learn_lengthscales: bool = False,
    learn_locations: bool = False,
    equivariant_stride: bool = True,
    generator: Generator | None = None,
) -> AllConv:
    """`allconv` for inputs of a given shape."""
    unknown = [name for name in paths if name not in PATHS]
    if unknown or not paths:
        raise ValueError(f"paths must name some of {', '.join(PATHS)}; got {tuple(paths)}.")
    if len(in_shape) < 2 or min(in_shape) < 1:
        raise ValueError(f"allconv needs inputs [n, channels, *grid], got a shape of {in_shape} for one input.")
    if min(width, classes) < 1:
        raise ValueError(f"width and classes must be 1 or more, got {width} and {classes}.")
    halvings = max(ceil(log2(size)) for size in in_shape[1:])
    if halvings > len(_CHANNELS):
        limit = 2 ** len(_CHANNELS)
        raise ValueError(f"allconv takes grids of up to {limit} cells a side, got {in_shape[1:]}. Resize the inputs.")
    most = max(PATHS[name].symmetry for name in paths)
    turns = _turns(group, in_shape[1:]) if most == 2 else None
    order = 1 if turns is None else turns.order
    strides = [2 if block in _STRIDE_ORDER[:halvings] else 1 for block in range(len(_CHANNELS))]
    starts = path_starts(paths, relaxation, generator)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    shape, maps, exact = tuple(in_shape), [], True
    for index, (channels, stride) in enumerate(zip(_CHANNELS, strides, strict=True), start=1):
        out_shape = (channels * width * order, *(ceil(size / stride) for size in shape[1:]))
        place = Slot(
            shape, out_shape, stride, turns, index == 1, {}, float(filter_anchors), learn_lengthscales, learn_locations
        )
        built = {name: PATHS[name].build(replace(place, start=start)) for name, start in starts.items()}
        even = equivariant_stride and divides(stride, shape[1:])
        layers[f"block{index}"] = RelaxedLayer(built, stride=stride, equivariant_stride=even)
        layers[f"relu{index}"] = nn.ReLU()
        exact = exact and even
        shape = out_shape
        maps.append("×".join(map(str, shape[1:])))
    if turns is not None:
        layers["pool"] = GroupPool(order)
    layers["flatten"] = nn.Flatten()
    layers["head1"] = _he_linear(shape[0] // order, 64 * width, generator)
    layers["relu9"] = nn.ReLU()
    layers["head2"] = _he_linear(64 * width, classes, generator)
    model = AllConv(layers)
    model.recipe = {"in_shape": list(in_shape), "classes": classes, "paths": list(paths), "width": width}
    model.recipe |= {"relaxation": relaxation, "group": group}
    model.recipe |= {"filter_anchors": filter_anchors, "learn_lengthscales": learn_lengthscales}
    model.recipe |= {"learn_locations": learn_locations, "equivariant_stride": equivariant_stride}
    parameters = sum(parameter.numel() for parameter in model.parameters())
    model.description = (
        f"all-convolutional network of {' + '.join(paths)} paths, width {width}, {parameters:,} parameters; strides "
        f"{' '.join(map(str, strides))}, maps {' '.join(maps)}"
        + ("" if turns is None else f"; {order} turns of {turns.name}")
        + ("" if equivariant_stride or most == 0 else "; plain strides")
        + ("" if exact or not equivariant_stride or most == 0 else "; maps of odd size are not subsampled equivariantly")
    )
    _log.info(model.description)
    return model


def _turns(name: str, grid: Shape) -> SpaceGroup:
    if name not in GROUPS:
        raise ValueError(f"group must be one of {', '.join(GROUPS)}; got {name!r}.")
    group = GROUPS[name](len(grid))
    group.check_grid(grid)
    return group


def path_starts(paths: Sequence[str], relaxation: float, generator: Generator | None) -> dict[str, dict[str, Any]]:
    """How paths start: those with the most symmetry share the variance, those beside them are small.

    Beside a group convolution no other path has a bias, which would break the symmetry, too.
    """
    most = max(PATHS[name].symmetry for name in paths)
    first = [name for name in paths if PATHS[name].symmetry == most]
    return {
        name: {
            "scale": 1 / sqrt(len(first)) if name in first else relaxation,
            "bias": name in first or most < 2,
            "generator": generator,
        }
        for name in paths
    }


def _he_linear(d_in: int, d_out: int, generator: Generator | None) -> nn.Linear:
    layer = nn.Linear(d_in, d_out)
    bound = sqrt(6 / d_in)
    with torch.no_grad():
        layer.weight.uniform_(-bound, bound, generator=generator)
        layer.bias.zero_()
    return layer


#: Maps of `small_cnn` are halved until no side is longer.
_SMALL_MAP = 4


def mlp(data: Classified, width: int = 1000, *, generator: Generator | None = None) -> nn.Sequential:
    """A perceptron with one hidden layer: d → width → classes, with tanh.

    Args:
        data: Gives the shape of inputs and the number of classes: a task, or a pair of inputs and class numbers.
        width: Hidden units.
        generator: For the initial weights; the global one when None.
    """
    in_shape, classes = shape_and_classes(data)
    return perceptron(prod(in_shape), classes, width, generator)


def perceptron(features: int, outputs: int, width: int, generator: Generator | None) -> nn.Sequential:
    """One hidden layer with tanh, for inputs that have so many features once they are flattened."""
    hidden, head = _linear(features, width, generator), _linear(width, outputs, generator)
    return nn.Sequential(OrderedDict(flatten=nn.Flatten(), hidden=hidden, tanh=nn.Tanh(), head=head))


def lenet(data: Classified, *, generator: Generator | None = None) -> nn.Sequential:
    """LeNet, in LILA's form for MNIST (28×28, tanh) or for CIFAR-10 (32×32, ReLU), which differ in their second filter, too.

    Args:
        data: Gives the shape of inputs and the number of classes: a task, or a pair of inputs and class numbers.
        generator: For the initial weights; the global one when None.

    Raises:
        ValueError: If inputs are not images of one of these sizes.
    """
    (channels, height, width), classes = _image(data, "lenet")
    forms: dict[tuple[int, int], tuple[int, type[nn.Module]]] = {(28, 28): (3, nn.Tanh), (32, 32): (5, nn.ReLU)}
    if (height, width) not in forms:
        raise ValueError(
            f"lenet takes images of 28×28 or 32×32, so that its last map is a single cell; got {height}×{width}. "
            "Resize them, or use small_cnn or residual, which take any size."
        )
    middle, activation = forms[height, width]
    layers = {
        "conv1": _conv(channels, 6, 5, generator),
        "activation1": activation(),
        "pool1": nn.MaxPool2d(2),
        "conv2": _conv(6, 16, middle, generator),
        "activation2": activation(),
        "pool2": nn.MaxPool2d(2),
        "conv3": _conv(16, 120, 5, generator),
        "activation3": activation(),
        "flatten": nn.Flatten(),
        "hidden": _linear(120, 84, generator),
        "activation4": activation(),
        "head": _linear(84, classes, generator),
    }
    return nn.Sequential(OrderedDict(layers))


def small_cnn(data: Classified, width: int = 8, depth: int = 1, *, generator: Generator | None = None) -> nn.Sequential:
    """A plain convolutional network: 3×3 filters and tanh, pooled by 2×2 to a map of 4×4 or less, and a hidden layer.

    Channels double from one map to the next: width, 2 width, ….

    Args:
        data: Gives the shape of inputs and the number of classes: a task, or a pair of inputs and class numbers.
        width: Channels of the first map; the hidden layer has four times as many units.
        depth: Convolutions on each map.
        generator: For the initial weights; the global one when None.

    Raises:
        ValueError: If inputs are not images, or depth is below 1.
    """
    (channels, *grid), classes = _image(data, "small_cnn")
    if depth < 1:
        raise ValueError(f"depth must be 1 or more, the convolutions on each map; got {depth}.")
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    level, out_channels = 1, width
    while level == 1 or max(grid) > _SMALL_MAP:
        for index in range(1, depth + 1):
            layers[f"conv{level}_{index}"] = _conv(channels, out_channels, 3, generator, padding=1)
            layers[f"tanh{level}_{index}"] = nn.Tanh()
            channels = out_channels
        if max(grid) > _SMALL_MAP:
            layers[f"pool{level}"] = nn.MaxPool2d(2, ceil_mode=True)
            grid = [ceil(side / 2) for side in grid]
        level, out_channels = level + 1, 2 * out_channels
    layers["flatten"] = nn.Flatten()
    layers["hidden"] = _linear(channels * prod(grid), 4 * width, generator)
    layers["tanh"] = nn.Tanh()
    layers["head"] = _linear(4 * width, classes, generator)
    return nn.Sequential(layers)


class ResidualBlock(nn.Module):
    """y = relu(shortcut(x) + shift(scale(conv(shift(relu(shift(conv(shift(x)))))))), which begins as y = relu(shortcut(x)).

    Where channels double, the first convolution has stride 2, and the shortcut keeps every second cell of what that
    convolution sees, beside channels of zeros.

    Args:
        in_channels: Of x.
        out_channels: As many, or twice as many.
        blocks: Of the whole network; the more there are, the smaller each starts.
        generator: For the initial weights; the global one when None.
    """

    def __init__(self, in_channels: int, out_channels: int, blocks: int, generator: Generator | None) -> None:
        super().__init__()
        self.halves = out_channels != in_channels
        self.shift1 = Shift()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride=2 if self.halves else 1, padding=1, bias=False)
        self.shift2 = Shift()
        self.shift3 = Shift()
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.scale = Scale()
        self.shift4 = Shift()
        with torch.no_grad():
            self.conv1.weight.normal_(0, sqrt(2 / (9 * out_channels * blocks)), generator=generator)
            self.conv2.weight.zero_()

    def forward(self, inputs: Tensor) -> Tensor:
        shifted = self.shift1(inputs)
        inner = self.shift2(self.conv1(shifted)).relu()
        branch = self.shift4(self.scale(self.conv2(self.shift3(inner))))
        if not self.halves:
            return (inputs + branch).relu()
        kept = shifted[:, :, ::2, ::2]
        return (torch.cat([kept, torch.zeros_like(kept)], 1) + branch).relu()


def residual(data: Classified, depth: int = 8, width: int = 8, *, generator: Generator | None = None) -> nn.Sequential:
    """A residual network by Fixup: in place of norm layers, shifts and scales by single numbers, and a careful start.

    LILA's resnet_8_8 and resnet_8_16 are depth 8 and width 8 and 16. Three stages of (depth − 2) / 6 blocks have width,
    2 width and 4 width channels. Blocks begin as the identity, outputs as zero.

    Args:
        data: Gives the shape of inputs and the number of classes: a task, or a pair of inputs and class numbers.
        depth: Layers, 6 n + 2.
        width: Channels of the first stage.
        generator: For the initial weights; the global one when None.

    Raises:
        ValueError: If inputs are not images, or depth is another number.
    """
    (channels, _, _), classes = _image(data, "residual")
    if depth < 8 or depth % 6 != 2:
        raise ValueError(f"depth must be 6 n + 2 with n blocks in each of three stages: 8, 14, 20, …; got {depth}.")
    in_stage = (depth - 2) // 6
    stem = nn.Conv2d(channels, width, 3, padding=1, bias=False)
    _draw(stem, generator)
    layers: OrderedDict[str, nn.Module] = OrderedDict(stem=stem, stem_shift=Shift(), relu=nn.ReLU())
    last = width
    for index in range(3 * in_stage):
        out_channels = width * 2 ** (index // in_stage)
        layers[f"block{index + 1}"] = ResidualBlock(last, out_channels, 3 * in_stage, generator)
        last = out_channels
    head = nn.Linear(last, classes)
    with torch.no_grad():
        head.weight.zero_()
        head.bias.zero_()
    layers |= {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), "head_shift": Shift(), "head": head}
    return nn.Sequential(layers)


def _image(data: Classified, name: str) -> tuple[tuple[int, int, int], int]:
    """Channels, height and width of one input, and the number of classes."""
    in_shape, classes = shape_and_classes(data)
    if len(in_shape) != 3:
        raise ValueError(f"{name} needs images [n, c, h, w], got a shape of {in_shape} for one input. Use mlp for others.")
    channels, height, width = in_shape
    return (channels, height, width), classes


def _linear(d_in: int, d_out: int, generator: Generator | None) -> nn.Linear:
    layer = nn.Linear(d_in, d_out)
    _draw(layer, generator)
    return layer


def _conv(in_channels: int, out_channels: int, kernel: int, generator: Generator | None, *, padding: int = 0) -> nn.Conv2d:
    layer = nn.Conv2d(in_channels, out_channels, kernel, padding=padding)
    _draw(layer, generator)
    return layer


@torch.no_grad()
def _draw(layer: nn.Linear | nn.Conv2d, generator: Generator | None) -> None:
    bound = 1 / sqrt(layer.weight[0].numel())
    for parameter in layer.parameters():
        parameter.uniform_(-bound, bound, generator=generator)
