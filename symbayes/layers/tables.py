"""Index tables of a layer: fixed numbers that follow its tensors from device to device, and are no part of its state."""

from collections.abc import Mapping

import torch
from numpy.typing import ArrayLike
from torch import Tensor


class Tables:
    """Tables by name, copied to a device when they are first used there.

    They are no buffers, so that a layer whose state is emptied and loaded again (`to_empty`) keeps them, and a layer that is
    built under another default device finds them where its weights are.
    """

    def __init__(self, tables: Mapping[str, ArrayLike]) -> None:
        self._on = {torch.device("cpu"): {name: torch.as_tensor(table, device="cpu") for name, table in tables.items()}}

    def on(self, device: torch.device) -> dict[str, Tensor]:
        """All tables, on a device."""
        if device not in self._on:
            self._on[device] = {name: table.to(device) for name, table in self._on[torch.device("cpu")].items()}
        return self._on[device]
