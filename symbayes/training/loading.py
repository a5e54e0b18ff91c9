"""Results that were saved, read back: nothing in their files is believed before it is checked."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from symbayes.data.storage import DAMAGE, check_form, error_words, read_json
from symbayes.layout import weights
from symbayes.models import build_allconv
from symbayes.posterior.calibration import Calibration
from symbayes.posterior.posterior import Posterior, load_posterior
from symbayes.training.record import EvidenceRecord, Record
from symbayes.training.result import EXAMPLES, FORMAT, LIKELIHOODS, OUTPUTS, POSTERIOR, PRIORS, Result, example_outputs
from symbayes.training.symmetries import PathRow


class _Model(TypedDict):
    recipe: dict[str, Any] | None
    description: str


class _Likelihood(TypedDict):
    kind: str
    settings: dict[str, Any]
    learns_noise: NotRequired[bool]


class _Extent(TypedDict):
    name: str
    value: float
    unit: str
    bound: float | None
    one_sided: bool


class _Image(TypedDict):
    width: int
    height: int
    channels: int
    pixels: str


class Summary(TypedDict):
    """What `Result.summary` gives, out of a file."""

    format: int
    model: _Model
    likelihood: _Likelihood
    prior: str
    learn: NotRequired[list[str] | None]
    num_data: int
    evidence: EvidenceRecord
    symmetries: list[PathRow]
    words: list[str]
    extents: NotRequired[list[_Extent]]
    orbits: NotRequired[list[list[_Image]]]
    calibration: NotRequired[Calibration | None]


def read_records(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The summary of a saved result and the records of its epochs, as they were given to `write_records`.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If one is damaged, or of another version.
    """
    _require_files(folder, "result.json", "history.jsonl")
    try:
        summary, history = read_json(folder / "result.json"), read_json(folder / "history.jsonl", lines=True)
        if isinstance(summary, dict) and summary.get("format") == FORMAT:
            check_form(summary, Summary, "result.json")
            check_form(history, list[Record], "history.jsonl")
            _check_records(summary, history)
            return summary, history
    except ValueError as error:
        raise _damaged(folder, error) from error
    found = summary.get("format") if isinstance(summary, dict) else None
    raise ValueError(f"The result in {folder} has format {found}; this version reads format {FORMAT}.")


def load_result(folder: str | Path, model: nn.Module | None = None) -> Result:
    """A result that was saved; with its posterior, if that was saved, too.

    Args:
        folder: What `Result.save` was given.
        model: A module of the same structure, which gets the saved weights. Not needed for models of `allconv`.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If a file is damaged, or the model does not fit the weights.
    """
    folder = Path(folder)
    _require_files(folder, "result.json", "history.jsonl", "weights.safetensors")
    summary, records = read_records(folder)
    try:
        tensors = load_file(folder / "weights.safetensors")
        history = tuple(_record(saved) for saved in records)
    except (SafetensorError, *DAMAGE) as error:
        raise _damaged(folder, error) from error
    if model is None:
        model = _rebuilt(summary, tensors, folder)
    _load("model", model, tensors, folder)
    _check_outputs(model, tensors, folder)
    try:
        make = partial(LIKELIHOODS[summary["likelihood"]["kind"]], **summary["likelihood"]["settings"])
        likelihood = _built(make, "likelihood", tensors).requires_grad_(summary["likelihood"].get("learns_noise", True))
        for state in _state("likelihood", tensors).values():
            likelihood.to(state.dtype)
        prior = PRIORS[summary["prior"]](model, learn=summary.get("learn"))
    except (RuntimeError, *DAMAGE) as error:
        raise _damaged(folder, error) from error
    _load("likelihood", likelihood, tensors, folder)
    _load("prior", prior, tensors, folder)
    found = _posterior(folder / POSTERIOR, model)
    make_posterior = (lambda: found) if found is not None else None
    return Result(model, likelihood, prior, history, summary["num_data"], tensors.get(EXAMPLES), make_posterior)


def _require_files(folder: Path, *names: str) -> None:
    for name in names:
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder} must hold {name}, as Result.save writes it; it does not.")


