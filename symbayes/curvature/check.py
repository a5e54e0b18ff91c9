"""Every shortcut compared with torch's own gradient, before curvature is made of it.

Curvature is found by shortcuts: rows that maps saw, Jacobians datum by datum, products in forward mode. They suppose that a
model treats data one by one, and uses its weights as its modules say. Nothing forces it to. So each shortcut is compared with
one plain backward pass before it is used. With random numbers u for the outputs of every datum, Σ_n u_n J_n by a shortcut and
by torch agree only where all J_n do; one pass compares all tensors.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from symbayes.curvature.capture import Capture, Known, mixed_data
from symbayes.curvature.evaluate import evaluating, naming_types
from symbayes.curvature.gradients import free_gradients, refuse_unused
from symbayes.layout import Site, call_with, held, weights

#: How many data are looked at.
COUNT = 8
#: How far apart numbers may be, relative to their size, and what of that is rounding: models in double precision may compute in
#: single inside, and a GPU has products in TF32. What is computed otherwise is off by about its size.
_DOUBLE, _SINGLE, _TF32 = (1e-5, 1e-7), (1e-3, 1e-6), (0.02, 1e-3)


@dataclass(frozen=True)
class Reference:
    """Of some data: their outputs, and the gradient of Σ_n u_n · f(x_n) by tensor, zero where outputs do not depend on it."""

    inputs: Tensor
    outputs: Float[Tensor, "n c"]
    #: u; zero where an output is −∞, such as that of a class which is ruled out.
    column: Float[Tensor, "n c"]
    gradients: Mapping[str, Tensor]

    def gives(self, outputs: Tensor) -> bool:
        """Whether these are the outputs."""
        return _same_outputs(outputs, self.outputs)

    def refuse_others(self, outputs: Tensor) -> None:
        """Refuse outputs of a larger batch, which begins with these data, if theirs are others there."""
        if not self.gives(outputs[: len(self.outputs)].detach()):
            raise _coupled()

    def total(self, outputs: Tensor) -> Float[Tensor, ""]:
        """Σ u f."""
        return (torch.where(self.outputs.isfinite(), outputs, 0.0) * self.column).sum()

    def unlike(self, found: Mapping[str, Tensor], sizes: Mapping[str, Float[Tensor, ""]] | None = None) -> str | None:
        """The name of a tensor whose gradient is another than torch's; None where all agree.

        Args:
            found: Gradients by tensor, of any shape that is as long.
            sizes: The root of the sum of squares of all that was added up to each gradient: rounding is relative to that, or
                when None, to the gradient.
        """
        norms = {name: _norm(gradient) for name, gradient in self.gradients.items()}
        means = [norms[name] / gradient.numel() ** 0.5 for name, gradient in self.gradients.items() if gradient.numel()]
        largest = torch.stack(means).max() if means else 0.0
        bounds: list[Tensor] = []
        for name in found:
            near, rounding = _tolerances(self.gradients[name])
            # A gradient that cancels to nothing, as of the bias of keys in attention, is noise beside others.
            least = rounding * self.gradients[name].numel() ** 0.5 * largest
            bounds.append(near * (norms[name] if sizes is None else torch.hypot(norms[name], sizes[name])) + least)
        return self._first_beyond(found, bounds)

    def _first_beyond(self, found: Mapping[str, Tensor], bounds: Sequence[Tensor]) -> str | None:
        """The first gradient that is farther from torch's than its bound; a GPU is waited for once where all are near."""
        if not found:
            return None
        apart = torch.stack([_norm(each.flatten() - self.gradients[name].flatten()) for name, each in found.items()])
        if (apart.isfinite() & (apart <= torch.stack(list(bounds)))).all():
            return None
        for (name, gradient), bound in zip(found.items(), bounds, strict=True):
            if not _close(gradient.flatten(), self.gradients[name].flatten(), float(bound)):
                return name
        return None

    def agrees_along(self, tangents: Mapping[str, Tensor], derivative: Float[Tensor, "n c"]) -> bool:
        """Whether this is J v for a direction v in all weights, as far as u · J v tells."""
        terms = torch.cat([(self.gradients[name] * tangent).flatten().double() for name, tangent in tangents.items()])
        near, _ = _tolerances(derivative)
        return _close(self.total(derivative).double(), terms.sum(), near * float(terms.norm()))


