"""Results that were saved, read back: from a folder, or from the Hugging Face Hub."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from symbayes.data.storage import DAMAGE, check_form
from symbayes.layout import weights
from symbayes.likelihoods.likelihood import registered
from symbayes.models import build_allconv
from symbayes.posterior.posterior import Posterior, parse_posterior
from symbayes.training.hub import fetch, is_on_hub
from symbayes.training.rebuild import build_layers, refuse_large
from symbayes.training.record import (
    HISTORY,
    POSTERIOR,
    SUMMARY,
    WEIGHTS,
    Summary,
    damaged,
    parse_records,
    read_files,
)
from symbayes.training.result import EXAMPLES, OUTPUTS, PRIORS, Known, Result, example_outputs
from symbayes.training.symmetries import measured_before


def load_result(folder: str | Path, model: nn.Module | None = None) -> Result:
    """A result that was saved; with its posterior, if that was saved, too.

    Args:
        folder: What `Result.save` was given; or "hf://owner/name", what `Result.push_to_hub` was, with "@" and a branch, tag or
            commit of it. What is downloaded is checked as any folder is.
        model: A module of the same structure, which gets the saved weights. Not needed for models of `allconv`, and for
            `nn.Sequential` of torch's own layers.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If a file is damaged, or the model does not fit the weights.
        ImportError: If it is on the Hub, and the package huggingface_hub is not there.
    """
    folder = fetch(str(folder)) if is_on_hub(folder) else Path(folder)
    contents = read_files(folder, (SUMMARY, HISTORY, WEIGHTS), (POSTERIOR,))
    summary, history = parse_records(contents, folder)
    try:
        tensors = load(contents.files[WEIGHTS])
        _refuse_not_finite(tensors)
    except (SafetensorError, *DAMAGE) as error:
        raise damaged(folder, error) from error
    if model is None:
        model = _rebuilt(summary, tensors, folder)
    _load("model", model, tensors, folder)
    _check_outputs(model, tensors, folder)
    try:
        make = partial(registered(summary.likelihood.kind), **summary.likelihood.settings)
        likelihood = _built(make, "likelihood", tensors).requires_grad_(summary.likelihood.learns_noise)
        for state in _state("likelihood", tensors).values():
            likelihood.to(state.dtype)
        prior = PRIORS[summary.prior](model, learn=summary.learn)
    except (RuntimeError, *DAMAGE) as error:
        raise damaged(folder, error) from error
    _load("likelihood", likelihood, tensors, folder)
    _load("prior", prior, tensors, folder)
    found = _posterior(contents.files.get(POSTERIOR), folder / POSTERIOR, model)
    make_posterior = Known(found) if found is not None else None
    measured, examples = measured_before(summary.symmetries) or None, tensors.get(EXAMPLES)
    size, stopped = summary.num_data, summary.is_partial
    return Result(model, likelihood, prior, history, size, examples, make_posterior, measured, stopped, summary.floor)


def _refuse_not_finite(tensors: Mapping[str, Tensor]) -> None:
    """Refuse numbers that no training leaves. A buffer may be infinite, as masks of attention are; none is not a number."""
    for name, value in tensors.items():
        if value.is_floating_point() and value.isnan().any():
            raise ValueError(f"{name} in {WEIGHTS} must be numbers; some are not")


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
    for name, _ in module.named_parameters():
        if name in state and not state[name].isfinite().all():
            raise damaged(folder, ValueError(f"{part}:{name} in {WEIGHTS} must be finite"))
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
        raise damaged(folder, error) from error
    if not same:
        raise ValueError(
            f"The model must give the outputs that it gave when it was saved in {folder}; with the same weights it gives "
            "others. Build it with the same settings, and keep what it computes with in parameters or persistent buffers."
        )


def _rebuilt(summary: Summary, tensors: Mapping[str, Tensor], folder: Path) -> nn.Module:
    recipe, layers = summary.model.recipe, summary.model.layers
    if recipe is None and layers is None:
        raise ValueError(
            f"The model in {folder} ({summary.model.description}) was not made by sb.allconv, nor of torch's layers in an "
            "nn.Sequential, so files alone do not tell it. Pass one of the same structure: sb.load_result(folder, model=...)."
        )
    try:
        if recipe is not None:
            check_form(recipe.get("in_shape"), list[int], "in_shape")
            make: Callable[[], nn.Module] = partial(build_allconv, **{**recipe, "in_shape": tuple(recipe["in_shape"])})
        else:
            make = partial(build_layers, layers or {})
            refuse_large(layers or {}, tensors.get(EXAMPLES))
        model: nn.Module = _built(make, "model", tensors)
        types = [value.dtype for value in _state("model", tensors).values() if value.is_floating_point()]
        if not types:
            raise ValueError("the model has no weights")
        model.to(types[0])
    except (RuntimeError, *DAMAGE) as error:
        raise damaged(folder, error) from error
    for name, parameter in weights(model).items():
        parameter.requires_grad_(name in summary.evidence.precision)  # what was frozen stays so
    return model


def _posterior(content: bytes | None, path: Path, model: nn.Module) -> Posterior | None:
    if content is None:
        return None
    found = parse_posterior(content, path, next(model.parameters()).device)
    known = {name: tuple(weight.shape) for name, weight in weights(model).items()}
    if {name: tuple(value.shape) for name, value in found.mean.items()} != known:
        raise ValueError(
            f"The posterior in {path} does not fit the weights beside it. Copy the folder again; or remove the file, and do "
            "without a posterior."
        )
    return found
