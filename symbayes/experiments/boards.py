"""Tic-tac-toe: every board at which a game can end, who has won it, and which way the winning line runs.

Who has won is the same however the board is turned and flipped; a quarter turn makes a column of a row, so the way is not.
"""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

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
