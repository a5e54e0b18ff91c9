"""A posterior as a file: its tensors as safetensors, and in their header what they are, as JSON; no pickle."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from symbayes.data.plain import DAMAGE, check_form, error_words
from symbayes.data.whole import write_whole
from symbayes.posterior.posterior import Members, Posterior
from symbayes.posterior.spread import DiagonalSpread, EigenSpread, FullSpread, MatrixSpread, Spread

_FORMAT = 1
_SPREADS: dict[str, type[Spread]] = {kind.__name__: kind for kind in (DiagonalSpread, FullSpread, MatrixSpread, EigenSpread)}


class _Part(TypedDict):
    shapes: dict[str, list[int]]
    column: list[int] | None
    spread: str


class _About(TypedDict):
    format: int
    kind: str
    predicts: Literal["sampled", "linearised"]
    parts: list[_Part]


def save_posterior(posterior: Posterior, path: str | Path) -> None:
    """Write it to one file; what it raises is said at `saved_posterior`."""
    write_whole(Path(path), saved_posterior(posterior))


def saved_posterior(posterior: Posterior) -> bytes:
    """It as a file.

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
    return save(contiguous, {"posterior": json.dumps(about)})


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
        if isinstance(about, dict) and about.get("format") == _FORMAT:
            check_form(about, _About, "posterior")
            mean = {name.removeprefix("mean:"): value for name, value in tensors.items() if name.startswith("mean:")}
            parts = tuple(_part(saved, index, tensors) for index, saved in enumerate(about["parts"]))
            _check(mean, parts)
            return Posterior(mean, parts, about["kind"], about["predicts"])
    except (SafetensorError, RuntimeError, *DAMAGE) as error:
        raise ValueError(
            f"The posterior in {path} is damaged ({error_words(error)}). Copy it again; or remove the file, and do without a "
            "posterior."
        ) from error
    found = about.get("format") if isinstance(about, dict) else None
    raise ValueError(f"The posterior in {path} has format {found}; this version reads format {_FORMAT}.")


def _part(saved: dict[str, Any], index: int, tensors: dict[str, Tensor]) -> tuple[Members, Spread]:
    shapes = {name: tuple(shape) for name, shape in saved["shapes"].items()}
    column = (saved["column"][0], saved["column"][1]) if saved["column"] is not None else None
    prefix = f"{index}:"
    fields = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    return Members(shapes, column), _SPREADS[saved["spread"]](**fields)


def _check(mean: Mapping[str, Tensor], parts: Sequence[tuple[Members, Spread]]) -> None:
    """Refuse parts that are not of the tensors they name, by a draw that takes no memory."""
    known = [*mean.values(), *(value for _, spread in parts for value in vars(spread).values())]
    if not all(value.is_floating_point() for value in known):
        raise ValueError("all tensors must be real numbers")
    for members, spread in parts:
        fields = {name: value.to("meta", torch.float32) for name, value in vars(spread).items()}
        noise = torch.empty(1, members.size, device="meta")
        drawn = members.split(
            type(spread)(**{name: value.to("meta", torch.float32) for name, value in fields.items()}).root(noise)
        )
        for name, value in drawn.items():
            if value.shape[1:] != mean[name].shape:
                raise ValueError(f"{name} must have the shape {tuple(mean[name].shape)} of its mean")
