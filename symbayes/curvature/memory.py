"""Batches that stay within a budget of memory, as the first data measure it; results do not depend on the batch."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import ceil, inf, prod

import torch
from torch import Tensor, nn

from symbayes.curvature.capture import COLUMN_BUDGET, COLUMN_BUDGET_CPU, Capture
from symbayes.data.source import DataSource, LoaderSource
from symbayes.layout import Layout, Site, weights

#: Input rows, and gradients of single data, are formed for as many at a time as stay below this many numbers.
ROW_BUDGET, ROW_BUDGET_CPU = 2**26, 2**20
#: Features of a side of a weight up to which it has a factor, and of a bias up to which it has a block: squares of so many
#: numbers. What is larger has a diagonal.
LARGEST_SIDE, LARGEST_BIAS = 2**14, 2**11
#: What a datum takes beyond what was counted: gradients on their way back, and workspaces.
_BESIDE = 3.0
#: Products with vectors hold tangents beside what a pass holds, and gradients of both.
_PRODUCT = 3.0
_GIB = 2**30
_BYTES: ContextVar[float | None] = ContextVar("bytes", default=None)


@contextmanager
def memory_budget(gib: float) -> Iterator[None]:
    """A context in which passes over data for curvature hold no more than so many GiB, beside the data themselves.

    What a datum takes is measured on the first ones. Whatever batches follow from it, sums are the same but for rounding. Steps
    of training have the batch size that their `Schedule` says.

    Args:
        gib: For factors and what a batch leaves in memory.

    Raises:
        ValueError: If it is not positive and finite; and from a pass, if two data at a time do not fit.
    """
    if not 0 < gib * _GIB < inf:
        raise ValueError(f"A budget must be positive and finite, in GiB, got {gib}.")
    token = _BYTES.set(gib * _GIB)
    try:
        yield
    finally:
        _BYTES.reset(token)


def within_budget(model: nn.Module, data: DataSource, batch_size: int, *, product: bool = False) -> int:
    """As many data as a batch may have: so many, or fewer where there is a budget.

    Args:
        model: Through which they go.
        data: Whose first ones are measured; of a DataLoader batches stay as they are.
        batch_size: Without a budget.
        product: Whether products with vectors are formed, rather than factors.

    Raises:
        ValueError: If not even two data fit.
    """
    budget = _BYTES.get()
    if budget is None or isinstance(data, LoaderSource):
        return batch_size
    inputs = next(data.batches(2))[0]
    fixed, each = fixed_bytes(model, product=product), bytes_of_datum(model, inputs, product=product)
    fitting = int((budget - fixed) // each)
    if fitting < 2:
        raise ValueError(
            f"A budget of {budget / _GIB:.3g} GiB must hold factors and two data of a batch, which take "
            f"{(fixed + 2 * each) / _GIB:.3g} GiB: {fixed / _GIB:.3g} for the model, and {each / _GIB:.3g} for each datum. "
            "Give a larger memory_budget, or a smaller model."
        )
    return min(batch_size, fitting * data.processes.count)


def fixed_bytes(model: nn.Module, *, product: bool = False) -> int:
    """What a pass holds whatever the batch is: factors and rows, or vectors."""
    own = weights(model)
    weight = next(iter(own.values()))
    if product:
        return 4 * sum(tensor.nbytes for tensor in own.values())
    rows, columns = (ROW_BUDGET_CPU, COLUMN_BUDGET_CPU) if weight.device.type == "cpu" else (ROW_BUDGET, COLUMN_BUDGET)
    return weight.element_size() * (factor_numbers(model) + rows + columns)


def factor_numbers(model: nn.Module) -> int:
    """Numbers in all Kronecker factors of a model, and blocks of its biases; of what has none, as many as there are weights."""
    layout = Layout.of(model)
    numbers = sum(layout.tensors[name].size for name in layout.free)
    for site in layout.sites.values():
        if site.matrix is None or not has_factors(site):
            numbers += sum(layout.tensors[name].size for name in (site.weight, site.bias) if name is not None)
            if site.weight is None and site.bias is not None and layout.tensors[site.bias].size <= LARGEST_BIAS:
                numbers += layout.tensors[site.bias].size ** 2
            continue
        blocks, sides = site.matrix[0], _sides(site.matrix, site)
        numbers += blocks * sides[0] ** 2
        if site.bias is not None:
            numbers += blocks * sides[0] ** (2 if sides[0] <= LARGEST_BIAS else 1)
        numbers += blocks * (sides[1] if site.form.structure == "one-hot" else sides[1] ** 2)
    return numbers


def has_factors(site: Site) -> bool:
    """Whether a map has Kronecker factors, rather than a diagonal: where it has matrices, with sides that are not too large."""
    if site.form.structure == "diagonal":
        return False
    if site.matrix is None:  # its bias alone is learned, or a single number
        return True
    given, seen = _sides(site.matrix, site)
    return given <= LARGEST_SIDE and (seen <= LARGEST_SIDE or site.form.structure == "one-hot")


def _sides(matrix: tuple[int, int, int], site: Site) -> tuple[int, int]:
    """Features that a map gives, and that it sees."""
    return (matrix[2], matrix[1]) if site.form.transposed else (matrix[1], matrix[2])


def bytes_of_datum(model: nn.Module, inputs: Tensor, *, product: bool = False) -> int:
    """What a pass takes for each of some data, workspaces included."""
    return ceil(_BESIDE * (_PRODUCT if product else 1.0) * bytes_held(model, inputs))


@torch.no_grad()
def bytes_held(model: nn.Module, inputs: Tensor) -> int:
    """What a pass holds of each of some data: what maps see and give, and what autograd keeps to go back.

    From what three of them take more than two. What modules give that see the same for all data counts for each of them, since
    they will be shown it for each.
    """
    taken, lengths, least = [], [], 0
    with Capture(model) as capture:
        capture.look(inputs[:1].repeat(2, *(1,) * (inputs.ndim - 1)))  # from then on it is known what has to be copied
        for count in (2, 3):
            found: dict[int, int] = {}

            def note(tensor: Tensor, found: dict[int, int] = found) -> Tensor:
                storage = tensor.untyped_storage()
                found[storage._cdata] = storage.nbytes()
                return tensor

            copies = inputs[:1].repeat(count, *(1,) * (inputs.ndim - 1))
            with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
                tensors = capture.look(copies)
                for tensor in tensors:
                    note(tensor)
            for tensor in (*model.parameters(), *model.buffers(), copies):  # of which there is one, however many data
                found.pop(tensor.untyped_storage()._cdata, None)
            taken.append(sum(found.values()))
            lengths.append([tensor.shape[:1] for tensor in tensors])
            least = prod(tensors[-1].shape[1:]) * tensors[-1].element_size()
    each = max(0, taken[1] - taken[0])
    is_fixed = len(lengths[0]) != len(lengths[1]) or any(a == b for a, b in zip(*lengths, strict=True))
    return max(each + (taken[0] - 2 * each if is_fixed else 0), least)
