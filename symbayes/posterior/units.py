"""Which hidden units of a network may change places: found where layers stand in a sequence, and checked by numbers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import cast

import torch
from torch import Tensor, nn

from symbayes.curvature.evaluate import evaluating
from symbayes.invariance.filters import FilterBank
from symbayes.invariance.orbit_average import OrbitAverage
from symbayes.layers.scalar import Scale, Shift
from symbayes.layout import Layout, call_with, weights
from symbayes.models import ResidualBlock
from symbayes.posterior.permutations import HiddenUnits

# Types are compared as they are, for a subclass may compute something else.
_ELEMENTWISE = {
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus, nn.Softsign),
    *(nn.Tanh, nn.Sigmoid, nn.LogSigmoid, nn.Hardtanh, nn.Hardsigmoid, nn.Hardswish, nn.Tanhshrink, nn.Softshrink),
    *(nn.Hardshrink, nn.Threshold, nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout),
    *(Scale, Shift),
}
#: By the axes of the grid that they are for.
_CONVOLUTIONS: dict[type[nn.Module], int] = {nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3}
_POOLS: dict[type[nn.Module], int] = {
    **{nn.MaxPool1d: 1, nn.AvgPool1d: 1, nn.AdaptiveMaxPool1d: 1, nn.AdaptiveAvgPool1d: 1},
    **{nn.MaxPool2d: 2, nn.AvgPool2d: 2, nn.AdaptiveMaxPool2d: 2, nn.AdaptiveAvgPool2d: 2},
    **{nn.MaxPool3d: 3, nn.AvgPool3d: 3, nn.AdaptiveMaxPool3d: 3, nn.AdaptiveAvgPool3d: 3},
}
_NORMS: dict[type[nn.Module], int] = {
    **{nn.BatchNorm1d: 1, nn.BatchNorm2d: 2, nn.BatchNorm3d: 3},
    **{nn.InstanceNorm1d: 1, nn.InstanceNorm2d: 2, nn.InstanceNorm3d: 3},
}
#: Weights at which outputs are compared.
_TRIALS = 3


@dataclass(frozen=True)
class _Open:
    """Units that a layer gave, and nothing took yet."""

    name: str
    count: int
    #: The axis of features that runs over units, counted from the end.
    axis: int
    #: Entries of that axis for each unit; None where maps were flattened, which the next layer tells.
    repeat: int | None
    axes: dict[str, int]
    repeats: dict[str, int] = field(default_factory=dict)

    def standing(self, tensors: Sequence[str], axis: int, size: int) -> "_Open | None":
        """The same, which stand also in an axis, of so many entries, of some tensors; None if they do not go into it."""
        repeat = size // self.count if self.repeat is None else self.repeat
        if repeat < 1 or repeat * self.count != size:
            return None
        axes = self.axes | dict.fromkeys(tensors, axis)
        repeats = self.repeats | dict.fromkeys(tensors if repeat > 1 else (), repeat)
        return replace(self, repeat=repeat, axes=axes, repeats=repeats)


def hidden_units(model: nn.Module, example_input: Tensor | None = None) -> tuple[HiddenUnits, ...]:
    """All layers of hidden units of a model whose order means nothing, as far as they are found.

    They are looked for in nn.Sequential, also nested, between two linear maps: nn.Linear, nn.Conv1d to nn.Conv3d of one group,
    and a FilterBank; inside OrbitAverage and residual blocks, too. Between the maps may be element-wise activations, dropout,
    pooling, nn.Flatten and norms. Norms with running statistics end the search, since these are no weights and stay in place;
    so does whatever is not known, and what is frozen or shared by several layers.

    Args:
        model: Of any kind.
        example_input: A batch of inputs; with it, units are checked as by `check_units`.

    Raises:
        ValueError: If there are none.
    """
    free, open_units = Layout.of(model).unshared, None
    found: list[HiddenUnits] = []
    for name, module in _steps(model):
        closed = _take(open_units, name, module) if open_units is not None else None
        if closed is not None and closed.count > 1 and closed.axes.keys() <= free:
            found.append(HiddenUnits(closed.name, closed.count, closed.axes, closed.repeats))
        open_units = _give(name, module) or (_pass(open_units, name, module) if open_units is not None else None)
    if not found:
        raise ValueError(
            "The model must have hidden units that may change places: in an nn.Sequential, between two trainable linear maps "
            f"of known kinds (nn.Linear, nn.Conv2d, FilterBank, …). None were found in this {type(model).__name__}. If it has "
            "some, describe them by hand, sb.HiddenUnits(name, count, axes), as in sb.Elbo(units=...)."
        )
    if example_input is not None:
        check_units(model, found, example_input)
    return tuple(found)


@torch.no_grad()
def check_units(model: nn.Module, units: Sequence[HiddenUnits], inputs: Tensor) -> None:
    """Refuse units under whose permutations the outputs of a model change.

    Noise is added to weights, since units that are still zero may change places by any rule; it is so a few times, since others
    may be silent by chance. A cycle and an exchange of two units are tried, of which all permutations are made.

    Raises:
        ValueError: If outputs change, or units stand in what is no trainable weight.
    """
    generator, tensors = torch.Generator().manual_seed(0), weights(model)
    for each in units:
        if unknown := sorted(each.axes.keys() - tensors.keys()):
            raise ValueError(
                f"Units {each.name!r} must stand in trainable weights of the model, {', '.join(tensors)}; got "
                f"{', '.join(unknown)}."
            )
    with evaluating(model):
        for _ in range(_TRIALS):
            values = {name: value + _noise(value, generator) for name, value in tensors.items()}
            outputs: Tensor = call_with(model, values, inputs)
            for each in units:
                _check_outputs(model, each, inputs, values, outputs)


def _noise(value: Tensor, generator: torch.Generator) -> Tensor:
    size = prod(value.shape[1:]) ** -0.5 if value.ndim > 1 else 0.1
    return size * torch.randn(value.shape, generator=generator, dtype=value.dtype).to(value.device)


def _check_outputs(model: nn.Module, units: HiddenUnits, inputs: Tensor, values: dict[str, Tensor], outputs: Tensor) -> None:
    numbers = torch.arange(units.count)
    for order in (numbers.roll(1), torch.cat([numbers[:2].flip(0), numbers[2:]])):
        moved: Tensor = call_with(model, units.permute(values, order), inputs)
        change, size = (moved - outputs).abs().max(), outputs.abs().max()
        if not change <= torch.finfo(outputs.dtype).eps ** 0.5 * size:
            raise ValueError(
                f"Outputs must stay as they are when hidden units change places; permuting units {units.name!r} changes "
                f"outputs of size {float(size):.3g} by {float(change):.3g}. Name all tensors that they stand in, with the "
                "right axes; or leave them out, if some layer does not treat them alike."
            )


def _steps(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The modules that features go through, one after the other. One that is unknown to all functions below ends the search."""
    prefix = f"{name}." if name else ""
    if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
        for child, inner in module._modules.items():  # named_children leaves out what stands there twice
            yield from _steps(inner, f"{prefix}{child}") if inner is not None else ()
        return
    yield name, module
    if type(module) is OrbitAverage:  # its inputs are transformed, its outputs averaged unit by unit
        yield from _steps(module.net, f"{prefix}net")
    elif type(module) is ResidualBlock:
        yield from ((f"{prefix}conv1", module.conv1), (f"{prefix}shift2", module.shift2), (f"{prefix}relu", nn.ReLU()))
        yield from ((f"{prefix}shift3", module.shift3), (f"{prefix}conv2", module.conv2), (name, module))


