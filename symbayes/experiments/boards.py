"""Tic-tac-toe: every board at which a game can end, who has won it, and which way the winning line runs.

Who has won is the same however the board is turned and flipped; a quarter turn makes a column of a row, so the way is not.
"""

from itertools import product

import torch
from torch import Tensor

SIDE = 3
_ROWS = [(0, 1, 2), (3, 4, 5), (6, 7, 8)]
_COLUMNS = [(0, 3, 6), (1, 4, 7), (2, 5, 8)]
_DIAGONALS = [(0, 4, 8), (2, 4, 6)]
_DRAW, _CROSS, _CIRCLE = 0, 1, 2

#: Classes by question.
TASKS = {"who has won?": ("draw", "×", "○"), "which way does the line run?": ("none", "row", "column", "diagonal")}


def final_boards() -> tuple[Tensor, dict[str, Tensor]]:
    """Boards [n, 2, 3, 3] with a channel for crosses and one for circles, and the classes by question; 958 of them."""
    boards, winners, ways = [], [], []
    for cells in product((0, _CROSS, _CIRCLE), repeat=SIDE * SIDE):
        ended = _ended(cells)
        if ended:
            boards.append([[cell == player for cell in cells] for player in (_CROSS, _CIRCLE)])
            winners.append(ended[0])
            ways.append(ended[1])
    inputs = torch.tensor(boards, dtype=torch.float32).unflatten(2, (SIDE, SIDE))
    return inputs, dict(zip(TASKS, (torch.tensor(winners), torch.tensor(ways)), strict=True))


def _ended(cells: tuple[int, ...]) -> tuple[int, int] | None:
    """The winner and the way of the winning line, of two the first of row, column, diagonal; None if no game ends there."""
    crosses, circles = cells.count(_CROSS), cells.count(_CIRCLE)
    cross, circle = _way(cells, _CROSS), _way(cells, _CIRCLE)
    if cross and not circle and crosses == circles + 1:
        return _CROSS, cross
    if circle and not cross and crosses == circles:
        return _CIRCLE, circle
    return (_DRAW, 0) if not cross and not circle and crosses == 5 and circles == 4 else None


def _way(cells: tuple[int, ...], player: int) -> int:
    ways = (_ROWS, _COLUMNS, _DIAGONALS)
    return next((way for way, lines in enumerate(ways, start=1) if any(_owns(cells, line, player) for line in lines)), 0)


def _owns(cells: tuple[int, ...], line: tuple[int, ...], player: int) -> bool:
    return all(cells[cell] == player for cell in line)