def reference_of(model: nn.Module, inputs: Tensor, at: Mapping[str, Tensor] | None = None) -> Reference | None:
    """What torch says of the first of some data; None where inputs or outputs are not finite, which others refuse.

    Args:
        model: Of which every datum must have outputs of its own.
        inputs: A batch.
        at: Weights other than those of the model.

    Raises:
        RuntimeError: If the model writes to its inputs, gives other outputs when it is asked again or when other data are
            beside a datum, or cannot be differentiated.
        TypeError: If the inputs are of a type that the model does not take.
        ValueError: If outputs are not [n, c].
    """
    if torch.is_inference_mode_enabled() or any(parameter.is_inference() for parameter in model.parameters()):
        raise RuntimeError("Curvature needs gradients, which torch.inference_mode() rules out. Use torch.no_grad() instead.")
    inputs = inputs[:COUNT].detach()
    if not inputs.isfinite().all():
        return None
    named: Mapping[str, Tensor] = weights(model)
    if at is not None:
        named = {name: at[name].detach().requires_grad_() for name in named if name in at}
    with evaluating(model), torch.enable_grad():

        def call(data: Tensor) -> Any:
            return model(data) if at is None else call_with(model, {**held(model, False), **named}, data)

        outputs = _outputs(call, inputs, next(model.parameters()).dtype)
        with torch.no_grad():
            _refuse_random(call, inputs, outputs)
            _refuse_coupled(call, inputs, outputs)
        if outputs.isnan().any() or outputs.isposinf().any():
            return None
        draws = Generator().manual_seed(0)
        factors = torch.rand(len(outputs), 1, generator=draws, dtype=torch.float64) + 0.5  # of data: outputs may be very many
        # Of each output no less than a half, so that none is overlooked.
        each = torch.rand(outputs.shape[1:], generator=draws, dtype=torch.float64) + 0.5
        each *= 2.0 * torch.randint(2, outputs.shape[1:], generator=draws) - 1
        column = factors.to(outputs) * each.to(outputs)
        column = torch.where(outputs.isfinite(), column, 0.0)
        found = Reference(inputs, outputs.detach(), column, {})
        # Not from a batch of one: there torch's gradient through a batch norm or an instance norm may be wrong.
        shown = outputs if len(inputs) > 1 else call(_copies(inputs, 2))[:1]
        return replace(found, gradients=_gradients(found.total(shown), named))


def check_functional(model: nn.Module, reference: Reference) -> None:
    """Refuse a model that uses weights which it does not ask its modules for, such as a tensor that is kept in a list.

    Raises:
        RuntimeError: Naming the first.
    """
    named = {name: weight.detach().requires_grad_() for name, weight in weights(model).items()}
    with evaluating(model), torch.enable_grad():
        found = _gradients(reference.total(call_with(model, {**held(model, False), **named}, reference.inputs)), named)
    name = reference.unlike(found)
    if name is not None:
        raise RuntimeError(
            f"Parameter {name!r} must be read from its module in every forward pass, and have no hook of its own; the model "
            "keeps it elsewhere, too. Use self.layer.weight each time, or freeze it (requires_grad=False)."
        )


def _outputs(call: Callable[[Tensor], Any], inputs: Tensor, precision: torch.dtype) -> Tensor:
    given = inputs.clone()
    with naming_types(inputs, precision):
        outputs = call(given)
    if not torch.equal(given, inputs):
        raise RuntimeError(
            "The model must leave its inputs as they are; it writes to them in place, and so to the data. Begin it with "
            "x = x.clone(), or without inplace=True in its first layer."
        )
    check_outputs(outputs, len(inputs))
    found: Tensor = outputs
    return found


def check_outputs(outputs: Any, count: int) -> None:
    """Refuse outputs that are not a row of real numbers for each of so many data."""
    if not isinstance(outputs, Tensor) or outputs.ndim != 2 or len(outputs) != count:
        got = f"shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else f"a {type(outputs).__name__}"
        raise ValueError(
            f"The model must give outputs [n, c], a row for each of the {count} inputs; got {got}. Choose, flatten or pool "
            "what it gives in a module around it."
        )
    if not outputs.is_floating_point():
        raise ValueError(f"The model must give real numbers, got {outputs.dtype}.")