def _give(name: str, module: nn.Module) -> _Open | None:
    """The units that are outputs of a layer: rows of its weight, entries of its bias."""
    prefix = f"{name}." if name else ""
    if type(module) is FilterBank:
        return _rows(name, f"{prefix}filters.", module.filters, -4, -1)
    dims = _dims(module)
    return None if dims is None else _rows(name, prefix, module, -(dims + 2), -(dims + 1))


def _rows(name: str, prefix: str, layer: nn.Module, row_axis: int, axis: int) -> _Open:
    tensors = {"weight": row_axis, "bias": -1}
    axes = {f"{prefix}{tensor}": each for tensor, each in tensors.items() if getattr(layer, tensor) is not None}
    return _Open(name, _tensor(layer, "weight").shape[0], axis, 1, axes)


def _take(units: _Open, name: str, module: nn.Module) -> _Open | None:
    """The same units, when they are inputs of a layer: columns of its weight."""
    dims = _dims(module)
    if dims is None or units.axis != -(dims + 1):
        return None
    return units.standing([f"{name}.weight"], units.axis, _tensor(module, "weight").shape[1])


def _pass(units: _Open, name: str, module: nn.Module) -> _Open | None:
    """The same units behind a module that treats them alike; None behind any other."""
    dims = -units.axis - 1
    if type(module) in _ELEMENTWISE or _POOLS.get(type(module)) == dims:
        return units
    if type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
        return replace(units, axis=-1, repeat=None) if dims else units
    affine = [f"{name}.{tensor}" for tensor in ("weight", "bias") if getattr(module, tensor, None) is not None]
    if type(module) is nn.LayerNorm or type(module) is nn.RMSNorm:
        shape = module.normalized_shape  # the last axes; where units stand before these, each is normalised by itself
        return units.standing(affine, units.axis, shape[units.axis]) if len(shape) > dims else units
    if type(module) is nn.GroupNorm and module.num_groups in (1, module.num_channels):
        return units.standing(affine, -1, module.num_channels)
    if type(module) in _NORMS and not (norm := cast(nn.BatchNorm1d, module)).track_running_stats:
        on_rows = dims == 0 and type(module) is nn.BatchNorm1d
        return units.standing(affine, -1, norm.num_features) if on_rows or _NORMS[type(module)] == dims else None
    return None


def _dims(module: nn.Module) -> int | None:
    """Axes of the grid that a linear map goes over, none for nn.Linear; None for what is no map of torch in one group."""
    if type(module) is nn.Linear:
        return 0
    return _CONVOLUTIONS.get(type(module)) if getattr(module, "groups", 1) == 1 else None


def _tensor(module: nn.Module, name: str) -> Tensor:
    return cast(Tensor, getattr(module, name))
