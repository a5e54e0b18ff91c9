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
from symbayes.precision import multiply

#: Distances of which all others are the transpose: downwards, or to the right.
_HALF = [(down, right) for down in range(3) for right in range(-2, 3) if down > 0 or right >= 0]
#: Positions for each channel from which on the products are cheaper than patches: their sum has to be put in order.
_FEWEST = 4
#: Channels from which on a product of c × c is worth a call of its own.
_MANY = 20
#: Products of a GPU that keep all of it busy, and the size of one.
_PRODUCTS, _TILE = 264, 64


def pays(inputs: Tensor) -> bool:
    """Whether this is the quicker way for maps."""
    n, c, *grid = inputs.shape
    return len(grid) == 2 and c > 1 and n * prod(grid) >= _FEWEST * c


def patch_moment(inputs: Float[Tensor, "n c h w"], *, wraps: bool, budget: int) -> Float[Tensor, "d d"]:
    """Σ r rᵀ over the rows of all 3 × 3 patches of maps that are padded by one cell, d = 9 c in the order of a filter.

    Args:
        inputs: Not padded.
        wraps: Whether the maps wrap around; else there are zeros around them.
        budget: Numbers that are formed of some of the data at a time.
    """
    _, c, h, w = inputs.shape
    correlations, copies = (_by_slices, 2) if c >= _MANY else (_by_shifts, len(_HALF))
    total: Tensor | None = None
    for some in inputs.split(max(1, budget // (copies * c * h * w))):
        found = correlations(some, wraps)
        total = found if total is None else total + found
    assert total is not None
    return _arrange(total, None if wraps else _edges(inputs))


def _by_shifts(inputs: Float[Tensor, "n c h w"], wraps: bool) -> Float[Tensor, "13 c c"]:
    """Σ_u x(c, u) x(c', u + δ) for half of all distances: shifts of all, one below the other, in one product."""
    maps = inputs.transpose(0, 1).contiguous()
    c, _, h, w = maps.shape
    around = _wrapped(maps, (-2, h + 2)) if wraps else functional.pad(maps, (2, 2, 2, 2))
    shifts = torch.stack([around[:, :, 2 + i : 2 + i + h, 2 + j : 2 + j + w] for i, j in _HALF])
    return multiply(shifts.reshape(len(_HALF) * c, -1), maps.reshape(c, -1).T).unflatten(0, (len(_HALF), c)).mT


def _by_slices(inputs: Float[Tensor, "n c h w"], wraps: bool) -> Float[Tensor, "13 c c"]:
    """The same without copies: with cells row by row, and all data of a cell side by side, a shift is a slice."""
    n, c, h, w = inputs.shape
    pieces = _pieces(n, c, h, inputs.device)
    around = _wrapped(inputs, (0, h + 2)) if wraps else inputs
    cells = around.unflatten(0, (pieces, -1)).permute(3, 0, 4, 1, 2).contiguous()  # [h, pieces, w, n / pieces, c]
    rows = cells.flatten(2, 3).flatten(0, 1)
    each, found = n // pieces, []
    for down, right in _HALF:
        if wraps:
            high, wide, left = h, w, (2, 2 + right)
        else:
            high, wide, left = max(0, h - down), max(0, w - abs(right)), (max(0, -right), max(0, right))
        own, moved = (
            rows[top * pieces : (top + high) * pieces, start * each : (start + wide) * each]
            for top, start in zip((0, down), left, strict=True)
        )
        found.append(multiply(own.mT, moved).sum(0))
    return torch.stack(found)


def _wrapped(maps: Float[Tensor, "_ _ h w"], rows: tuple[int, int]) -> Float[Tensor, "_ _ rows columns"]:
    """Maps that wrap around, from one row up to another, and with two more columns on either side."""
    h, w = maps.shape[2:]
    down, right = (torch.arange(*span, device=maps.device) % size for span, size in ((rows, h), ((-2, w + 2), w)))
    return maps.index_select(2, down).index_select(3, right)


def _pieces(n: int, c: int, lines: int, device: torch.device) -> int:
    """Parts of the data with products of their own, so that a GPU has enough of them at a time; so many divide n."""
    wanted = _PRODUCTS // (lines * (-(-c // _TILE)) ** 2) if device.type == "cuda" else 1
    return next(count for count in range(max(1, min(wanted, n)), 0, -1) if n % count == 0)


def _edges(
    inputs: Float[Tensor, "n c h w"],
) -> tuple[Float[Tensor, "6 c c"], Float[Tensor, "6 c c"], Float[Tensor, "4 c c"]]:
    """The same of the last and first rows alone, to the right; of the last and first columns, downwards; and of corners."""
    rows = torch.stack([inputs[:, :, -1], inputs[:, :, 0]])
    columns = torch.stack([inputs[..., -1], inputs[..., 0]])
    corners = torch.stack([rows[..., -1], rows[..., 0]], 1).flatten(0, 1)
    return _along(rows), _along(columns), multiply(corners.mT, corners)


def _along(lines: Float[Tensor, "2 n c cells"]) -> Float[Tensor, "6 c c"]:
    """Σ_u x(c, u) x(c', u + δ) of two lines, each for δ from 0 to 2."""
    _, n, c, cells = lines.shape
    pieces = _pieces(n, c, 2, lines.device)
    along = lines.unflatten(1, (pieces, -1)).permute(0, 1, 4, 2, 3).flatten(2, 3)  # [2, pieces, cells · n / pieces, c]
    each, found = n // pieces, []
    for distance in range(3):
        rest = max(0, cells - distance)
        own, moved = (along[:, :, start * each : (start + rest) * each] for start in (0, distance))
        found.append(multiply(own.mT, moved).sum(1))
    return torch.stack(found, 1).flatten(0, 1)


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