def _refuse_random(call: Callable[[Tensor], Tensor], inputs: Tensor, outputs: Tensor) -> None:
    if not _same_outputs(call(inputs.clone()), outputs):
        raise RuntimeError(
            "In evaluation mode the model must give the same outputs every time; it does not. Draw random numbers only while "
            "it trains, such as F.dropout(x, p, self.training)."
        )


def _refuse_coupled(call: Callable[[Tensor], Tensor], inputs: Tensor, outputs: Tensor) -> None:
    alone = []
    try:
        for index in {0, len(inputs) - 1}:  # among copies of itself, since models may drop the axis of a single datum
            alone.append((index, call(_copies(inputs[index : index + 1], 3))))
    except (RuntimeError, ValueError, IndexError) as error:
        raise _coupled(f" ({error})") from error
    for index, found in alone:
        beside = outputs.clone()
        if found.shape[1:] == outputs.shape[1:]:
            beside[index] = found[1]
        if found.shape[1:] != outputs.shape[1:] or not _same_outputs(beside, outputs):
            raise _coupled()


def _coupled(words: str = "") -> RuntimeError:
    return RuntimeError(
        f"In evaluation mode the outputs of a datum must not depend on the other data of its batch; they do{words}. Keep the "
        "batch first in every layer ([n, positions, features]), and use norms with running statistics (BatchNorm) or over each "
        "datum (LayerNorm, GroupNorm)."
    )


def _copies(datum: Tensor, count: int) -> Tensor:
    return datum.repeat(count, *(1,) * (datum.ndim - 1))


