"""Small made-up summaries and histories, in the shape that training gives them."""

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


def sample_summary(layer: str = "block1", *, words: list[str] | None = None, total: float = -1234.5) -> dict[str, Any]:
    rows = [path_row(layer, "dense", 0.03), path_row(layer, "conv", 0.97, "translation"), path_row("head", "Linear", 1.0)]
    return {
        "format": 1,
        "model": {"recipe": None, "description": "a network of two layers"},
        "likelihood": {"kind": "Categorical", "outputs": None},
        "prior": "TensorwisePrior",
        "num_data": 1000,
        "evidence": sample_evidence(total, layer),
        "symmetries": rows,
        "words": [f"{layer} keeps translation (conv 97 %, dense 3 %)"] if words is None else words,
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
