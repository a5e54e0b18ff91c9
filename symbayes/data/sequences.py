"""Embedded sequences: one of four short motifs somewhere in noise. One task asks which, the other which and where."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from symbayes.data.task import Pair, Task

_LENGTH, _MOTIF, _QUARTER = 64, 8, 16
_TRAINING, _TEST = 600, 1000
_SEED = 1000
_NOISE = 0.3


def motifs() -> np.ndarray:
    """Four wave shapes of eight cells and equal energy: up, down, and one and two periods of a sine."""
    time = (np.arange(_MOTIF) + 0.5) / _MOTIF
    shapes = np.stack([2 * time - 1, 1 - 2 * time, np.sin(2 * np.pi * time), np.sin(4 * np.pi * time)])
    return np.asarray(shapes / np.sqrt((shapes**2).mean(1, keepdims=True)))


def _pair(size: int, rng: np.random.Generator, places_matter: bool) -> Pair:
    kinds, quarters = rng.integers(0, 4, (2, size))
    starts = _QUARTER * quarters + rng.integers(0, _QUARTER - _MOTIF + 1, size)
    sequences = _NOISE * rng.standard_normal((size, _LENGTH))
    for sequence, motif, start in zip(sequences, motifs()[kinds], starts, strict=True):
        sequence[start : start + _MOTIF] += motif
    targets = kinds + 4 * quarters if places_matter else kinds
    return torch.tensor(sequences[:, None], dtype=torch.float32), torch.tensor(targets, dtype=torch.long)


def _task(name: str, places_matter: bool) -> Task:
    rng = np.random.default_rng(_SEED)
    return Task(name, _pair(_TRAINING, rng, places_matter), _pair(_TEST, rng, places_matter), 16 if places_matter else 4)


#: By name. Both have the same inputs, a motif that lies within one quarter of the sequence; "motifs" asks which motif it is,
#: "placed-motifs" for the quarter, too: motif + 4 · quarter.
SEQUENCES: dict[str, Callable[[str], Task]] = {
    "motifs": partial(_task, places_matter=False),
    "placed-motifs": partial(_task, places_matter=True),
}