def _gradients(total: Tensor, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    if not total.requires_grad:
        return {name: torch.zeros_like(weight) for name, weight in named.items()}
    try:
        found = torch.autograd.grad(total, list(named.values()), allow_unused=True, materialize_grads=True)
    except RuntimeError as error:
        raise RuntimeError(
            f"torch could not differentiate the outputs of the model in its weights, as training and curvature must: {error}"
        ) from error
    return {name: gradient.detach().to_dense() for name, gradient in zip(named, found, strict=True)}


def _tolerances(like: Tensor) -> tuple[float, float]:
    return _DOUBLE if like.dtype == torch.float64 else _TF32 if like.is_cuda else _SINGLE


def _same_outputs(found: Tensor, wanted: Float[Tensor, "n c"]) -> bool:
    """Whether outputs are the same up to rounding; relative to how they differ between data, not to what all have."""
    if found.shape != wanted.shape:
        return False
    values = torch.where(wanted.isfinite(), wanted, 0.0).double()
    near, rounding = _tolerances(wanted)
    centred = values - values.mean(0) if len(values) > 1 else values
    return _close(found, wanted, near * float(centred.norm()) + rounding * float(values.norm()))


def _norm(numbers: Tensor) -> Float[Tensor, ""]:
    return torch.linalg.vector_norm(numbers, dtype=torch.float64)


def _close(found: Tensor, wanted: Tensor, bound: float) -> bool:
    """Whether numbers are no further apart than so much in all, where they are finite; and finite in the same places."""
    finite = wanted.isfinite()
    if not torch.equal(found.isfinite(), finite):
        return False
    return float(torch.where(finite, found.double() - wanted.double(), 0.0).norm()) <= bound


#: Models that were checked, and what is known of them; and the one that need not be checked again.
_CHECKED: WeakKeyDictionary[nn.Module, Known] = WeakKeyDictionary()
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

    Where torch has no right rule to send several columns back at once, they go one by one from then on; and where a tensor that
    maps share is used in another way as well, its gradients are taken datum by datum.

    Raises:
        RuntimeError: If they do not agree, naming a tensor; or as `reference_of` says.
    """
    if _TRUSTED.get() is capture.model and capture.model in _CHECKED:
        follow_check(capture)
        return None
    reference = reference_of(capture.model, inputs)
    if reference is None:
        return None
    wrong = _unlike_or_refused(capture, reference)
    if wrong is not None and capture.tied:
        capture.untie(list(capture.tied))
        wrong = _unlike_or_refused(capture, reference)
    if wrong is not None:
        capture.one_by_one = True
        wrong = _unlike(capture, reference)
    if wrong is not None:
        raise RuntimeError(
            f"Parameter {wrong!r} is used in another way than as its module says, so its curvature from what the module saw "
            "would be wrong. Use it in that module alone, give each use a parameter of its own, freeze it "
            "(requires_grad=False), or use Ggn() or Lanczos(), which do not look into modules."
        )
    _CHECKED[capture.model] = capture.known
    capture.forget()  # what the inputs of this check depend on, which is nothing
    return reference


def follow_check(capture: Capture) -> None:
    """Capture as the last check of the model found right; with nothing taken on trust where there was none."""
    known = _CHECKED.get(capture.model)
    if known is None:
        capture.untie(list(capture.tied))
    else:
        capture.follow(known)


def _unlike_or_refused(capture: Capture, reference: Reference) -> str | None:
    """The same as `_unlike`, and some name where that was refused."""
    try:
        return _unlike(capture, reference)
    except (RuntimeError, TypeError, ValueError):
        return "unknown"


def _unlike(capture: Capture, reference: Reference) -> str | None:
    """A tensor whose gradient is not torch's own; None where all are."""
    model = capture.model
    found: dict[str, Tensor] = {}
    sizes: dict[str, Float[Tensor, ""]] = {}
    of_sites: dict[str, dict[str, tuple[Tensor, Tensor]]] = {}
    # Two columns, so that they travel together where others will.
    columns = torch.stack([reference.column.flip(0), reference.column])
    arrived: Counter[str] = Counter()
    #: By source, how many other data it gave something that matters to the outputs of one.
    others: dict[str, Tensor] = {}
    one = len(reference.inputs) // 2

    def add(part: int, name: str, gradients: Tensor) -> None:
        arrived[name] += len(gradients)
        if arrived[name] < len(columns):  # the last one counts
            return
        if name in capture.spread:
            found[name], sizes[name] = gradients[-1].sum(0), _norm(gradients[-1])
            return
        of_sites[name] = _of_site(capture.sites[name], capture.inputs[name], gradients[-1:])

    def note_others(part: int, name: str, gradients: Tensor) -> None:
        site = capture.sites.get(name)
        seen = 1 if site is None else site.copies * site.parts
        by_datum = gradients[0].unflatten(0, (-1, seen)).abs().flatten(1).amax(1) > 0
        others[name if site is None else site.source] = by_datum.sum() - by_datum[one].long()

    with capture:
        capture.differentiable = False
        outputs = capture.forward(reference.inputs)
        if not reference.gives(outputs.detach()):
            capture.refuse_expanded()
            raise RuntimeError(
                "The model must give the same outputs while its curvature is captured; it does not. Use Ggn() or Lanczos(), "
                "which do not look into modules."
            )
        capture.backward(outputs, columns[None], add, keep=True)
        alone = torch.zeros_like(reference.column)
        alone[one] = reference.column[one]
        capture.backward(outputs, alone[None, None], note_others)
        for name, count in zip(others, torch.stack(list(others.values())).tolist() if others else [], strict=True):
            if count:
                raise mixed_data(name)
        if capture.free:
            refuse_unused(model, capture.free, reference.inputs)
            for name, each in free_gradients(model, capture.free, reference.inputs, reference.column[None]).items():
                found[name], sizes[name] = each.sum((0, 1)), _norm(each)
    for name, (gradient, size) in ((name, both) for of_site in of_sites.values() for name, both in of_site.items()):
        known = name in found
        found[name] = found[name] + gradient if known else gradient
        sizes[name] = torch.hypot(sizes[name], size) if known else size
    return reference.unlike(found, sizes)


def _of_site(site: Site, inputs: Tensor, gradients: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """The gradients of a map's tensors, summed over data, and the size of what is added up to them."""
    rows, seen = site.gradient_rows(gradients), site.rows(inputs).values
    found: dict[str, tuple[Tensor, Tensor]] = {}
    if site.weight is not None:
        each, each_seen = (torch.linalg.vector_norm(r, dim=-1, dtype=torch.float64) for r in (rows, seen))
        size = (each * each_seen).norm()  # ‖g aᵀ‖ = ‖g‖ ‖a‖
        found[site.weight] = site.form.weight_from_rows(torch.einsum("vnsbo,nsbi->boi", rows, seen)), size
    if site.bias is not None:
        found[site.bias] = site.bias_gradients(rows).sum((0, 1)), _norm(rows)
    return found
