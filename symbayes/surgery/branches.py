"""Branches of any network: modules around which data flow, and models without some of them.

They are found by looking, not by rules for kinds of modules. Zeros are put in place of what a module gives. If all that changed
with the data still does, but for this module, data flow around it: it ends a branch, such as what a residual sum adds, or a
shortcut. Modules that outputs no longer depend on then, as gradients tell, belong to the branch. All of them give way to zeros:
those of the end of the shape that it gave, others of the shape that they see, so that what stands between them can be called.
That costs what the log-likelihood falls by: one pass over the data for each branch, and exact.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from symbayes.curvature.evaluate import evaluating
from symbayes.surgery.calls import count, difference, outputs_of, replace
from symbayes.surgery.channels import SAME, UNFIT
from symbayes.surgery.graphs import module_of

#: A call of a module: its name, and how many came before.
_Call = tuple[str, int]
#: Where torch's graphs keep attributes that copies of them have, too.
_PRESERVED = "_user_preserved_attributes"


@dataclass(frozen=True)
class Branch:
    """A module that can give zeros, and those that nothing reads then."""

    end: str
    others: tuple[str, ...]


def find_branches(model: nn.Module, inputs: Tensor, among: Collection[str] | None = None) -> list[Branch]:
    """The branches of a model that have parameters.

    Args:
        model: Its modules are called with zeros in place of what they give.
        inputs: Some data, not all of them the same.
        among: The modules that may end them; all when None.
    """
    given = _given(model, inputs)
    once = {name for (name, _), output in given.items() if name and (name, 1) not in given and _is_plain(output)}
    changing = _changing(model, inputs)
    read = _read(model, inputs)
    found: list[Branch] = []
    for name in sorted(once & {name for name, _ in changing}, key=list(dict(model.named_modules())).index):
        if among is not None and name not in among:
            continue
        try:
            around = changing - {(name, 0)} <= _changing(model, inputs, name)
            unread = read - _read(model, inputs, name) if around else set()
        except UNFIT:
            continue
        if around:
            branch = Branch(name, tuple(sorted(_outermost(unread, name))))
            if any(True for part in (name, *branch.others) for _ in model.get_submodule(part).parameters()):
                found.append(branch)
    return found


def _outermost(names: Collection[str], end: str) -> set[str]:
    """Modules that are in none of the others, nor in the end."""
    return {name for name in names if name != end and not any(name.startswith(f"{other}.") for other in (*names, end))}


@torch.no_grad()
def without_branch(model: nn.Module, inputs: Tensor, branch: Branch) -> nn.Module | str:
    """A copy of a model in which a branch is gone; or why there is none."""
    smaller = deepcopy(model)
    fewer = inputs[: max(1, len(inputs) - 1)]
    try:
        with _hooked(smaller, branch.end):
            wanted = [outputs_of(smaller, (some,)) for some in (inputs, fewer)]
        given = _given(smaller, inputs)
        for name in branch.others:
            replace(smaller, name, _nothing(smaller.get_submodule(name), given[name, 0]))
        seen = _seen_by(smaller, inputs, branch.end, given[branch.end, 0])
        replace(smaller, branch.end, _nothing(smaller.get_submodule(branch.end), given[branch.end, 0], seen))
        for name in (branch.end, *branch.others):
            owner = smaller.get_submodule(name.rpartition(".")[0])
            if isinstance(owner, nn.TransformerEncoderLayer):
                owner.activation_relu_or_gelu = 0  # or its fused pass would read the weights of what is gone
        wrong = max(
            difference(outputs_of(smaller, (some,)), w, least=1.0) for some, w in zip((inputs, fewer), wanted, strict=True)
        )
        wrong = max(wrong, difference(_as_users_call(smaller, inputs), wanted[0], least=1.0))
    except (*UNFIT, AttributeError) as error:
        return f"the model cannot be called without it ({error})"
    return smaller if wrong <= SAME else f"the model computes something else without it (outputs differ by {wrong:.1e})"


def drop_branches(
    model: nn.Module, inputs: Tensor, target: int, lose: float | None, fit: Callable[[nn.Module], float]
) -> tuple[nn.Module, dict[str, tuple[int, int]], dict[str, str]]:
    """A model without branches, down to so many parameters: those first whose loss costs least for each parameter.

    Args:
        model: Is left alone.
        inputs: Some data, by which branches are found.
        target: Of parameters, at most.
        lose: What the log-likelihood per datum may fall by, at most, even if more parameters are left; anything when None.
        fit: The log-likelihood per datum of a model.

    Returns:
        The model; the parameters of branches that are gone, before and after, by their ends; why other branches stay.
    """
    whole = now = fit(model)
    gone: dict[str, tuple[int, int]] = {}
    left: dict[str, str] = {}
    ends: list[str] | None = None
    while count(model) > target:
        branches = find_branches(model, inputs, ends)
        ends = [branch.end for branch in branches]
        best: tuple[float, str, nn.Module, float] | None = None
        for end, branch in zip(ends, branches, strict=True):
            smaller = without_branch(model, inputs, branch)
            if isinstance(smaller, str):
                left[end] = smaller
                continue
            if (fewer := count(model) - count(smaller)) == 0:
                left[end] = "its parameters are used elsewhere, too"
                continue
            after = fit(smaller)
            cost = (now - after) / fewer
            if (lose is None or whole - after <= lose) and (best is None or cost < best[0]):
                best = cost, end, smaller, after
        if best is None:
            break
        _, end, smaller, now = best
        gone[end] = (count(model) - count(smaller), 0)
        model = smaller
    if count(model) > target and lose is None:
        reasons = "".join(f" {name!r} stays, since {reason}." for name, reason in left.items())
        raise ValueError(
            f"keep must leave what is in no branch: at least {count(model):,} parameters; got {target:,}.{reasons} Keep more, "
            "or use units='channels'."
        )
    return model, gone, {name: reason for name, reason in left.items() if name not in gone}


@contextmanager
def _hooked(model: nn.Module, without: str | None, note: Callable[[_Call, Any], Any] | None = None) -> Iterator[None]:
    """Zeros in place of what a module gives; what all calls give is noted, and what notes give takes its place."""
    calls: dict[str, int] = {}

    def hook(name: str) -> Callable[..., Any]:
        def given(module: nn.Module, args: Any, output: Any) -> Any:
            number = calls[name] = calls.get(name, -1) + 1
            if name == without:
                output = _mapped(output, torch.zeros_like)
            noted = None if note is None else note((name, number), output)
            return output if noted is None else noted

        return given

    handles = [module.register_forward_hook(hook(name)) for name, module in model.named_modules() if note or name == without]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _mapped(output: Any, function: Callable[[Tensor], Any]) -> Any:
    """What a module gives, with something else in place of tensors of real numbers."""
    if isinstance(output, Tensor):
        return function(output) if output.is_floating_point() else output
    return type(output)(_mapped(part, function) for part in output) if type(output) in (tuple, list) else output


def _is_plain(output: Any) -> bool:
    """Whether zeros can stand for what a module gives."""
    if type(output) in (tuple, list):
        return all(map(_is_plain, output))
    return output is None or (isinstance(output, Tensor) and output.is_floating_point())


def _given(model: nn.Module, inputs: Tensor, without: str | None = None) -> dict[_Call, Any]:
    """What every module gives in every call; copies, since some tensors are changed in place later."""
    found: dict[_Call, Any] = {}

    def note(call: _Call, output: Any) -> None:
        found[call] = _mapped(output, Tensor.clone)

    with _hooked(model, without, note):
        outputs_of(model, (inputs,))
    return found


def _changing(model: nn.Module, inputs: Tensor, without: str | None = None) -> set[_Call]:
    """Calls that give something else for other data."""
    one, other = (_given(model, some, without) for some in (inputs, inputs.roll(1, 0)))
    return {call for call, output in one.items() if not _same(output, other.get(call))}


def _same(one: Any, other: Any) -> bool:
    """Of all tensors of real numbers."""
    first, second = _tensors(one), _tensors(other)
    return len(first) == len(second) and all(map(torch.equal, first, second))


def _tensors(output: Any) -> list[Tensor]:
    found: list[Tensor] = []
    _mapped(output, found.append)
    return found


def _read(model: nn.Module, inputs: Tensor, without: str | None = None) -> set[str]:
    """Modules that the outputs of a model depend on, by the graph of a gradient."""
    marks: dict[_Call, Tensor] = {}

    def mark(call: _Call, output: Any) -> Any:
        if call[0] == without:
            return output
        marks[call] = torch.zeros((), dtype=torch.float64, device=inputs.device, requires_grad=True)
        return _mapped(output, lambda tensor: tensor + marks[call].to(tensor))

    with torch.enable_grad(), evaluating(model), _hooked(model, without, mark):
        outputs = model(inputs)
    if not outputs.requires_grad:
        return set()
    grads = torch.autograd.grad(outputs.sum(), list(marks.values()), allow_unused=True)
    return {name for (name, _), grad in zip(marks, grads, strict=True) if grad is not None}


def _seen_by(model: nn.Module, inputs: Tensor, end: str, output: Any) -> Tensor:
    """What the end of a branch sees once the others are gone; it may not take data of that shape."""
    module, found = model.get_submodule(end), list[Tensor]()

    def forward(*args: Any, **named: Any) -> Any:
        found.extend(some for some in args[:1] if isinstance(some, Tensor))
        return _mapped(output, torch.zeros_like)

    module.forward = forward
    try:
        outputs_of(model, (inputs,))
    finally:
        del module.forward
    if not found:
        raise ValueError("it is not called with a tensor by position")
    return found[0]


def _nothing(module: nn.Module, output: Any, seen: Tensor | None = None) -> nn.Module:
    """What gives zeros in place of a module: of the shape of what comes, or of what the module gave.

    Args:
        module: What it stands for.
        output: What that gave.
        seen: What comes, for an end, whose zeros are of the shape of its output: as long as what comes along axes where both
            are equally long, and else as long as the output was. When None, zeros are of the shape of what comes, in place
            of the first tensor; in place of others is nothing.
    """
    if not _is_plain(output):
        raise ValueError(f"a {type(module).__name__} gives something else than tensors of real numbers")
    graph, tensors = fx.Graph(), _tensors(output)
    inputs = graph.placeholder("inputs")
    graph.placeholder("*others")
    graph.placeholder("**named")

    def zeros(tensor: Tensor) -> fx.Node | None:
        if seen is None and tensor is not tensors[0]:
            return None
        if seen is None or tensor.shape == seen.shape:
            return graph.call_function(torch.zeros_like, (inputs,))
        sizes = [
            graph.call_method("size", (inputs, axis)) if axis < seen.ndim and seen.shape[axis] == size else size
            for axis, size in enumerate(tensor.shape)
        ]
        return graph.call_method("new_zeros", (inputs, sizes))

    graph.output(_mapped(output, zeros))
    return _saying(module_of(nn.Module(), graph), module)


def _saying(other: fx.GraphModule, module: nn.Module) -> nn.Module:
    """A module that says of itself what another did, since its owner may ask; it has none of its tensors."""
    kinds = (bool, int, float, str, tuple, type(None))
    said = {name: value for name, value in vars(module).items() if not name.startswith("_") and isinstance(value, kinds)}
    said |= dict.fromkeys(module._parameters)
    for name, value in said.items():
        setattr(other, name, value)
    other.meta[_PRESERVED] = said
    return other


def _as_users_call(model: nn.Module, inputs: Tensor) -> Tensor:
    """What a model gives in evaluation, by whatever fast ways torch has."""
    training = {module: module.training for module in model.modules()}
    try:
        with torch.no_grad():
            outputs: Tensor = model.eval()(inputs)
    finally:
        for module, mode in training.items():
            module.training = mode
    return outputs
