"""Hidden units have no order: what a posterior gains when it need not choose one (Gelberg et al. 2024).

A network computes the same when its hidden units change places, and the prior treats them alike. So a posterior q fits the data
no better than any g q, with g a permutation of the units of every hidden layer, and no better than the mean of all of them,
q_sym(w) = 1/|G| Σ_g q(g⁻¹ w), which lies closer to the prior p:

    KL(q_sym ‖ p) = KL(q ‖ p) − I,    I = E_q[log q(w) − log 1/|G| Σ_g q(g⁻¹ w)],    0 ≤ I ≤ log|G|.

What q pays for an order that means nothing, and only once units differ, is what makes plain variational inference prefer units
that are all alike, so of no use. I is estimated from below with K random permutations, so that a bound stays a bound:

    I_K = E_q[log q(w) − log (q(w) + Σ_k q(g_k⁻¹ w)) / (K + 1)] ≤ min(I, log(K + 1)).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations, product
from math import factorial, log, prod

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

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
