"""What maps saw and got back, and free tensors, compared with torch's own gradients before curvature is made of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from symbayes.curvature.capture import Capture
from symbayes.curvature.free import free_gradients, refuse_unused
from symbayes.curvature.reference import Reference, reference_of
from symbayes.curvature.sites import Site, bias_gradients, gradient_rows

#: Models that were checked, and whether columns go back one by one; and the one that need not be checked again.
_CHECKED: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
_TRUSTED: ContextVar[nn.Module | None] = ContextVar("trusted", default=None)


@contextmanager
def trusted(model: nn.Module) -> Iterator[None]:
    """A context in which a model that was checked is not checked again: while it trains, nobody changes what it computes."""
    token = _TRUSTED.set(model)
    try:
        yield
    finally:
        _TRUSTED.reset(token)


@torch.no_grad()
def check_capture(capture: Capture, inputs: Tensor) -> Reference | None:
    """Refuse a model whose captured gradients are not torch's own on the first of some data; what these are.

    Where torch has no right rule to send several columns back at once, they go one by one from then on.

    Raises:
        RuntimeError: If they do not agree, naming a tensor; or as `reference_of` says.
    """
    if _TRUSTED.get() is capture.model and capture.model in _CHECKED:
        capture.one_by_one = _CHECKED[capture.model]
        return None
    reference = reference_of(capture.model, inputs)
    if reference is None:
        return None
    try:
        wrong = _unlike(capture, reference)
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        wrong = "unknown"
    if wrong is not None:
        capture.one_by_one = True
        wrong = _unlike(capture, reference)
    if wrong is not None:
        raise RuntimeError(
            f"Parameter {wrong!r} is used in another way than as its module says, so its curvature from what the module saw "
            "would be wrong. Use it in that module alone, give each use a parameter of its own, freeze it "
            "(requires_grad=False), or use Ggn() or Lanczos(), which do not look into modules."
        )
    _CHECKED[capture.model] = capture.one_by_one
    capture.forget()  # what the inputs of this check depend on, which is nothing
    return reference


def _unlike(capture: Capture, reference: Reference) -> str | None:
    """A tensor whose gradient is not torch's own; None where all are."""
    model, sites = capture.model, capture.sites
    found: dict[str, Tensor] = {}
    sizes: dict[str, Tensor] = {}
    one = len(reference.inputs) // 2

    def add(part: int, name: str, gradients: Tensor) -> None:
        _add(sites.maps[name], capture.inputs[name], gradients[-1:], found, sizes)

    def check_alone(part: int, name: str, gradients: Tensor) -> None:
        site = sites.maps[name]
        by_datum = gradients[0].unflatten(0, (-1, site.fold)).abs().flatten(1).amax(1)
        by_datum[one] = 0
        if (by_datum > 0).any():
            raise RuntimeError(
                f"Module {site.module!r} must get the data along its first axis: what it gave for one of them matters to the "
                "outputs of others. Keep the batch first ([n, positions, features]); expand what is the same for all data to "
                "it, or make it an nn.Parameter."
            )

    with capture:
        capture.differentiable = False
        outputs = capture.forward(reference.inputs)
        if not reference.gives(outputs.detach()):
            raise RuntimeError(
                "The model must give the same outputs while its curvature is captured; it does not. Use Ggn() or Lanczos(), "
                "which do not look into modules."
            )
        # Two columns, so that they travel together where others will.
        capture.backward(outputs, torch.stack([reference.column.flip(0), reference.column])[None], add)
        alone = torch.zeros_like(reference.column)
        alone[one] = reference.column[one]
        capture.backward(capture.forward(reference.inputs), alone[None, None], check_alone)
        if sites.free:
            refuse_unused(model, sites.free, reference.inputs)
            for name, each in free_gradients(model, sites.free, reference.inputs, reference.column[None]).items():
                found[name], sizes[name] = each.sum((0, 1)), each.square().sum((0, 1)).sqrt()
    return reference.unlike(found, sizes)


def _add(site: Site, inputs: Tensor, gradients: Tensor, found: dict[str, Tensor], sizes: dict[str, Tensor]) -> None:
    """The gradients of a map's tensors, summed over data, and the size of what is added up to them."""
    rows, seen = gradient_rows(site, gradients), site.form.input_rows(inputs)
    squares, seen_squares = rows.double().square(), seen.double().square()  # those of large numbers overflow
    if site.weight is not None:
        found[site.weight] = site.form.weight_from_rows(torch.einsum("vnsbo,nsbi->boi", rows, seen))
        sizes[site.weight] = site.form.weight_from_rows(torch.einsum("vnsbo,nsbi->boi", squares, seen_squares)).sqrt()
    if site.bias is not None:
        found[site.bias] = bias_gradients(site, rows).sum((0, 1))
        sizes[site.bias] = site.form.bias_from_rows(squares.sum(2)).sum((0, 1)).sqrt()
