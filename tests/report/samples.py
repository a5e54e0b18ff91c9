"""Small made-up summaries and histories, in the shape that training gives them."""

from base64 import b64encode
from typing import Any


def path_row(layer: str, path: str, share: float, symmetry: str | None = None) -> dict[str, Any]:
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


def sample_summary(layer: str = "block1", *, total: float = -1234.5) -> dict[str, Any]:
    """As an earlier version saved it: without tensors in its rows, and with words that claim too much."""
    rows = [path_row(layer, "dense", 0.03), path_row(layer, "conv", 0.97, "translation"), path_row("head", "Linear", 1.0)]
    return {
        "format": 1,
        "model": {"recipe": None, "description": "a network of two layers"},
        "likelihood": {"kind": "Categorical", "outputs": None},
        "prior": "TensorwisePrior",
        "num_data": 1000,
        "evidence": sample_evidence(total, layer),
        "symmetries": rows,
        "words": [f"{layer} keeps translation (conv 97 %, dense 3 %)"],
    }


def sample_history(totals: list[float | None], layer: str = "block1") -> list[dict[str, Any]]:
    return [
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


def sample_extent(
    name: str, value: float, unit: str = "°", bound: float | None = None, *, one_sided: bool = False
) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "bound": bound, "one_sided": one_sided}


def sample_image(shade: int, side: int = 4, channels: int = 1) -> dict[str, Any]:
    pixels = bytes((shade + 9 * index) % 256 for index in range(side * side * channels))
    return {"width": side, "height": side, "channels": channels, "pixels": b64encode(pixels).decode()}


def invariant_summary(*extents: dict[str, Any], orbits: int = 2) -> dict[str, Any]:
    """Of a run with extents, and so many rows of three images."""
    rows = [[sample_image(50 * row + 10 * column) for column in range(3)] for row in range(orbits)]
    return {**sample_summary(), "extents": list(extents), "orbits": rows}


def invariant_history(values: dict[str, list[float]]) -> list[dict[str, Any]]:
    """With these extents, by name, after each epoch."""
    epochs = [dict(zip(values, found, strict=True)) for found in zip(*values.values(), strict=True)]
    history = sample_history([-1500.0 + 10 * epoch for epoch in range(len(epochs))])
    return [{**record, "extents": extents} for record, extents in zip(history, epochs, strict=True)]
