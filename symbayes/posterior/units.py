"""Which hidden units of a network may change places: found where layers stand in a sequence, and checked by numbers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations, product
from math import factorial, log, prod
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor, nn

from symbayes.curvature.evaluate import evaluating
from symbayes.invariance.filters import FilterBank
from symbayes.invariance.orbit_average import OrbitAverage
from symbayes.layers.dense import Scale, Shift
from symbayes.layout import Layout, call_with, weights
from symbayes.models import ResidualBlock
from symbayes.posterior.posterior import Posterior, Weights

#: `all_orders` lists no more permutations than this: those of 6 units.
MOST_ORDERS = factorial(6)


@dataclass(frozen=True)
class HiddenUnits:
    """A layer of hidden units that may change places, and where they stand in the weights before and behind them.

    Those of nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)) are the rows of the first weight, the entries of its
    bias, and the columns of the second weight: HiddenUnits("0", 8, {"0.weight": -2, "0.bias": -1, "2.weight": -1}).

    Args:
        name: Of the layer, for people.
        count: Of units.
        axes: For every tensor that units stand in, by name, the axis that runs over them; counted from the end, so below zero.
        repeats: Entries of that axis for each unit, one after the other, where they are several: h·w for the columns of a layer
            behind flattened maps [c, h, w], whose units are channels.
    """

    name: str
    count: int
    axes: Mapping[str, int]
    repeats: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.count < 1 or not self.axes:
            raise ValueError(
                f"Hidden units {self.name!r} must be at least one, and stand in at least one tensor; got {self.count} in "
                f"{len(self.axes)}."
            )
        for tensor, axis in self.axes.items():
            if axis >= 0:
                raise ValueError(
                    f"Axes are counted from the end: {tensor!r} must have one below zero, -1 for the last; got {axis}."
                )
        for tensor, repeat in self.repeats.items():
            if tensor not in self.axes or repeat < 1:
                raise ValueError(
                    f"repeats must be 1 or more, for tensors in axes ({', '.join(self.axes)}); got {repeat} for {tensor!r}."
                )

    def permute(self, weights: Weights, order: Int[Tensor, "*batch h"]) -> dict[str, Tensor]:
        """The weights with units reordered: unit i is what unit order[i] was. Tensors without units are left as they are.

        Args:
            weights: By tensor, [*batch, *shape]; batches may have further axes, and broadcast with that of the order.
            order: A permutation of 0, …, count − 1, or a batch of them.
        """
        if order.shape[-1:] != (self.count,):
            raise ValueError(f"An order of units {self.name!r} must have {self.count} entries, got shape {tuple(order.shape)}.")
        return {**weights, **{tensor: self._reorder(tensor, weights, order) for tensor in self.axes}}

    def _reorder(self, tensor: str, weights: Weights, order: Int[Tensor, "*batch h"]) -> Tensor:
        if tensor not in weights:
            raise ValueError(f"Units {self.name!r} stand in {tensor!r}, which is not among the weights {', '.join(weights)}.")
        value, repeat, leading = weights[tensor], self.repeats.get(tensor, 1), order.ndim - 1
        axis = value.ndim + self.axes[tensor]
        if axis < leading or value.shape[axis] != self.count * repeat:
            raise ValueError(
                f"Axis {self.axes[tensor]} of {tensor!r} must have {self.count} units of {repeat} entries each, behind "
                f"{leading} axes of a batch; got shape {tuple(value.shape)}."
            )
        batch = torch.broadcast_shapes(value.shape[:leading], order.shape[:-1])
        value = value.expand(*batch, *value.shape[leading:])
        within = torch.arange(repeat, device=value.device)
        entries = (order.to(value.device)[..., None] * repeat + within).flatten(-2)  # [*batch, h · repeat]
        index = entries.reshape(*order.shape[:-1], *(-1 if each == axis else 1 for each in range(leading, value.ndim)))
        return value.gather(axis, index.expand_as(value))


#: For every layer of units, in their order.
Orders = Sequence[Int[Tensor, "..."]]


def mutual_information(
    posterior: Posterior, weights: Weights, units: Sequence[HiddenUnits], count: int, *, generator: Generator | None = None
) -> Float[Tensor, ""]:
    """I_K, as a mean over draws, with fresh random permutations for each; differentiable in mean and spread.

    Its expectation is at most I: with g_0 uniform on G, too, the permutations g_0, g_0 g_1, …, g_0 g_K are independent and
    alike, so that the weights may have been drawn under any of them, and I − I_K is the mean of KL(r ‖ q_sym) ≥ 0, with r the
    mixture of q under these K + 1. That some are equal by chance is a part of it. No single value exceeds log(K + 1).

    Args:
        posterior: q.
        weights: Draws from it, [m, *shape]; reparameterised, as `Posterior.sample` gives them.
        units: Of all hidden layers that are permuted, together and independently.
        count: K.
        generator: For the permutations.
    """
    draws = _draws(posterior, weights, units)
    return _information(posterior, weights, units, random_orders(units, draws, count, generator))


def information_under(
    posterior: Posterior, weights: Weights, units: Sequence[HiddenUnits], orders: Orders
) -> Float[Tensor, ""]:
    """I_K as in `mutual_information`, under given permutations.

    Args:
        posterior: q.
        weights: Draws from it, [m, *shape].
        units: Of all hidden layers that are permuted.
        orders: For each of them K permutations beside the identity: [m, K, h], or [K, h] for all draws.
    """
    draws = _draws(posterior, weights, units)
    for each, order in zip(units, orders, strict=True):
        told = f"The orders of units {each.name!r} must be K permutations of 0, …, {each.count - 1}, [K, h] or [m, K, h]"
        if order.ndim not in (2, 3) or order.shape[-2] != orders[0].shape[-2] or order.shape[:-2] not in ((), (draws,)):
            raise ValueError(f"{told} with m = {draws} and one K for all layers; got shape {tuple(order.shape)}.")
        if not torch.equal(order.sort(-1).values, torch.arange(each.count, device=order.device).expand_as(order)):
            raise ValueError(f"{told}; some entries stand twice.")
    return _information(posterior, weights, units, [order.expand(draws, *order.shape[-2:]) for order in orders])


def _information(posterior: Posterior, weights: Weights, units: Sequence[HiddenUnits], orders: Orders) -> Float[Tensor, ""]:
    moving = _moving(posterior, units)
    draws, count = orders[0].shape[:2]
    moved = {name: value[:, None] for name, value in weights.items()}
    for each, order in zip(units, orders, strict=True):
        moved = each.permute(moved, order)
    shapes = {name: shape for members, _ in moving.parts for name, shape in members.shapes.items()}
    together = {name: moved[name].expand(draws, count, *shape) for name, shape in shapes.items()}
    ratios = moving.log_prob(together) - moving.log_prob(weights)[:, None]  # log q(g⁻¹ w) / q(w)
    terms = torch.cat([torch.zeros_like(ratios[:, :1]), ratios], 1)
    return (log(count + 1) - terms.logsumexp(1)).mean()


def exact_mutual_information(posterior: Posterior, weights: Weights, units: Sequence[HiddenUnits]) -> Float[Tensor, ""]:
    """I as a mean over draws [m, *shape], with all permutations, one after the other: the slow reference, for few units.

    Raises:
        ValueError: If there are more than 720 permutations.
    """
    _moving(posterior, units)
    logs = []
    for orders in zip(*all_orders(units), strict=True):
        moved = dict(weights)
        for each, order in zip(units, orders, strict=True):
            moved = each.permute(moved, order)
        logs.append(posterior.log_prob(moved))
    return (posterior.log_prob(weights) + log(len(logs)) - torch.stack(logs).logsumexp(0)).mean()


def random_orders(
    units: Sequence[HiddenUnits], draws: int, count: int, generator: Generator | None = None
) -> tuple[Int[Tensor, "m k h"], ...]:
    """So many independent permutations for every draw, of each layer of units."""
    if count < 1:
        raise ValueError(f"count must be at least 1, the permutations beside the identity; got {count}.")
    device = generator.device if generator is not None else None
    keys = [torch.rand(draws, count, each.count, generator=generator, dtype=torch.float64, device=device) for each in units]
    return tuple(of_layer.argsort(-1) for of_layer in keys)


def all_orders(units: Sequence[HiddenUnits]) -> tuple[Int[Tensor, "g h"], ...]:
    """Every permutation of all layers of units together, the identity first.

    Raises:
        ValueError: If there are more than 720.
    """
    size = prod(factorial(each.count) for each in units)
    if size > MOST_ORDERS:
        raise ValueError(
            f"All permutations are listed up to {MOST_ORDERS} of them; these units have {size}. Draw some: mutual_information."
        )
    together = list(product(*(permutations(range(each.count)) for each in units)))
    return tuple(torch.tensor([orders[layer] for orders in together]) for layer in range(len(units)))


def _moving(posterior: Posterior, units: Sequence[HiddenUnits]) -> Posterior:
    """Those parts of a posterior that permutations change; what the others say of weights cancels.

    Raises:
        ValueError: If units stand in tensors that are known for sure.
    """
    if not units:
        raise ValueError("There must be units to permute, got none. Find them with hidden_units(model).")
    uncertain = {name for members, _ in posterior.parts for name in members.shapes}
    names = {name for each in units for name in each.axes}
    if fixed := sorted(names - uncertain):
        raise ValueError(
            "Units can change places only where all that they stand in is uncertain, for else outputs change; the posterior "
            f"has no spread for {', '.join(fixed)}. Use biases='column' or 'separate', train frozen layers, or leave units out."
        )
    parts = tuple((members, spread) for members, spread in posterior.parts if names & members.shapes.keys())
    return Posterior(posterior.mean, parts, posterior.kind)


def _draws(posterior: Posterior, weights: Weights, units: Sequence[HiddenUnits]) -> int:
    """m.

    Raises:
        ValueError: If weights are no draws [m, *shape], or units cannot be permuted.
    """
    names = [name for members, _ in _moving(posterior, units).parts for name in members.shapes]
    draws = len(weights[names[0]]) if names[0] in weights and weights[names[0]].ndim else 0
    for name in names:
        wanted = (draws, *posterior.mean[name].shape)
        if draws < 1 or name not in weights or weights[name].shape != wanted:
            got = tuple(weights[name].shape) if name in weights else "none"
            raise ValueError(f"weights must be m draws from the posterior, {name!r} of shape [m, *{wanted[1:]}]; got {got}.")
    return draws


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
