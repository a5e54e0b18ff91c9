"""Columns on their way back through a recorded forward pass: gradients of what maps gave, where they arise in the graph.

Each function delivers them by source, and returns the sources that the outputs depend on.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge


class _Begin(torch.autograd.Function):
    """What the first maps gave, as a place where their gradients arise: a leaf would hold its numbers as long as the graph."""

    generate_vmap_rule = True

    @staticmethod
    def forward(outputs: Tensor, leaf: Tensor) -> Tensor:
        return outputs.view_as(outputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        """Nothing is needed to go back, since nobody goes further."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None]:
        return None, None


@dataclass(frozen=True)
class Given:
    """What a source gave in one call."""

    #: Where its gradient arises.
    edge: GradientEdge
    #: Numbers in it.
    count: int
    #: Whether it depends on nothing else that was recorded.
    is_first: bool

    @staticmethod
    def of(outputs: Tensor) -> tuple[Tensor, "Given"]:
        """Outputs to go on with, and where their gradients will arise."""
        is_first = not outputs.requires_grad
        if is_first:
            with torch.enable_grad():  # which a model may have switched off around a map
                outputs = _Begin.apply(outputs, torch.zeros((), requires_grad=True))  # type: ignore[no-untyped-call]
        return outputs, Given(get_gradient_edge(outputs), outputs.numel(), is_first)


#: What sources gave, call by call.
GivenBySource = Mapping[str, Sequence[Given]]
#: Called with the name of a source and gradients [v, m, *rest] for each of its calls; None where outputs do not depend on one.
ToSource = Callable[[str, Sequence[Tensor | None]], None]


def one_column(
    outputs: Tensor, column: Tensor, given: GivenBySource, deliver: ToSource, *, keep: bool, to_all: bool
) -> set[str]:
    """Gradients are delivered as they arise, so that only those of one source are held.

    Args:
        outputs: Of the model.
        column: Of the same shape.
        given: What depends on it is passed on the way.
        deliver: Takes them.
        keep: Whether others follow.
        to_all: Whether what comes first need not be behind all others, as where outputs depend on more than weights.
    """
    arrived: dict[str, list[Tensor | None]] = {name: [None] * len(calls) for name, calls in given.items()}
    found: set[str] = set()

    def note(name: str, at: int, gradient: Tensor | None) -> None:
        if gradient is not None:
            found.add(name)
            arrived[name][at] = gradient[None]
            if all(each is not None for each in arrived[name]):
                deliver(name, arrived.pop(name))

    def hook(name: str, at: int, gradients: tuple[Tensor | None, ...]) -> None:
        note(name, at, gradients[given[name][at].edge.output_nr])

    every = [(name, at, call) for name, calls in given.items() for at, call in enumerate(calls)]
    # From the first maps all others are passed; unless maps behind inputs or other tensors of a user are not the first.
    ends = [(name, at, call) for name, at, call in every if call.is_first or to_all]
    rest = [] if to_all else [(name, at, call) for name, at, call in every if not call.is_first]
    hooks = [call.edge.node.register_prehook(partial(hook, name, at)) for name, at, call in rest]
    found_there = torch.autograd.grad(outputs, [call.edge for *_, call in ends], column, keep, allow_unused=True)
    for handle in hooks:
        handle.remove()
    for (name, at, _), gradient in zip(ends, found_there, strict=True):
        note(name, at, gradient)
    for name in found & arrived.keys():
        deliver(name, arrived[name])
    return found


def many_columns(outputs: Tensor, columns: Tensor, given: GivenBySource, deliver: ToSource, *, keep: bool) -> set[str]:
    """Several columns in one pass, for small maps."""
    gradients = torch.autograd.grad(
        outputs, _edges(given), columns, retain_graph=keep, is_grads_batched=True, allow_unused=True
    )
    return _deliver_all(gradients, given, deliver)


def with_graph(outputs: Tensor, columns: Tensor, given: GivenBySource, deliver: ToSource) -> set[str]:
    """Gradients that can be differentiated in turn."""
    found: set[str] = set()
    for column in columns:
        gradients = torch.autograd.grad(outputs, _edges(given), column, create_graph=True, allow_unused=True)
        found |= _deliver_all([None if gradient is None else gradient[None] for gradient in gradients], given, deliver)
    return found


def _edges(given: GivenBySource) -> list[GradientEdge]:
    return [call.edge for calls in given.values() for call in calls]


def _deliver_all(gradients: Sequence[Tensor | None], given: GivenBySource, deliver: ToSource) -> set[str]:
    found, rest = set(), iter(gradients)
    for name, calls in given.items():
        own = list(islice(rest, len(calls)))
        if any(gradient is not None for gradient in own):
            deliver(name, own)
            found.add(name)
    return found
