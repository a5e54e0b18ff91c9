"""A posterior as a file: its tensors as safetensors, and in their header what they are, as JSON; no pickle."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from symbayes.posterior.posterior import Members, Posterior
from symbayes.posterior.spread import DiagonalSpread, EigenSpread, FullSpread, MatrixSpread, Spread

_FORMAT = 1
_SPREADS: dict[str, type[Spread]] = {kind.__name__: kind for kind in (DiagonalSpread, FullSpread, MatrixSpread, EigenSpread)}


def save_posterior(posterior: Posterior, path: str | Path) -> None:
    """Write it to one file.

    Raises:
        ValueError: If a spread is of a kind that could not be built again.
    """
    tensors: dict[str, Tensor] = {f"mean:{name}": value for name, value in posterior.mean.items()}
    parts: list[dict[str, Any]] = []
    for index, (members, spread) in enumerate(posterior.parts):
        if type(spread).__name__ not in _SPREADS:
            raise ValueError(
                f"To be saved, a posterior must have spreads among {', '.join(_SPREADS)}; got {type(spread).__name__}. Save "
                "its tensors yourself."
            )
        tensors |= {f"{index}:{name}": value for name, value in vars(spread).items()}
        parts.append({"shapes": dict(members.shapes), "column": members.column, "spread": type(spread).__name__})
    about = {"format": _FORMAT, "kind": posterior.kind, "predicts": posterior.predicts, "parts": parts}
    contiguous = {name: value.detach().contiguous() for name, value in tensors.items()}
    save_file(contiguous, path, {"posterior": json.dumps(about)})


def load_posterior(path: str | Path, device: torch.device | None = None) -> Posterior:
    """One that was saved.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is damaged, or of another version.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path} must be a file, as save_posterior writes it; there is none.")
    try:
        with safe_open(path, "pt", str(device or "cpu")) as file:
            about = json.loads(file.metadata()["posterior"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dictionary)
        if about["format"] != _FORMAT:
            raise ValueError(f"The posterior in {path} has format {about['format']}; this version reads format {_FORMAT}.")
        mean = {name.removeprefix("mean:"): value for name, value in tensors.items() if name.startswith("mean:")}
        parts = tuple(_part(saved, index, tensors) for index, saved in enumerate(about["parts"]))
        return Posterior(mean, parts, about["kind"], about["predicts"])
    except (json.JSONDecodeError, SafetensorError, KeyError, TypeError) as error:
        raise ValueError(
            f"The posterior in {path} is damaged ({error}). Copy it again; or remove the file, and do without a posterior."
        ) from error


def _part(saved: dict[str, Any], index: int, tensors: dict[str, Tensor]) -> tuple[Members, Spread]:
    shapes = {name: tuple(shape) for name, shape in saved["shapes"].items()}
    column = (saved["column"][0], saved["column"][1]) if saved["column"] is not None else None
    prefix = f"{index}:"
    fields = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    return Members(shapes, column), _SPREADS[saved["spread"]](**fields)
