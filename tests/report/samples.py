"""Small made-up summaries and histories, in the shape that training gives them."""

from base64 import b64encode
from dataclasses import replace
from typing import Any

from symbayes.data.storage import from_json
from symbayes.invariance.extents import ExtentSummary
from symbayes.invariance.orbit_average import Image
from symbayes.training.record import Record, Summary
from symbayes.training.symmetries import PathRow


def path_row(layer: str, path: str, share: float, symmetry: str | None = None, **more: Any) -> PathRow:
    return PathRow(**{**saved_row(layer, path, share, symmetry), **more})


def saved_row(layer: str, path: str, share: float, symmetry: str | None = None) -> dict[str, Any]:
    return {
        "layer": layer,
        "path": path,
        "symmetry": symmetry,
        "parameters": 1282,
        "precision": 3.091,
        "effective": 302.84,
        "share": share,
    }


def sample_evidence(total: float, layer: str = "block1") -> dict[str, Any]:
    tensors = {
        f"{layer}.paths.conv.weight": 2.5,
        f"{layer}.paths.dense.weight": 400.0,
        f"{layer}.paths.conv.bias": 1.0,
        "head.weight": 3.0,
    }
    return {
        "log_likelihood": total + 30.0,
        "log_prior": -100.0,
        "log_volume": 70.0,
        "total": total,
        "estimator": "KFAC (expand, exact Fisher)",
        "precision": tensors,
        "effective": dict.fromkeys(tensors, 1.0),
        "noise": [],
    }


def sample_summary(layer: str = "block1", *, total: float = -1234.5) -> Summary:
    """As an earlier version saved it: without tensors in its rows, and with words that claim too much."""
    rows = [saved_row(layer, "dense", 0.03), saved_row(layer, "conv", 0.97, "translation"), saved_row("head", "Linear", 1.0)]
    saved = {
        "format": 1,
        "model": {"recipe": None, "description": "a network of two layers"},
        "likelihood": {"kind": "Categorical", "outputs": None},
        "prior": "TensorwisePrior",
        "num_data": 1000,
        "evidence": sample_evidence(total, layer),
        "symmetries": rows,
        "words": [f"{layer} keeps translation (conv 97 %, dense 3 %)"],
    }
    return from_json(saved, Summary, "summary")


def sample_history(totals: list[float | None], layer: str = "block1") -> list[Record]:
    saved = [
        {
            "epoch": epoch,
            "epochs": len(totals),
            "seconds": 1.5 * epoch,
            "learning_rate": 1e-3,
            "loss": 2.0 / epoch,
            "evidence": None if total is None else sample_evidence(total, layer),
        }
        for epoch, total in enumerate(totals, start=1)
    ]
    return from_json(saved, list[Record], "history")


def sample_extent(
    name: str, value: float, unit: str = "°", bound: float | None = None, *, one_sided: bool = False
) -> ExtentSummary:
    return ExtentSummary(name, value, unit, bound, one_sided)


def sample_image(shade: int, side: int = 4, channels: int = 1) -> Image:
    pixels = bytes((shade + 9 * index) % 256 for index in range(side * side * channels))
    return Image(side, side, channels, b64encode(pixels).decode())


def invariant_summary(*extents: ExtentSummary, orbits: int = 2) -> Summary:
    """Of a run with extents, and so many rows of three images."""
    rows = tuple(tuple(sample_image(50 * row + 10 * column) for column in range(3)) for row in range(orbits))
    return replace(sample_summary(), extents=extents, orbits=rows)


def invariant_history(values: dict[str, list[float]]) -> list[Record]:
    """With these extents, by name, after each epoch."""
    epochs = [dict(zip(values, found, strict=True)) for found in zip(*values.values(), strict=True)]
    history = sample_history([-1500.0 + 10 * epoch for epoch in range(len(epochs))])
    return [replace(record, extents=extents) for record, extents in zip(history, epochs, strict=True)]
