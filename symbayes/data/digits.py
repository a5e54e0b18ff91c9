"""Scikit-learn's real 8×8 digits, embedded in the package it ships with, on a 16×16 canvas: the tasks of ELLA's Table 1."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from symbayes.data.task import Pair, Task

_TRAINING = 1400
_SEED = 1000


def digits(name: str, *, quadrant_matters: bool) -> Task:
    """Digits in one of four quadrants: which digit, or which digit and which quadrant (digit + 10 · quadrant).

    Each training digit stands in one quadrant, drawn at random; each test digit in all four.
    """
    source = load_digits()
    rng = np.random.default_rng(_SEED)
    order = rng.permutation(len(source.images))
    images, labels = source.images[order] / 16.0, source.target[order]
    mean, deviation = images[:_TRAINING].mean() / 4, images[:_TRAINING].std() / 2
    classes = 40 if quadrant_matters else 10

    def placed(part: slice, quadrants: np.ndarray) -> Pair:
        canvas = np.zeros((len(quadrants), 1, 16, 16))
        chosen = np.resize(images[part], (len(quadrants), 8, 8))
        for image, digit, quadrant in zip(canvas, chosen, quadrants, strict=True):
            top, left = 8 * (quadrant // 2), 8 * (quadrant % 2)
            image[0, top : top + 8, left : left + 8] = digit
        target = np.resize(labels[part], len(quadrants)) + (10 * quadrants if quadrant_matters else 0)
        inputs: Tensor = torch.tensor((canvas - mean) / deviation, dtype=torch.float32)
        return inputs, torch.tensor(target, dtype=torch.long)

    held_out = len(images) - _TRAINING
    train = placed(slice(None, _TRAINING), rng.integers(0, 4, _TRAINING))
    test = placed(slice(_TRAINING, None), np.repeat(np.arange(4), held_out))
    return Task(name, train, test, classes)
