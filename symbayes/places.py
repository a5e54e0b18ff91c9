"""Where in a tensor the grid is that a group acts on, and what the channels of a layer carry.

Features are [n, c, *grid], or [n, *grid, c] where linear layers, layer norms and attention see them, or tokens [n, t, c] for
the patches of a grid, after a class token or not. Torch does not say which; the kind of module and shapes tell it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.modules import batchnorm, conv, pooling

from symbayes.groups.actions import Element, acts_on, carried, is_whole
from symbayes.groups.grids import SpaceGroup, Translation
from symbayes.groups.group import Group
from symbayes.groups.permutation import Permutations
from symbayes.layers.group_conv import GroupPool
from symbayes.layers.path import LinearMap
from symbayes.layers.relaxed import RelaxedLayer

#: How an element acts on maps [n, c, *grid].
Act = Callable[[Element, Tensor], Tensor]

#: Modules that see channels last, and those that see them first.
_LAST = (nn.Linear, nn.LayerNorm, nn.MultiheadAttention, nn.Embedding, nn.RNNBase)
POOLS = (
    pooling._MaxPoolNd, pooling._AvgPoolNd, pooling._AdaptiveAvgPoolNd, pooling._AdaptiveMaxPoolNd, pooling._LPPoolNd,
    GroupPool,
)  # fmt: skip
_FIRST = (
    conv._ConvNd, batchnorm._NormBase, nn.GroupNorm, nn.Flatten, nn.Upsample, nn.PixelShuffle, RelaxedLayer, LinearMap, *POOLS,
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """The axes of a grid in a tensor [n, …].

    Args:
        grid: Its sizes.
        channels: Where channels are; "none" for [n, *grid].
        before: Entries in front of a grid that is flattened, as class tokens are, which nothing moves.
    """

    grid: tuple[int, ...]
    channels: Literal["first", "last", "none"] = "first"
    before: int = 0

    def maps(self, tensor: Tensor) -> Tensor:
        """What lies on the grid, as [n, c, *grid]."""
        if self.channels == "first":
            return tensor
        moved = tensor[:, None] if self.channels == "none" else tensor.movedim(-1, 1)
        return moved.flatten(2)[:, :, self.before :].unflatten(2, self.grid)

    def back(self, maps: Tensor, tensor: Tensor) -> Tensor:
        """The tensor that these were the maps of, with other maps."""
        if self.channels == "first":
            return maps
        if self.channels == "none":
            return maps[:, 0]
        kept = tensor.movedim(-1, 1).flatten(2)[:, :, : self.before]
        return torch.cat([kept, maps.flatten(2)], 2).movedim(1, -1).reshape_as(tensor)

    def move(self, act: Act, elements: Sequence[Element], tensor: Tensor) -> Tensor:
        """The tensor with an element for each datum."""
        maps = self.maps(tensor)
        return self.back(torch.cat([act(e, maps[i : i + 1]) for i, e in enumerate(elements)]), tensor)


def find_root(inputs: Tensor, group: Group, last: bool) -> Place:
    """Where the grid is in the inputs of a model.

    Args:
        inputs: A batch.
        group: That acts on them.
        last: Whether the first layer that sees them takes channels last.

    Raises:
        ValueError: If they have no grid that the group acts on.
    """
    shape = tuple(inputs.shape)
    if isinstance(group, Permutations):
        place = _by_points(inputs, group, last)
        if place is None and len(shape) == 2 and shape[1] == group.num_inputs:
            place = Place(shape[1:], "none")
        if place is None:
            raise ValueError(
                f"Data must have the {group.num_inputs} points that {group.name} permutes, as [n, c, points], [n, points, c] "
                f"or [n, points]; got shape {shape}."
            )
        return place
    if len(shape) == 2 and not inputs.is_floating_point():
        place = Place(shape[1:], "none")
    elif len(shape) < 3:
        raise ValueError(
            f"Data must have a grid for {group.name} to act on, [n, c, *grid]; got shape {shape}. For rows of numbers there "
            "are groups of permutations, such as sb.groups.symmetric(n)."
        )
    else:
        place = Place(shape[1:-1], "last") if last else Place(shape[2:])
    if isinstance(group, SpaceGroup):
        group.check_grid(place.grid)
    return place


def find_place(tensor: Tensor, module: nn.Module, group: Group, root: Place | None) -> Place | None:
    """Where the grid is in what a module takes or gives; None where there is none."""
    last = sees_channels_last(module)
    if isinstance(group, Permutations):
        return _by_points(tensor, group, bool(last))
    if last is None:
        last = root is not None and root.channels != "first"
    shape = tuple(tensor.shape)
    dims = len(root.grid) if root is not None else len(shape) - 2
    if not tensor.is_floating_point() and len(shape) == dims + 1:
        return Place(shape[1:], "none")
    if len(shape) == 3 and root is not None and (last or dims != 1):
        for before in (0, 1):
            for patch in range(1, min(root.grid) + 1):
                grid = tuple(size // patch for size in root.grid)
                if prod(grid) == shape[1] - before and all(size % patch == 0 for size in root.grid):
                    return Place(grid, "last", before)
    if len(shape) != dims + 2 or dims < 1:
        return None
    return Place(shape[1:-1], "last") if last else Place(shape[2:])


def _by_points(tensor: Tensor, group: Permutations, last: bool) -> Place | None:
    """Along the axes that have as many cells as the group permutes points."""
    shape = tuple(tensor.shape)
    places = [Place(shape[2:]), Place(shape[1:-1], "last")]
    found = (place for place in (reversed(places) if last else places) if len(shape) > 2)
    return next((place for place in found if prod(place.grid) in (group.num_inputs, group.num_outputs)), None)


def sees_channels_last(module: nn.Module) -> bool | None:
    """Whether the first layer in a module, of those that say so, takes channels last; None where none says so.

    A layer norm over several axes sees channels and positions together, which are in the usual order.
    """
    first = next((inner for inner in module.modules() if isinstance(inner, (*_LAST, *_FIRST))), None)
    if isinstance(first, nn.LayerNorm):
        return len(first.normalized_shape) == 1
    return None if first is None else isinstance(first, _LAST)


@dataclass(frozen=True)
class Action:
    """How elements of a group act on the maps that a module takes, and on those that it gives."""

    inputs: Act
    outputs: Act
    #: Whether turns permute channels of either, so that they are seen on a grid of a single cell, too.
    turns_inputs: bool = False
    turns_outputs: bool = False


def find_action(module: nn.Module, group: Group) -> Action | None:
    """What a module says of the channels that it takes and gives; plain maps, where it says nothing.

    None where they carry the turns of a group that does not have all turns of this one.
    """
    if isinstance(group, Permutations):
        return Action(group.act, lambda e, maps: _permute(group, e, maps))
    maps = list(module.paths.children()) if isinstance(module, RelaxedLayer) else [module]
    saying = [m for m in maps if isinstance(m, LinearMap) and m.group is not None and not isinstance(m.group, Translation)]
    if isinstance(group, SpaceGroup):
        if isinstance(module, GroupPool):
            return Action(group.act_regular, group.act, turns_inputs=True) if module.order == group.order else None
        for path in saying:
            if isinstance(path.group, SpaceGroup):
                return _turning(path, path.group, group)
    same = next((path for path in saying if path.group is group), None)
    return Action(group.act, group.act) if same is None else Action(same.act_on_inputs, same.act_on_outputs)


def _turning(path: LinearMap, own: SpaceGroup, group: SpaceGroup) -> Action | None:
    """As a path acts for a group that it has, or that is part of the one it has."""
    if not set(group.matrices) <= set(own.matrices):
        return None
    numbers = [own.matrices.index(matrix) for matrix in group.matrices]

    def translated(act: Act) -> Act:
        return lambda element, maps: act((numbers[element[0]], *element[1:]), maps)

    lifts = bool(getattr(path, "lifting", getattr(getattr(path, "space", None), "lifting", False)))
    return Action(translated(path.act_on_inputs), translated(path.act_on_outputs), not lifts, True)


def _permute(group: Permutations, element: Element, maps: Tensor) -> Tensor:
    """As outputs, where there are as many points; a single point stays where it is."""
    points = prod(maps.shape[2:])
    if points == group.num_outputs:
        return group.act_on_outputs(element, maps)
    return group.act(element, maps) if points == group.num_inputs else maps


@dataclass(frozen=True)
class Spot:
    """Where the grids are in what a module takes and gives, and how a group acts there."""

    group: Group
    action: Action
    #: In what it takes; None for what is not known of it.
    taken: Place | None
    #: In what it gives; None where nothing moves.
    given: Place | None

    @property
    def moves_nothing(self) -> bool:
        """Whether all elements leave what it takes as it is: on a single cell with plain channels."""
        return self.taken is not None and prod(self.taken.grid) == 1 and not self.action.turns_inputs

    @property
    def grid(self) -> tuple[int, ...]:
        """Of what it gives; empty where it has none."""
        return () if self.given is None else self.given.grid

    @property
    def is_invariance(self) -> bool:
        """Whether elements do not act on what it gives."""
        return prod(self.grid) == 1 and not self.action.turns_outputs

    def distances(
        self, found: Tensor, wanted: Tensor, elements: Sequence[Element], grid: tuple[int, ...]
    ) -> Float[Tensor, "k n"]:
        """‖y − g x‖² for every datum, with an element g for each; in double precision.

        Args:
            found: y, of the form of what the module gives.
            wanted: x.
            elements: As they act on `grid`. Where an element is several on the grid of y, the one that fits best is taken.
            grid: What they are for.

        Returns:
            A row for each way to round the stride between both grids, where that is no whole number.
        """
        if self.given is None:
            return squares(found - wanted)[None]
        ys, xs = self.given.maps(found), self.given.maps(wanted)
        rest = squares((found - wanted)[:, : self.given.before])  # class tokens
        carries = not isinstance(self.group, Permutations) and acts_on(self.group, grid, self.given.grid)
        onto = self.given.grid if carries else grid
        rows = []
        for up in (False,) if is_whole(grid, onto) else (False, True):
            ways = (carried(self.group, element, grid, onto, up=up) for element in elements)
            nearest = [
                torch.stack([squares(ys[i : i + 1] - self.action.outputs(way, xs[i : i + 1])) for way in some]).amin(0)
                for i, some in enumerate(ways)
            ]
            rows.append(torch.cat(nearest) + rest)
        return torch.stack(rows)


def find_spot(module: nn.Module, taken: Tensor, given: Tensor, group: Group, root: Place | None, is_root: bool) -> Spot | str:
    """How a group acts on what a module takes and gives; or why that is not known.

    Args:
        module: That was called.
        taken: With this.
        given: What it gave.
        group: To act.
        root: Where the grid is in the inputs of the model, if that is known.
        is_root: Whether the module was called with these inputs.
    """
    before = root if is_root and root is not None else find_place(taken, module, group, root)
    if before is None:
        return "no grid in the input" if taken.ndim < 3 else f"no grid that is known in an input of {_sizes(taken)}"
    action = find_action(module, group)
    if action is None:
        return "features that carry the turns of a smaller group"
    after = find_place(given, module, group, root)
    if after is None and given[0].numel() != (given.shape[1] if given.ndim > 1 else 1):
        return f"no grid that is known in an output of {_sizes(given)}"
    if after is not None and not isinstance(group, Permutations) and not acts_on(group, before.grid, after.grid):
        return f"an action that is not known on an output of {_sizes(given)}"
    try:
        action.inputs(group.identity(before.grid), before.maps(taken[:1]))
        if after is not None and not isinstance(group, Permutations):
            action.outputs(group.identity(after.grid), after.maps(given[:1]))
    except (ValueError, RuntimeError) as error:
        return str(error).rstrip(".")
    return Spot(group, action, before, after)


def _sizes(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape[1:]))


def squares(tensor: Tensor) -> Float[Tensor, " n"]:
    """‖·‖² of every datum, in double precision."""
    return tensor.double().square().flatten(1).sum(1)


def moved_cells(
    cell: Int[Tensor, "n d"], group: Group, elements: Sequence[Element], grid: tuple[int, ...]
) -> Int[Tensor, "n d"]:
    """Cells of a grid, each moved by an element: a mark is moved, and found again."""
    marks = torch.zeros(len(cell), prod(grid), device=cell.device)
    number = torch.zeros_like(cell[:, 0])
    for axis, size in enumerate(grid):
        number = number * size + cell[:, axis] % size
    marks.scatter_(1, number[:, None], 1.0)
    moved = Place(grid).move(group.act, elements, marks.view(len(cell), 1, *grid)).flatten(1).argmax(1)
    return torch.stack(torch.unravel_index(moved, grid), 1)
