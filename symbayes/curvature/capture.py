"""One batch, forward and backward: what every map saw and got back, and gradients of tensors without rows.

Their gradients are computed datum by datum with `torch.func`, which works for any differentiable use of a tensor.

Only gradients of *outputs of maps* are asked of autograd. Weights are detached, so the backward pass never computes weight
gradients, which is what makes this several times cheaper than a gradient for each column. Where the forward pass depends on
more than weights, all of it can be captured with a graph (`differentiable`), so that curvature can be differentiated in turn.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from types import TracebackType

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import vjp, vmap

from symbayes.adapters import NormsByParts, captured_forward
from symbayes.curvature.evaluate import evaluating
from symbayes.layout import Layout, Site, call_with, held


def free_gradients(
    model: nn.Module, names: Sequence[str], inputs: Tensor, columns: Float[Tensor, "v n c"], *, differentiable: bool = False
) -> dict[str, Float[Tensor, "v n p"]]:
    """∂(column · outputs of a datum)/∂(free tensor), flattened, for every datum on its own; with a graph if that is asked for.

    Raises:
        RuntimeError: If torch cannot differentiate the model datum by datum, naming the tensors.
    """
    tensors = held(model, differentiable)
    chosen = {name: tensors.pop(name) for name in names}

    def of_one(datum: Tensor, column: Float[Tensor, " c"]) -> dict[str, Tensor]:
        def outputs(free: dict[str, Tensor]) -> Tensor:
            found: Tensor = call_with(model, {**tensors, **free}, datum[None])[0]
            return found

        (gradients,) = vjp(outputs, chosen)[1](column)
        return {name: gradient.flatten() for name, gradient in gradients.items()}

    try:
        with NormsByParts() if differentiable else nullcontext():
            found = [vmap(of_one)(inputs, column) for column in columns]
    except (RuntimeError, ValueError) as error:
        raise RuntimeError(
            f"Parameters {sorted(names)} are trainable and belong to no layer that symbayes knows, and torch could not "
            f"differentiate the model datum by datum with respect to them ({error}). Freeze them (requires_grad=False), or "
            "build that part from nn.Linear, nn.Conv*, nn.Embedding, norm layers or a Path."
        ) from error
    return {name: torch.stack([gradients[name] for gradients in found]) for name in names}


def refuse_unused(model: nn.Module, names: Sequence[str], inputs: Tensor) -> None:
    """Refuse free tensors that the outputs do not depend on.

    Raises:
        RuntimeError: Naming the first.
    """
    tensors = held(model, differentiable=False)
    chosen = [tensors[name].requires_grad_() for name in names]
    with torch.enable_grad():
        outputs: Tensor = call_with(model, tensors, inputs)
        found = torch.autograd.grad(outputs.sum(), chosen, allow_unused=True) if outputs.requires_grad else [None] * len(names)
    for name, gradient in zip(names, found, strict=True):
        if gradient is None:
            raise RuntimeError(
                f"Parameter {name!r} is trainable, but the outputs of the model do not depend on it. "
                "Freeze it (requires_grad=False), or use it."
            )


#: Gradients of several columns travel together as long as they stay below this many numbers; on a CPU, in its cache.
COLUMN_BUDGET, COLUMN_BUDGET_CPU = 2**24, 2**20
#: Data by which it is seen what outputs depend on, beside weights.
_LOOKED_AT = 8


#: Called with the part of the columns, the name of a map, and gradients [v, n, *rest] with respect to its output.
Deliver = Callable[[int, str, Tensor], None]


def is_differentiable(model: nn.Module, inputs: Tensor) -> bool:
    """Whether gradients are on and outputs depend on more than weights: on hyperparameters, inputs, other tensors of a user."""
    return torch.is_grad_enabled() and depends_on_more(model, inputs, hyperparameters=True)


@torch.enable_grad()
def depends_on_more(model: nn.Module, inputs: Tensor, *, hyperparameters: bool) -> bool:
    """Whether outputs depend on tensors that ask for gradients and are no weights; on hyperparameters, where these count."""
    with evaluating(model):
        outputs: Tensor = call_with(model, held(model, hyperparameters), inputs)
    return outputs.requires_grad


class Capture:
    """A context in which forward passes of a model are recorded; the model evaluates (no dropout, fixed norms) inside it.

    Raises:
        RuntimeError: If a tensor is shared between modules.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        #: Whether what is captured keeps its graph; may be set before a forward pass.
        self.differentiable = False
        self.layout = Layout.of(model)
        self.layout.refuse_shared()
        #: The maps of every source that is recorded: a module, or a part of one.
        self._of_source: dict[str, list[Site]] = {}
        for site in self.layout.sites.values():
            self._of_source.setdefault(site.source, []).append(site)
        #: By map.
        self.inputs: dict[str, Tensor] = {}
        #: By source.
        self.outputs: dict[str, Tensor] = {}
        #: What was recorded, and how often it had been written to by then: nn.Linear may add its bias in place.
        self._versions: list[tuple[Tensor, int]] = []
        self._recording = self._copying = False
        #: Whether outputs depend on tensors of a user that ask for gradients; known after the first forward pass.
        self._tracked: bool | None = None
        #: Whether columns go back one by one, because torch has no right rule for several.
        self.one_by_one = False
        self._size = 0
        self._undo = ExitStack()

    def __enter__(self) -> "Capture":
        self._undo.enter_context(evaluating(self.model))
        for name in dict.fromkeys(site.module for site in self.layout.sites.values()):
            module = self.model.get_submodule(name)
            forward = captured_forward(module, partial(self._show, name), name)
            if forward is not None:
                module.forward = forward
                self._undo.callback(module.__dict__.pop, "forward")
            if name in self._of_source:
                # Before the hooks of a user, which may change what the module gave.
                hook = module.register_forward_hook(partial(self._hook, name), prepend=True, with_kwargs=True)
                self._undo.callback(hook.remove)
        return self

    def forget(self) -> None:
        """What outputs depend on is found out again, by the next inputs."""
        self._tracked = None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._undo.close()
        self.inputs, self.outputs = {}, {}

    def forward(self, inputs: Tensor) -> Float[Tensor, "n c"]:
        """The outputs of the model; what its maps saw and gave is in `inputs` and `outputs`.

        Raises:
            RuntimeError: If a map with trainable weights did not run, or ran twice.
            ValueError: If the outputs are not a row for each datum.
        """
        if self._tracked is None:
            self._tracked = depends_on_more(self.model, inputs[:_LOOKED_AT], hyperparameters=False)
        outputs = self._run(inputs)
        if outputs is None:
            self._copying = True
            outputs = self._run(inputs)
        if outputs is None:
            raise RuntimeError("An operation in place changed what a map saw or gave, although it was given a copy.")
        if outputs.ndim != 2 or len(outputs) != len(inputs):
            raise ValueError(
                f"The model must give outputs [n, c], a row for each of the {len(inputs)} inputs; "
                f"got shape {tuple(outputs.shape)}."
            )
        for name, site in self.layout.sites.items():
            if name not in self.inputs:
                raise RuntimeError(
                    f"Parameter {site.weight or site.bias!r} is trainable, but its module did not run in the forward pass, so "
                    "the evidence would ignore it. Freeze it (requires_grad=False), or call the module."
                )
        return outputs

    def _run(self, inputs: Tensor) -> Tensor | None:
        """A recorded forward pass; None if an operation in place (nn.ReLU(inplace=True)) changed what a map saw or gave."""
        self.inputs, self.outputs, self._versions, self._size = {}, {}, [], len(inputs)
        tensors = held(self.model, self.differentiable)
        self._recording = True
        try:
            with torch.enable_grad(), NormsByParts() if len(inputs) == 1 else nullcontext():
                outputs: Tensor = call_with(self.model, tensors, inputs)
        except RuntimeError as error:
            if self._copying or "in-place operation" not in str(error):
                raise
            return None
        finally:
            self._recording = False
        changed = any(recorded._version > version for recorded, version in self._versions)
        return None if changed else outputs

    def backward(self, outputs: Float[Tensor, "n c"], columns: Float[Tensor, "k v n c"], deliver: Deliver) -> None:
        """Deliver ∂(column · outputs)/∂(output of each map) for every column, some at a time.

        Raises:
            RuntimeError: If the outputs do not depend on a map.
        """
        if not self.outputs:
            return
        size = sum(output.numel() for output in self.outputs.values())
        at_once = max(1, (COLUMN_BUDGET_CPU if outputs.device.type == "cpu" else COLUMN_BUDGET) // max(1, size))
        chunks = [(part, chunk) for part, of_part in enumerate(columns) for chunk in of_part.split(at_once)]
        for index, (part, chunk) in enumerate(chunks):
            keep = index + 1 < len(chunks)
            to_maps = partial(self._deliver, partial(deliver, part))
            if self.differentiable:
                found = self._with_graph(outputs, chunk, to_maps)
            elif len(chunk) > 1 and not self.one_by_one:
                found = self._many_columns(outputs, chunk, keep, to_maps)
            else:
                last = len(chunk) - 1
                each = [self._one_column(outputs, c, keep or k < last, to_maps) for k, c in enumerate(chunk)]
                found = set[str]().union(*each)
            for name in self.outputs.keys() - found:
                site = self._of_source[name][0]
                raise RuntimeError(
                    f"Parameter {site.weight or site.bias!r} is trainable, but the outputs of the model do not depend on it. "
                    "Freeze it (requires_grad=False), or use it."
                )

    def _deliver(self, deliver: Callable[[str, Tensor], None], source: str, gradients: Tensor) -> None:
        for site in self._of_source[source]:
            deliver(site.name, gradients)

    def _one_column(self, outputs: Tensor, column: Tensor, keep: bool, deliver: Callable[[str, Tensor], None]) -> set[str]:
        """Gradients are delivered as they arise, so that only one of them is held; the maps they arose for."""
        found: set[str] = set()

        def hook(name: str, gradient: Tensor) -> None:
            found.add(name)
            deliver(name, gradient[None])

        hooks = [output.register_hook(partial(hook, name)) for name, output in self.outputs.items()]
        # From the first maps all others are passed; unless maps behind inputs or other tensors of a user are no leaves.
        first = [output for output in self.outputs.values() if output.is_leaf or self._tracked]
        torch.autograd.grad(outputs, first, column, retain_graph=keep, allow_unused=True)
        for handle in hooks:
            handle.remove()
        return found

    def _many_columns(self, outputs: Tensor, columns: Tensor, keep: bool, deliver: Callable[[str, Tensor], None]) -> set[str]:
        """Several columns in one pass, for small maps; the maps whose gradients were delivered."""
        gradients = torch.autograd.grad(
            outputs, list(self.outputs.values()), columns, retain_graph=keep, is_grads_batched=True, allow_unused=True
        )
        found = {name: gradient for name, gradient in zip(self.outputs, gradients, strict=True) if gradient is not None}
        for name, gradient in found.items():
            deliver(name, gradient)
        return set(found)

    def _with_graph(self, outputs: Tensor, columns: Tensor, deliver: Callable[[str, Tensor], None]) -> set[str]:
        """Gradients that can be differentiated in turn; the maps whose gradients were delivered."""
        found: set[str] = set()
        for column in columns:
            gradients = torch.autograd.grad(outputs, list(self.outputs.values()), column, create_graph=True, allow_unused=True)
            for name, gradient in zip(self.outputs, gradients, strict=True):
                if gradient is not None:
                    deliver(name, gradient[None])
                    found.add(name)
        return found

    def _hook(self, name: str, _: nn.Module, inputs: tuple[Tensor, ...], by_name: dict[str, Tensor], outputs: Tensor) -> Tensor:
        return self._record(name, first_of(inputs, by_name), outputs)

    def _show(self, name: str, part: str, inputs: Tensor, outputs: Tensor) -> Tensor:
        return self._record(f"{name}.{part}" if name else part, inputs, outputs)

    def _record(self, name: str, inputs: Tensor, outputs: Tensor) -> Tensor:
        if name not in self._of_source or not self._recording:
            return outputs
        if name in self.outputs:
            raise RuntimeError(
                f"Module {name!r} ran twice in one forward pass. The curvature of weights shared between calls is not known "
                "to the row form; give each call a module of its own."
            )
        site = self._of_source[name][0]
        size = self._size * site.copies * site.parts
        if len(inputs) != size or len(outputs) != size:
            raise RuntimeError(
                f"Module {name!r} must get the data along its first axis so that its curvature is of each datum: there are "
                f"{size}, got inputs of shape {tuple(inputs.shape)}. Keep the batch first ([n, positions, features]); "
                "expand what is the same for all data to it, or make it an nn.Parameter."
            )
        if not outputs.requires_grad:
            outputs.requires_grad_()
        seen = inputs if self.differentiable else inputs.detach()
        seen = seen.clone() if self._copying else seen
        self.outputs[name] = outputs
        self.inputs |= dict.fromkeys((site.name for site in self._of_source[name]), seen)
        self._versions += [(outputs, outputs._version), (seen, seen._version)]
        return outputs.clone() if self._copying else outputs


def first_of(inputs: tuple[Tensor, ...], by_name: dict[str, Tensor]) -> Tensor:
    """What a module was called with, by position or by name."""
    return inputs[0] if inputs else next(iter(by_name.values()))
