"""Elements of a group at random, and what an element does on a grid of another size.

A shift by t on a grid of n cells is a shift by t / k on one of n / k cells. Where k does not divide t there is no such element;
`carried` then gives the neighbours on both sides, and who compares features takes the one that fits better.
"""

from collections.abc import Iterator
from itertools import islice, product
from math import prod

import numpy as np
import torch
from torch import Generator

from symbayes.groups.grids import SpaceGroup, Translation
from symbayes.groups.group import Group
from symbayes.groups.orbits import Points
from symbayes.groups.permutation import MOST_ELEMENTS, Permutations

Element = tuple[int, ...]
#: Groups of permutations with more elements are not listed, but walked through at random.
_LISTED = 2000
#: Of a walk: permutations that are multiplied with each other, steps before the first draw, and between two.
_POOL, _FIRST, _BETWEEN = 10, 200, 20


def every_element(group: Group, grid: tuple[int, ...]) -> list[Element]:
    """Every element but the identity.

    Raises:
        ValueError: If there are more than MOST_ELEMENTS.
    """
    found = list(islice(group.elements(grid), MOST_ELEMENTS + 1))
    if len(found) > MOST_ELEMENTS:
        raise ValueError(
            f"{group.name} has more than {MOST_ELEMENTS:,} elements on a grid {grid}, too many to use all of them. Draw some: "
            "samples=4."
        )
    identity = group.identity(grid)
    return [element for element in found if element != identity]


def draw_elements(group: Group, grid: tuple[int, ...], count: int, generator: Generator) -> list[Element]:
    """So many elements, each drawn uniformly from all but the identity; none where there is no other.

    Large groups of permutations are walked through by product replacement (Celler et al. 1995), which is uniform in the limit.
    """
    if type(group) is Translation or type(group) is SpaceGroup:
        sizes = grid if isinstance(group, Translation) else (group.order, *grid)
        if prod(sizes) == 1:
            return []
        numbers = torch.randint(1, prod(sizes), (count,), generator=generator).numpy()  # the identity has number 0
        return [tuple(map(int, element)) for element in np.stack(np.unravel_index(numbers, sizes), 1)]
    if isinstance(group, Permutations) and len(list(islice(group.elements(grid), _LISTED + 1))) > _LISTED:
        identity = group.identity(grid)
        return list(islice((element for element in _walk(group, generator) if element != identity), count))
    others = every_element(group, grid)
    return [others[int(i)] for i in torch.randint(len(others), (count,), generator=generator)] if others else []


def _walk(group: Permutations, generator: Generator) -> Iterator[Element]:
    """Elements at random: those of a pool are multiplied with each other, and one more with them on the way."""
    size = group.num_inputs
    both = [np.concatenate([p, size + q]) for p, q in zip(group.inputs, group.outputs, strict=True)]  # on all points
    pool: list[Points] = [both[index % len(both)] for index in range(max(_POOL, len(both)))]
    one = np.arange(len(both[0]))
    for step in range(2**62):
        i, j, inverse = (int(torch.randint(high, (), generator=generator)) for high in (len(pool), len(pool) - 1, 2))
        factor = pool[j + (j >= i)]
        pool[i] = pool[i][np.argsort(factor) if inverse else factor]
        one = one[pool[i]]
        if step >= _FIRST and step % _BETWEEN == 0:
            yield (*map(int, one[:size]), *map(int, one[size:] - size))


def acts_on(group: Group, grid: tuple[int, ...], onto: tuple[int, ...]) -> bool:
    """Whether it is known what an element for one grid does on the other."""
    return grid == onto or (isinstance(group, Translation | SpaceGroup | Permutations) and len(grid) == len(onto))


def is_whole(grid: tuple[int, ...], onto: tuple[int, ...]) -> bool:
    """Whether along every axis one of two grids has a whole number of cells for each cell of the other."""
    return all(max(pair) % min(pair) == 0 for pair in zip(grid, onto, strict=True))


def carried(group: Group, element: Element, grid: tuple[int, ...], onto: tuple[int, ...], *, up: bool = False) -> list[Element]:
    """An element for one grid as it acts on another: several neighbours, where its shift there is no whole number of cells.

    Args:
        group: That it is of.
        element: As it acts on `grid`.
        grid: What it is for.
        onto: The other grid.
        up: Whether the stride between the two is rounded up, where it is no whole number.
    """
    if grid == onto or not isinstance(group, Translation | SpaceGroup):
        return [element]
    turn, shifts = ((), element) if isinstance(group, Translation) else (element[:1], element[1:])
    rows = group.matrices[element[0]] if isinstance(group, SpaceGroup) else ((1,),) * len(grid)
    axes = [_shifts(t, n, m, sum(row) < 0, up) for t, n, m, row in zip(shifts, grid, onto, rows, strict=True)]
    return [(*turn, *found) for found in product(*axes)]


def _shifts(shift: int, size: int, onto: int, flipped: bool, up: bool) -> list[int]:
    """Along one axis.

    A flipped grid of kept cells, k x ↦ n − 1 − k x, lies up to k − 1 cells from where it was, unless cells are pooled.
    """
    signed = shift - size if 2 * shift > size else shift  # so that it means the same on a grid that is a little smaller
    if onto >= size:
        factor = -(-onto // size) if up else onto // size
        low, high = signed * factor - (factor - 1 if flipped else 0), signed * factor
    else:
        stride = -(-size // onto) if up else size // onto
        low, high = signed // stride, -(-(signed + (stride - 1 if flipped else 0)) // stride)
    return sorted({found % onto for found in range(low, high + 1)})
