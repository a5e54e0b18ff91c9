"""Prune: a smaller model, by the curvature that the evidence is made of.

What is removed costs least of log p(D | W) and of the prior, as Kronecker factors of the curvature tell it, and what is left
makes up for it (`surgeon.py`). Channels are cut out of all tensors that write or read them (`channels.py`), so that layers are
smaller; single weights and heads of attention (`heads.py`) are set to zero. Of whole branches the cost is known without a
curvature (`branches.py`).
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from symbayes.curvature.blocks import KroneckerBlock
from symbayes.curvature.evaluate import evaluating, log_likelihood, naming_types, without_autocast
from symbayes.curvature.rule import ExactFisher, MonteCarloFisher
from symbayes.data.source import Data, DataSource, check_finite, source_for
from symbayes.layers.path import LinearMap
from symbayes.layers.relaxed import RelaxedLayer
from symbayes.layout import Layout
from symbayes.likelihoods.classes import Categorical
from symbayes.likelihoods.likelihood import Likelihood
from symbayes.priors import Prior
from symbayes.surgery.branches import drop_branches
from symbayes.surgery.calls import count, difference, is_layer, operations, outputs_of
from symbayes.surgery.channels import (
    SAME,
    Channel,
    Place,
    cut_out,
    find_channels,
    index_of,
    parameters_of,
    parameters_without,
    stop_reading,
)
from symbayes.surgery.heads import drop_heads, heads, without_heads
from symbayes.surgery.surgeon import JointKfac, Quadratic

_log = logging.getLogger("symbayes")
#: Data by which channels are found.
_LOOKED_AT = 8
#: Data in a forward pass.
_AT_ONCE = 500
#: Channels that the surgeon removes in a shot go in so many rounds: what the rest costs without them is known from the same
#: curvature.
_ROUNDS = 8


@dataclass(frozen=True)
class Pruned:
    """A pruned model, and what became of each layer; prints as a report."""

    model: nn.Module
    #: Of what the sizes of layers are.
    units: str
    #: By layer: channels that it gives, or heads or weights that are not zero, before and after; by the end of a branch: its
    #: parameters.
    layers: dict[str, tuple[int, int]]
    #: By layer: why no channel that it gives could be removed, or none of its heads; by the end of a branch, why that could
    #: not.
    left: dict[str, str]
    #: That are not zero, before and after.
    parameters: tuple[int, int]
    #: Multiplications and additions for a datum, as torch counts them, before and after.
    operations: tuple[int, int]
    #: log p(D | W) per datum, before and after.
    log_likelihood: tuple[float, float]

    def __str__(self) -> str:
        sizes, counts, fits = self.parameters, self.operations, self.log_likelihood
        units = "parameters of the branch" if self.units == "branches" else self.units
        return "\n".join(
            [
                *(f"{name or 'model'}: {units} {old:,} → {new:,}" for name, (old, new) in self.layers.items()),
                *(f"{name or 'model'}: left as it is, since {reason}" for name, reason in self.left.items()),
                f"parameters {sizes[0]:,} → {sizes[1]:,}, operations for a datum {counts[0]:,} → {counts[1]:,}, "
                f"log-likelihood per datum {fits[0]:.4f} → {fits[1]:.4f}",
            ]
        )


def prune(
    model: nn.Module,
    data: Data,
    keep: float,
    *,
    by: str = "surgeon",
    units: str = "channels",
    likelihood: Likelihood | None = None,
    prior: Prior | None = None,
    shots: int = 5,
    lose: float | None = None,
) -> nn.Module:
    """A copy of a trained model with fewer parameters.

    Of channels, layers become smaller; of weights, these become zero; of branches, nothing is left. One threshold is for all
    layers: what costs least for each parameter goes first. What was removed and what changed is logged; `sb.surgery.pruned`
    gives it.

    Args:
        model: Of plain layers, such as `sb.harden` gives.
        data: As for `sb.fit`, which trained it; some thousands are enough.
        keep: The share of parameters to keep; of heads, the share of these.
        by: "surgeon" costs by Kronecker-factored curvature, with an update of all that is left in layers that lose columns or
            weights; "magnitude" by squares of weights, relative to their mean in each tensor, and leaves others as they are.
        units: "channels": features of linear layers and convolutions, with entries of norms and of other tensors that belong to
            them, and all that reads them. "weights": single weights of linear maps. "branches": whole modules around which
            data flow, such as what residual sums add, and shortcuts. Their cost is what the log-likelihood falls by without
            them: one pass over the data for each that is left, after each that goes; nothing makes up for them. "heads": of
            nn.MultiheadAttention, which cannot have fewer of them, so that they are set to zero: this saves no time.
        likelihood: Of targets given outputs; `Categorical()` when None.
        prior: Whose precisions are part of the curvature, such as `result.prior`; a precision of 1 when None.
        shots: In how many steps of equal size, each with the curvature of what is left; branches go one by one. Channels that
            the surgeon removes go in eight rounds within a shot, after each of which costs are known from the same curvature.
        lose: Of branches: the log-likelihood per datum falls by this many nats at most, all together, even if more parameters
            are left than `keep` says; by anything when None.

    Raises:
        ValueError: If something cannot be pruned, or not as far, saying why.
        NotFiniteError: If data are not finite.
    """
    found = pruned(model, data, keep, by=by, units=units, likelihood=likelihood, prior=prior, shots=shots, lose=lose)
    _log.info("%s", found)
    return found.model


@without_autocast()
def pruned(
    model: nn.Module,
    data: Data,
    keep: float,
    *,
    by: str = "surgeon",
    units: str = "channels",
    likelihood: Likelihood | None = None,
    prior: Prior | None = None,
    shots: int = 5,
    lose: float | None = None,
) -> Pruned:
    """What `prune` gives, with a report."""
    _check(model, keep, by, units, shots)
    _check_for_branches(units, by, prior, lose)
    weight = next(model.parameters())
    source = source_for(model, data)
    likelihood = (likelihood if likelihood is not None else Categorical()).to(weight.device)
    if prior is not None:
        prior.check(model)
    precisions = {} if prior is None else {name: float(value.detach()) for name, value in prior.precisions().items()}
    smaller, inputs = deepcopy(model), next(iter(source.batches(_LOOKED_AT)))[0]
    check_finite(inputs)
    with naming_types(inputs, weight.dtype):
        outputs_of(smaller, (inputs,))
    setting = _Setting(source, likelihood, precisions, by)
    before, left = _size(model, units), dict[str, str]()
    targets = [int(before * (1 - (1 - keep) * shot / shots)) for shot in range(1, shots + 1)]
    if units == "heads":
        every = sum(int(own.sum()) for own in heads(model).values())
        for shot in range(1, shots + 1):
            target = max(1, round(every * (1 - (1 - keep) * shot / shots)))
            drop_heads(smaller, target, setting.quadratics if by == "surgeon" else None)
        layers, left = _layers(model, smaller, units), without_heads(model)
    elif units == "branches":
        fit = partial(_fit, data=source, likelihood=likelihood)
        smaller, layers, left = drop_branches(smaller, inputs, targets[-1], lose, fit)
    else:
        for target in targets:
            if units == "weights":
                _without_weights(smaller, target, setting)
            elif count(smaller) > target:
                left = _without_channels(smaller, target, targets[-1], setting, inputs)
        layers = _layers(model, smaller, units)
    return Pruned(
        smaller,
        units,
        layers,
        left,
        (before, _size(smaller, units)),
        (operations(model, (inputs,)), operations(smaller, (inputs,))),
        (_fit(model, source, likelihood), _fit(smaller, source, likelihood)),
    )


def _check(model: nn.Module, keep: float, by: str, units: str, shots: int) -> None:
    if not 0 < keep < 1:
        raise ValueError(f"keep must be a share of the parameters, above 0 and below 1; got {keep}.")
    if by not in ("surgeon", "magnitude"):
        raise ValueError(f"by must be 'surgeon' or 'magnitude', got {by!r}.")
    if units not in ("channels", "weights", "branches", "heads"):
        raise ValueError(f"units must be 'channels', 'weights', 'branches' or 'heads', got {units!r}.")
    if shots < 1:
        raise ValueError(f"shots must be at least 1, got {shots}.")
    if not any(True for _ in model.parameters()):
        raise ValueError("A model to be pruned must have parameters; this one has none.")
    for name, module in model.named_modules():
        if isinstance(module, RelaxedLayer | LinearMap):
            raise ValueError(
                f"A model to be pruned must be made of plain layers; {name or 'the model'!r} is a {type(module).__name__}. "
                "Harden it first: sb.prune(sb.harden(model, example), ...)."
            )


def _check_for_branches(units: str, by: str, prior: Prior | None, lose: float | None) -> None:
    """What is for branches alone, and what is not for them."""
    if units != "branches" and lose is not None:
        raise ValueError(f"lose is for units='branches', whose cost is exact; got units={units!r}. Leave it out.")
    if lose is not None and not lose >= 0:
        raise ValueError(f"lose must be nats of log-likelihood per datum, at least 0; got {lose}.")
    if units == "branches" and (by != "surgeon" or prior is not None):
        raise ValueError(
            "Branches are costed by the log-likelihood without them, and by no magnitude or prior; got "
            f"{'a prior' if prior is not None else f'by={by!r}'}. Leave it out."
        )


@dataclass(frozen=True)
class _Setting:
    """What costs are found from."""

    data: DataSource
    likelihood: Likelihood
    precisions: Mapping[str, float]
    by: str

    def quadratics(self, model: nn.Module, weights: Sequence[str]) -> dict[str, list[Quadratic]]:
        """What changes of some weights cost, with the bias as last column where one is trained; by group of channels."""
        trainable = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
        named = dict(model.named_parameters())
        biases = (_bias(name) for name in weights)
        chosen = {*weights, *(name for name in biases if trainable.get(name, False))}
        for name, parameter in named.items():
            parameter.requires_grad_(name in chosen)
        fisher = MonteCarloFisher() if self.likelihood.has_positions else ExactFisher()
        try:
            with torch.no_grad():
                blocks = JointKfac(fisher).curvature(model, self.data, self.likelihood).blocks
        finally:
            for name, parameter in named.items():
                parameter.requires_grad_(trainable[name])
        found: dict[str, list[Quadratic]] = {}
        for name in weights:
            block = blocks[name]
            assert isinstance(block, KroneckerBlock)
            factors = zip(_joint_rows(named, name, len(block.A.matrices)), block.G.matrices, block.A.matrices, strict=True)
            found[name] = [Quadratic.damped(W, G, A, self.precisions.get(name, 1.0)) for W, G, A in factors]
        return found


def _bias(weight: str) -> str:
    """The name of the bias beside a weight."""
    return weight.removesuffix("weight") + "bias"


def _trained_bias(named: Mapping[str, Tensor], weight: str) -> Tensor | None:
    """The bias beside a weight; None where there is none, or it is frozen."""
    bias = named.get(_bias(weight))
    return bias if bias is not None and bias.requires_grad else None


def _joint_rows(named: Mapping[str, Tensor], weight: str, blocks: int) -> Float[Tensor, "block d_out d_in"]:
    """A weight as matrices, one for each group of channels, with a bias that is trained as last column."""
    W, bias = named[weight].detach(), _trained_bias(named, weight)
    rows = W.reshape(blocks, W.shape[0] // blocks, -1)
    return rows if bias is None else torch.cat([rows, bias.detach().view(blocks, -1, 1)], -1)


@torch.no_grad()
def _set(named: Mapping[str, Tensor], weight: str, rows: Float[Tensor, "block d_out d_in"]) -> None:
    bias = _trained_bias(named, weight)
    if bias is not None:
        bias.copy_(rows[..., -1].reshape(bias.shape))
        rows = rows[..., :-1]
    named[weight].copy_(rows.reshape(named[weight].shape))


def _without_channels(model: nn.Module, target: int, last: int, setting: _Setting, inputs: Tensor) -> dict[str, str]:
    """Cut channels out of a model, in place, down to so many parameters, and to fewer at last; why others stay, by layer."""
    found = find_channels(model, inputs)
    if not found.removable:
        reasons = "".join(f" {name!r}: {reason}." for name, reason in found.left.items())
        raise ValueError(
            f"The model has no channel that could be removed.{reasons} units='weights' sets single weights to zero."
        )
    named, by_surgeon = dict(model.named_parameters()), setting.by == "surgeon"
    readers = list(dict.fromkeys(name for channel in found.removable for name, _ in channel.reads)) if by_surgeon else []
    quadratics = {name: quadratic for name, (quadratic,) in setting.quadratics(model, readers).items()} if readers else {}
    gone: list[Channel] = []
    whole, rounds = count(model), _ROUNDS if by_surgeon else 1
    for number in range(1, rounds + 1):
        removed = {id(channel) for channel in gone}
        others = [channel for channel in found.removable if id(channel) not in removed]
        costs = _surgeon_costs(others, quadratics, named) if by_surgeon else _squares(others, named)
        now = _cheapest(model, gone, others, costs, whole - (whole - target) * number // rounds, last)
        for name, quadratic in quadratics.items():
            columns = [column for channel in now for column in _columns(channel, name, named)]
            rows = [row for channel in now for row in channel.writes.get((name, 0), ())]
            if columns or rows:
                quadratics[name] = quadratic.without(*(index_of(some, quadratic.W) for some in (columns, rows)))
        gone += now
    for name, quadratic in quadratics.items():
        if named[name].requires_grad:  # what is frozen loses columns, and nothing else
            _set(named, name, quadratic.W[None])
    stop_reading(model, gone)
    unread = outputs_of(model, (inputs,))
    cut_out(model, gone)
    wrong = difference(outputs_of(model, (inputs,)), unread, least=1.0)
    if not wrong <= SAME:
        raise ValueError(
            f"A model without channels must compute what it does when nothing reads them; outputs differ by {wrong:.1e}. Does "
            "its forward pass depend on the number of channels, or is it random? units='weights' sets single weights to zero."
        )
    return found.left


def _columns(channel: Channel, weight: str, named: Mapping[str, Tensor]) -> list[int]:
    """Those of a weight as a matrix that read a channel: a convolution has one for each cell of its filters."""
    cells = prod(named[weight].shape[2:])
    return [feature * cells + cell for feature in channel.reads.get((weight, 1), ()) for cell in range(cells)]


def _surgeon_costs(
    channels: Sequence[Channel], quadratics: Mapping[str, Quadratic], named: Mapping[str, Tensor]
) -> Float[Tensor, " u"]:
    """Of all layers that read a channel."""
    total = torch.zeros(len(channels), dtype=torch.float64)
    for name, quadratic in quadratics.items():
        by_length: dict[int, dict[int, list[int]]] = {}
        for number, channel in enumerate(channels):
            if columns := _columns(channel, name, named):
                by_length.setdefault(len(columns), {})[number] = columns
        for sets in by_length.values():
            costs = quadratic.column_costs(torch.tensor(list(sets.values()), device=quadratic.W.device))
            total[list(sets)] += costs.cpu()
    return total


@torch.no_grad()
def _squares(channels: Sequence[Channel], named: Mapping[str, Tensor]) -> Float[Tensor, " u"]:
    """Of all parameters that write or read a channel, relative to their mean in each tensor."""
    along: dict[tuple[str, int], Tensor] = {}
    total = torch.zeros(len(channels), dtype=torch.float64)
    for number, channel in enumerate(channels):
        for place, indices in channel.places.items():
            name, axis = place
            if name in named:
                if place not in along:
                    squares = _relative(named[name]).movedim(axis, 0)
                    along[place] = squares.reshape(len(squares), -1).sum(1).cpu()
                total[number] += along[place][indices].sum()
    return total


def _relative(weight: Tensor) -> Tensor:
    """Squares, relative to their mean where they are not zero: layers differ in scale, and one threshold is for all of them."""
    squares = weight.detach().double().square()
    return squares / squares[squares > 0].mean() if squares.any() else squares


def _cheapest(
    model: nn.Module, gone: list[Channel], others: list[Channel], costs: Float[Tensor, " u"], target: int, last: int
) -> list[Channel]:
    """The channels that cost least for each parameter, as many as it takes; every layer keeps one at least."""
    costs = costs / torch.tensor(parameters_of(model, others, gone))
    kept = _last(gone, others, costs, dict(model.named_parameters()))
    order = [number for number in costs.argsort().tolist() if number not in kept]
    low, high = 0, len(order)
    if (least := parameters_without(model, [*gone, *(others[number] for number in order)])) > last:
        raise ValueError(
            f"keep must leave every layer a channel, and all that cannot be removed: at least {least:,} parameters; got "
            f"{last:,}. Keep more, or use units='weights'."
        )
    while low < high:
        middle = (low + high) // 2
        if parameters_without(model, [*gone, *(others[number] for number in order[:middle])]) > target:
            low = middle + 1
        else:
            high = middle
    return [others[number] for number in order[:low]]


def _last(
    gone: Sequence[Channel], others: Sequence[Channel], costs: Float[Tensor, " u"], named: Mapping[str, Tensor]
) -> set[int]:
    """Of every tensor of which all channels could be removed, the most costly that is left."""
    of: dict[Place, list[int]] = {}
    for number, channel in enumerate(others):
        for place, indices in channel.writes.items():
            of.setdefault(place, []).extend(number for _ in indices)
    before = Counter(place for channel in gone for place, indices in channel.writes.items() for _ in indices)
    return {
        max(numbers, key=lambda number: float(costs[number]))
        for (name, axis), numbers in of.items()
        if name in named and len(numbers) + before[name, axis] == named[name].shape[axis]
    }


@torch.no_grad()
def _without_weights(model: nn.Module, target: int, setting: _Setting) -> None:
    """Set weights to zero, in place, until so many parameters are left."""
    named, sites = dict(model.named_parameters()), _dense_sites(model)
    rows = {name: named[name].detach().reshape(shape) for name, shape in sites.items()}
    if setting.by == "surgeon":
        quadratics = setting.quadratics(model, list(sites))
        rows = {name: W.reshape(len(quadratics[name]), -1, W.shape[2]) for name, W in rows.items()}
        of_all = {name: torch.stack([quadratic.element_costs() for quadratic in some]) for name, some in quadratics.items()}
        costs = {name: cost[..., : rows[name].shape[-1]] for name, cost in of_all.items()}  # biases stay
    else:
        quadratics, costs = {}, {name: _relative(W) for name, W in rows.items()}
    costs = {name: cost.masked_fill(rows[name] == 0, -1.0) for name, cost in costs.items()}  # what is zero stays so
    every = torch.cat([cost.flatten() for cost in costs.values()])
    zeros = count(model) - target
    if zeros > len(every):
        raise ValueError(
            f"keep must leave biases and all that is no weight of a linear map: {count(model) - len(every):,} of "
            f"{count(model):,} parameters; got {target:,}. Keep more."
        )
    gone = torch.zeros_like(every, dtype=torch.bool).index_fill_(0, every.argsort()[:zeros], True)
    for (name, W), flat in zip(rows.items(), gone.split([W.numel() for W in rows.values()]), strict=True):
        mask = flat.view(W.shape)
        if name not in quadratics:
            W[mask] = 0.0
            continue
        wider = nn.functional.pad(mask, (0, quadratics[name][0].W.shape[1] - mask.shape[2]))
        updated = [quadratic.without_elements(own) for quadratic, own in zip(quadratics[name], wider, strict=True)]
        _set(named, name, torch.stack(updated))


def _dense_sites(model: nn.Module) -> dict[str, tuple[int, int, int]]:
    """Trainable weights of linear maps as matrices: groups of channels and both sides.

    Raises:
        ValueError: If there is none.
    """
    sites = (site for site in Layout.of(model).sites.values() if site.form.structure == "dense" and not site.form.transposed)
    found = {site.weight: site.matrix for site in sites if site.weight is not None and site.matrix is not None}
    if not found:
        raise ValueError("The model has no weight of a linear map to be pruned: nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d.")
    return found


def _size(model: nn.Module, units: str) -> int:
    """Parameters, without weights that are zero where these are what pruning makes."""
    return count(model) - (sum(zeros for _, zeros in _zeros(model).values()) if units in ("weights", "heads") else 0)


def _zeros(model: nn.Module) -> dict[str, tuple[int, int]]:
    """By weight of a linear map: its size, and how much of that is zero."""
    named = dict(model.named_parameters())
    return {name: (named[name].numel(), int((named[name] == 0).sum())) for name in _dense_sites(model)}


def _layers(model: nn.Module, smaller: nn.Module, units: str) -> dict[str, tuple[int, int]]:
    if units == "weights":
        pairs = zip(_zeros(model).items(), _zeros(smaller).values(), strict=True)
        return {name: (size - zeros, size - more) for (name, (size, zeros)), (_, more) in pairs}
    if units == "heads":
        after = heads(smaller)
        return {name: (int(own.sum()), int(after[name].sum())) for name, own in heads(model).items()}
    sizes = {
        name: (len(cast(Tensor, module.weight)), len(cast(Tensor, smaller.get_submodule(name).weight)))
        for name, module in model.named_modules()
        if is_layer(module)
    }
    return {name: (before, after) for name, (before, after) in sizes.items() if before != after}


@torch.no_grad()
def _fit(model: nn.Module, data: DataSource, likelihood: Likelihood) -> float:
    """log p(D | W) per datum."""
    total, seen = 0.0, 0
    with evaluating(model):
        for inputs, targets in data.batches(_AT_ONCE):
            total += float(log_likelihood(likelihood, inputs, model(inputs), targets, data.number(seen)))
            seen += len(inputs)
    return total / seen