def _check_records(summary: dict[str, Any], history: list[dict[str, Any]]) -> None:
    if summary["num_data"] < 1 or not history or history[-1].get("evidence") is None:
        raise ValueError("there must be data, and epochs of which the last has an evidence")
    names = [
        evidence[what].keys()
        for evidence in (summary["evidence"], history[-1]["evidence"])
        for what in ("precision", "effective")
    ]
    if any("evidence" not in record for record in history) or any(found != names[0] for found in names):
        raise ValueError("epochs must have an evidence or null, and the last that of result.json")


def _damaged(folder: Path, error: Exception) -> ValueError:
    return ValueError(f"The result in {folder} is damaged ({error_words(error)}). Copy it again, or train again.")


def _state(part: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(f"{part}:"): value for name, value in tensors.items() if name.startswith(f"{part}:")}


def _built(make: Callable[[], nn.Module], part: str, tensors: Mapping[str, Tensor]) -> Any:
    """A part, laid out without memory first: what a damaged file asks for may be more than there is."""
    with torch.device("meta"):
        wanted = {name: tuple(value.shape) for name, value in make().state_dict().items()}
    if wanted != {name: tuple(value.shape) for name, value in _state(part, tensors).items()}:
        raise ValueError(f"the {part} in result.json is not that in weights.safetensors")
    return make()


def _load(part: str, module: nn.Module, tensors: Mapping[str, Tensor], folder: Path) -> None:
    state = _state(part, tensors)
    for name, value in module.state_dict().items():
        if name in state and state[name].is_floating_point() != value.is_floating_point():
            raise ValueError(f"The {part} does not fit what is saved in {folder}: {name} must be {value.dtype}.")
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        raise ValueError(f"The {part} does not fit what is saved in {folder}: {error}") from error


def _check_outputs(model: nn.Module, tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Refuse a model that has the weights and computes something else: buffers that are not saved, other settings."""
    if EXAMPLES not in tensors or OUTPUTS not in tensors:
        return
    wanted = tensors[OUTPUTS]
    try:
        found = example_outputs(model, tensors[EXAMPLES]).to(wanted)
        same = found.shape == wanted.shape and torch.allclose(found, wanted, rtol=0.01, atol=0.01 * float(wanted.abs().max()))
    except (RuntimeError, *DAMAGE) as error:
        raise _damaged(folder, error) from error
    if not same:
        raise ValueError(
            f"The model must give the outputs that it gave when it was saved in {folder}; with the same weights it gives "
            "others. Build it with the same settings, and keep what it computes with in parameters or persistent buffers."
        )


def _rebuilt(summary: dict[str, Any], tensors: Mapping[str, Tensor], folder: Path) -> nn.Module:
    recipe = summary["model"]["recipe"]
    if recipe is None:
        raise ValueError(
            f"The model in {folder} ({summary['model']['description']}) was not made by sb.allconv, so it cannot be built from "
            "the files alone. Pass one of the same structure: sb.load_result(folder, model=...)."
        )
    try:
        check_form(recipe.get("in_shape"), list[int], "in_shape")
        model: nn.Module = _built(lambda: build_allconv(**{**recipe, "in_shape": tuple(recipe["in_shape"])}), "model", tensors)
        model.to(next(iter(_state("model", tensors).values())).dtype)
    except (RuntimeError, *DAMAGE) as error:
        raise _damaged(folder, error) from error
    for name, parameter in weights(model).items():
        parameter.requires_grad_(name in summary["evidence"]["precision"])  # what was frozen stays so
    return model


def _record(saved: dict[str, Any]) -> Record:
    evidence = saved.pop("evidence")
    return Record(**saved, evidence=EvidenceRecord(**evidence) if evidence else None)


def _posterior(path: Path, model: nn.Module) -> Posterior | None:
    if not path.is_file():
        return None
    found = load_posterior(path, next(model.parameters()).device)
    known = {name: tuple(weight.shape) for name, weight in weights(model).items()}
    if {name: tuple(value.shape) for name, value in found.mean.items()} != known:
        raise ValueError(
            f"The posterior in {path} does not fit the weights beside it. Copy the folder again; or remove the file, and do "
            "without a posterior."
        )
    return found
