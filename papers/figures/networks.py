"""Small networks of the gallery, and boards of games for them.

Who has won is the same however the board is turned and flipped; a quarter turn makes a column of a row, so the way is not.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from math import prod

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor, nn

from symbayes.groups.grids import p4
from symbayes.groups.permutation import board
from symbayes.layers.dense import DensePath
from symbayes.layers.group_conv import GroupConvPath, GroupPool
from symbayes.layers.orbit import OrbitPath
from symbayes.layers.relaxed import RelaxedLayer
from symbayes.models import PATHS, AllConv, Slot, path_starts

SIDE = 3
#: Cells of rows, columns and diagonals.
_LINES = ([[0, 1, 2], [3, 4, 5], [6, 7, 8]], [[0, 3, 6], [1, 4, 7], [2, 5, 8]], [[0, 4, 8], [2, 4, 6]])
_CROSS, _CIRCLE = 1, 2

#: Classes by question.
TASKS = {"who has won?": ("draw", "×", "○"), "which way does the line run?": ("none", "row", "column", "diagonal")}


def final_boards() -> tuple[Tensor, dict[str, Tensor]]:
    """Boards [n, 2, 3, 3] with a channel for crosses and one for circles, and the classes by question; 958 of them.

    With two lines at once the way is the first of row, column, diagonal.
    """
    boards = torch.cartesian_prod(*[torch.arange(3)] * (SIDE * SIDE))
    crosses, circles = ((boards == player).sum(1) for player in (_CROSS, _CIRCLE))
    cross, circle = (_owned(boards, player) for player in (_CROSS, _CIRCLE))
    cross_won = cross.any(1) & ~circle.any(1) & (crosses == circles + 1)
    circle_won = circle.any(1) & ~cross.any(1) & (crosses == circles)
    drawn = ~cross.any(1) & ~circle.any(1) & (crosses == 5) & (circles == 4)
    ended = cross_won | circle_won | drawn
    winner = (_CROSS * cross_won + _CIRCLE * circle_won)[ended]
    way = torch.where(drawn, 0, 1 + (cross | circle).int().argmax(1))[ended]
    inputs = torch.stack([boards == _CROSS, boards == _CIRCLE], 1)[ended].float()
    return inputs.unflatten(2, (SIDE, SIDE)), dict(zip(TASKS, (winner, way), strict=True))


def _owned(boards: Int[Tensor, "n cell"], player: int) -> Bool[Tensor, "n way"]:
    """Whether a player has a line, for each of the ways it can run."""
    return torch.stack([(boards[:, torch.tensor(lines)] == player).all(2).any(1) for lines in _LINES], 1)


Shape = tuple[int, ...]

#: Initial size of paths that break a symmetry, relative to those that keep it.
RELAXATION = 0.1
_BLOCKS = 4


def digit_network(classes: int, paths: Sequence[str], width: int, generator: Generator) -> AllConv:
    """Blocks with the paths named that halve a 16×16 map, down to a single position, and a linear map to classes."""
    group = p4() if "gconv" in paths else None
    turns = 1 if group is None else group.order
    starts = path_starts(paths, RELAXATION, generator)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    shape: Shape = (1, 16, 16)
    for index in range(_BLOCKS):
        given = (turns * width * 2**index, shape[1] // 2, shape[2] // 2)
        slot = Slot(shape, given, 2, group, index == 0, {}, filter_anchors=0.5, learn_lengthscales=True)
        built = {name: PATHS[name].build(replace(slot, start=start)) for name, start in starts.items()}
        layers[f"block{index + 1}"] = RelaxedLayer(built, stride=2)
        layers[f"relu{index + 1}"] = nn.ReLU()
        shape = given
    if group is not None:
        layers["pool"] = GroupPool(turns)
    layers["flatten"] = nn.Flatten()
    layers["head"] = DensePath((shape[0] // turns,), (classes,), generator=generator)
    return AllConv(layers)


def filter_network(path: nn.Module, channels: int, classes: int, generator: Generator) -> nn.Sequential:
    """A convolution, the largest value of each channel over all positions and turns, and a linear map to classes."""
    turns = path.group.order if isinstance(path, GroupConvPath) else 1
    head = DensePath((channels,), (classes,), generator=generator)
    return nn.Sequential(path, nn.ReLU(), GroupPool(turns), nn.AdaptiveMaxPool2d(1), nn.Flatten(), head)


def board_network(width: int, classes: int, side: int, generator: Generator) -> nn.Sequential:
    """A layer from cells of a board to cells and one from cells to classes, both with dense and orbit paths."""
    group, grid = board(side), (side, side)
    layers: list[nn.Module] = []
    for c_in, c_out, acting, given in ((2, width, group, grid), (width, classes, group.pooled(), (1, 1))):
        dense = DensePath((c_in, *grid), (c_out, *given), scale=RELAXATION, generator=generator)
        orbit = OrbitPath(c_in, c_out, acting, in_shape=grid, out_shape=given, generator=generator)
        layers += [RelaxedLayer({"dense": dense, "orbit": orbit}), nn.ReLU()]
    return nn.Sequential(*layers[:-1], nn.Flatten())


@torch.no_grad()
def spelled(layer: nn.Module, in_shape: Shape) -> Float[Tensor, "d_out o d_in i"]:
    """The weights of a linear layer between all points, over channels and points of its outputs and inputs."""
    units = torch.eye(prod(in_shape)).unflatten(1, in_shape)
    columns: Tensor = layer(units) - layer(torch.zeros(1, *in_shape))
    return columns.flatten(2).unflatten(0, (in_shape[0], -1)).permute(2, 3, 0, 1)
