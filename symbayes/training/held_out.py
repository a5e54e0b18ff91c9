"""What a trained model is worth on data that were held out."""

from collections.abc import Sequence

import torch
from torch import Tensor

from symbayes.data.source import Data, source_for
from symbayes.training.record import HeldOut
from symbayes.training.result import Result

#: Classes of which each is confused with each; more are no table to look at.
_MOST = 20


def held_out(result: Result, data: Data, names: Sequence[str] = (), by: str = "plug-in", batch_size: int = 500) -> HeldOut:
    """Mean metrics on data that were held out and, of a few classes, which is taken for which; for `Result.save`.

    Args:
        result: Of training.
        data: Of any kind that `fit` takes.
        names: What classes are called.
        by: As `Result.predict` takes it.
        batch_size: Data in a forward pass.
    """
    source = source_for(result.model, data)
    counts: Tensor | None = None
    totals: dict[str, float] = {}
    for inputs, targets in source.batches(batch_size):
        prediction = result.predict(inputs, by, batch_size=batch_size)
        for name, values in prediction.metrics(targets).items():
            totals[name] = totals.get(name, 0.0) + float(values.sum())
        size = prediction.mean.shape[1]
        if result.likelihood.has_classes and targets.ndim == 1 and size <= _MOST:
            pairs = size * targets.cpu() + prediction.classes().cpu()
            found = torch.bincount(pairs, minlength=size**2).reshape(size, size)
            counts = found if counts is None else counts + found
    confusion = () if counts is None else tuple(map(tuple, counts.tolist()))
    return HeldOut(source.size, {name: total / source.size for name, total in totals.items()}, by, tuple(names), confusion)
