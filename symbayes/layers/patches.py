"""Second moments of patches of 3 × 3 without the patches: by products of a map with shifts of itself.

The row of a position holds x(c, t + k) for every channel c and offset k of the filter. Moments of two entries depend on how
far apart their offsets are, and on nothing else but the border:

    Σ_t x(c, t + k) x(c', t + k + δ) = Σ_u x(c, u) x(c', u + δ) − what of that is beyond the border of the grid.

There are 25 distances δ, of which half is the transpose of the other half, so 13 products of c × c instead of 81. On a map that
wraps around there is no border. With zeros around it, u = t + k leaves out the first row of the map where k points down, and
the last where it points up; terms of these rows are not zero anyway only if δ stays within the row. So with it for columns,

    T(k, k + δ) = F(δ) − Row(k, δ) [δ along the row] − Column(k, δ) [δ along the column] + Corner(k) [δ = 0].
"""

from itertools import product
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from symbayes.layers.path import Tables

#: Distances of which all others are the transpose: downwards, or to the right.
_HALF = [(down, right) for down in range(3) for right in range(-2, 3) if down > 0 or right >= 0]
#: Positions for each channel from which on the products are cheaper than patches: their sum has to be put in order.
_FEWEST = 4
#: As it is laid out here, channels first.
_Maps = Float[Tensor, "c n h w"]


def pays(inputs: Tensor) -> bool:
    """Whether this is the quicker way for maps."""
    n, c, *grid = inputs.shape
    return len(grid) == 2 and c > 1 and n * prod(grid) >= _FEWEST * c


def patch_moment(inputs: Float[Tensor, "n c h w"], *, wraps: bool, budget: int) -> Float[Tensor, "d d"]:
    """Σ r rᵀ over the rows of all 3 × 3 patches of maps that are padded by one cell, d = 9 c in the order of a filter.

    Args:
        inputs: Not padded.
        wraps: Whether the maps wrap around; else there are zeros around them.
        budget: Numbers that shifts of some of the data may have at a time.
    """
    _, c, h, w = inputs.shape
    total: Tensor | None = None
    for some in inputs.split(max(1, budget // (len(_HALF) * c * h * w))):
        maps = some.transpose(0, 1).contiguous()
        found = _correlations(maps, wraps)
        total = found if total is None else total + found
    assert total is not None
    edges = None if wraps else _edges(inputs.transpose(0, 1))
    return _arrange(total, edges)


def _correlations(maps: _Maps, wraps: bool) -> Float[Tensor, "13 c c"]:
    """Σ_u x(c, u) x(c', u + δ) for half of all distances."""
    c, _, h, w = maps.shape
    if wraps:
        down, right = (torch.arange(-2, size + 2, device=maps.device) % size for size in (h, w))
        around = maps.index_select(2, down).index_select(3, right)
    else:
        around = functional.pad(maps, (2, 2, 2, 2))
    shifts = torch.stack([around[:, :, 2 + i : 2 + i + h, 2 + j : 2 + j + w] for i, j in _HALF])
    return (shifts.reshape(len(_HALF) * c, -1) @ maps.reshape(c, -1).T).unflatten(0, (len(_HALF), c)).mT


def _edges(maps: _Maps) -> tuple[Float[Tensor, "6 c c"], Float[Tensor, "6 c c"], Float[Tensor, "4 c c"]]:
    """The same of the last and first rows alone, to the right; of the last and first columns, downwards; and of corners."""
    rows, columns = torch.stack([maps[:, :, -1], maps[:, :, 0]]), torch.stack([maps[..., -1], maps[..., 0]])
    corners = torch.stack([rows[..., -1], rows[..., 0]], 1).flatten(0, 1)
    along = []
    for lines in (rows, columns):
        longer = functional.pad(lines, (0, 2))
        shifts = torch.stack([longer[..., j : j + lines.shape[3]] for j in range(3)], 1).flatten(3)
        along.append((lines.flatten(2)[:, None] @ shifts.mT).flatten(0, 1))
    return along[0], along[1], corners @ corners.mT


def _arrange(
    correlations: Float[Tensor, "13 c c"],
    edges: tuple[Float[Tensor, "6 c c"], Float[Tensor, "6 c c"], Float[Tensor, "4 c c"]] | None,
) -> Float[Tensor, "d d"]:
    """The moments of all pairs of offsets in a filter."""
    c, tables = correlations.shape[1], _TABLES.on(correlations.device)
    blocks = torch.cat([correlations, correlations.mT])[tables["distance"]]
    if edges is not None:
        rows, columns, corners = edges
        blocks = blocks.index_add(0, tables["row at"], torch.cat([rows, rows.mT])[tables["row"]], alpha=-1)
        blocks = blocks.index_add(0, tables["column at"], torch.cat([columns, columns.mT])[tables["column"]], alpha=-1)
        blocks = blocks.index_add(0, tables["corner at"], corners)
    return blocks.view(9, 9, c, c).permute(2, 0, 3, 1).reshape(9 * c, 9 * c)


def _tables() -> dict[str, list[int]]:
    """For pairs of offsets, (i, j) and (k, m): which of the products are theirs, where transposes follow all others."""
    found: dict[str, list[int]] = {name: [] for name in ("distance", "row", "row at", "column", "column at", "corner at")}
    offsets = [(i, j) for i in range(3) for j in range(3)]
    for pair, ((i, j), (k, m)) in enumerate(product(offsets, offsets)):
        down, right = k - i, m - j
        half = (down, right) in _HALF
        found["distance"].append(_HALF.index((down, right) if half else (-down, -right)) + (0 if half else len(_HALF)))
        if down == 0 and i != 1:
            found["row at"].append(pair)
            found["row"].append(3 * (i // 2) + abs(right) + (6 if right < 0 else 0))
        if right == 0 and j != 1:
            found["column at"].append(pair)
            found["column"].append(3 * (j // 2) + abs(down) + (6 if down < 0 else 0))
        if down == right == 0 and i != 1 and j != 1:
            found["corner at"].append(pair)
    return found


_TABLES = Tables(_tables())
