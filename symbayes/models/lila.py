"""The networks of LILA (Immer et al. 2022), and a small one for small images.

They have no symmetry built in but the translation of convolutions: what is invariant is learned. Initial weights are those of
torch, U(±1/√fan_in), drawn from the generator that is given; `residual` starts as Fixup says (Zhang et al. 2019).
"""

from collections import OrderedDict
from math import ceil, prod, sqrt

import torch
from torch import Generator, Tensor, nn

from symbayes.layers.scalar import Scale, Shift
from symbayes.models.inputs import Classified, shape_and_classes

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
    layers = {
        "flatten": nn.Flatten(),
        "hidden": _linear(prod(in_shape), width, generator),
        "tanh": nn.Tanh(),
        "head": _linear(width, classes, generator),
    }
    return nn.Sequential(OrderedDict(layers))


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
