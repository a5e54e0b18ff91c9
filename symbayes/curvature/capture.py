"""One batch, forward and backward: what every map saw and got back.

Tensors without rows have their gradients datum by datum (`gradients.py`). Where one has an axis of length one for the data, as
embeddings of positions have, every datum is given its own copy along it instead, and the same backward pass gives their
gradients. A tensor that several maps share, as an embedding and a head may, has the sum of theirs.

Only gradients of *outputs of maps* are asked of autograd. Weights are detached, so the backward pass never computes weight
gradients, which is what makes this several times cheaper than a gradient for each column. Of outputs nothing is held but where
in the graph their gradients arise. Where the forward pass depends on more than weights, all of it can be captured with a graph
(`differentiable`), so that curvature can be differentiated in turn.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from symbayes.adapters import NormsByParts, captured_forward, replaced
from symbayes.curvature.backward import Given, many_columns, one_column, with_graph
from symbayes.curvature.evaluate import depends_on_more, evaluating, is_capturing
from symbayes.layout import Layout, Site, call_with, held
from symbayes.precision import tensor_cores

#: Gradients of several columns travel together as long as they stay below this many numbers; on a CPU, in its cache.
COLUMN_BUDGET, COLUMN_BUDGET_CPU = 2**24, 2**18
#: How far apart gradients of one datum may be, relative to their size; those of two data are farther.
_NEAR = 0.01
#: Data by which it is seen what outputs depend on, beside weights.
_LOOKED_AT = 8
#: What torch says where an operation in place writes to what may not be written to.
_IN_PLACE = ("in-place operation", "modified inplace")
#: Called with the part of the columns, the name of a map, and gradients [v, m, *rest] with respect to its output, where all
#: that it was called with of a datum lies side by side.
Deliver = Callable[[int, str, Tensor], None]


@dataclass(frozen=True)
class Known:
    """What was found out of a model: how it is captured."""

    #: Whether columns go back one by one, because torch has no right rule for several.
    one_by_one: bool
    #: Tensors that several maps share whose gradients are the sum of theirs.
    tied: frozenset[str]
    #: Free tensors of which every datum has a copy of its own.
    spread: frozenset[str]
    #: Sources that see the same for all data.
    fixed: frozenset[str]


class Capture:
    """A context in which forward passes of a model are recorded; the model evaluates (no dropout, fixed norms) inside it.

    A module may be called several times in a forward pass, and may see several parts of a datum for themselves, side by side in
    a batch: rows of all of them are rows of the datum. What is the same for all data, such as numbers of positions, is shown to
    a module once for each of them.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        #: Whether what is captured keeps its graph; may be set before a forward pass.
        self.differentiable = False
        #: Whether outputs may be as coarse as those of convolutions on a GPU are, in TF32; likewise.
        self.coarse = False
        self.layout = Layout.of(model)
        #: The maps of every source that is recorded: a module, or a part of one.
        self._of_source: dict[str, list[Site]] = {}
        #: Tensors that several maps share, and these.
        self.tied = dict(self.layout.tied)
        for site in self._all_sites():
            self._of_source.setdefault(site.source, []).append(site)
        #: Maps as they were called in the last forward pass, and what they saw.
        self.sites: dict[str, Site] = {}
        self.inputs: dict[str, Tensor] = {}
        #: What each source saw and gave, call by call.
        self._seen: dict[str, list[Tensor]] = {}
        self._given: dict[str, list[Given]] = {}
        #: Sources that see the same for all data.
        self._fixed: Set[str] = set()
        self._expanded: set[str] = set()
        #: Free tensors of which every datum has a copy of its own.
        self.spread: Set[str] = set()
        #: Whether the model takes what was expanded.
        self._proven = False
        #: What is recorded in a forward pass, and how often it was written to by then: nn.Linear may add its bias in place.
        self._recorded: list[tuple[Tensor, int]] = []
        self._recording = self._copying = self._looking = False
        #: Whether outputs depend on tensors of a user that ask for gradients; None before the first forward pass.
        self.tracked: bool | None = None
        #: Whether it is known what is spread, fixed and tied.
        self._looked = False
        #: Whether columns go back one by one, because torch has no right rule for several.
        self.one_by_one = False
        self._size = 0
        self._undo = ExitStack()

    def __enter__(self) -> "Capture":
        self._undo.enter_context(evaluating(self.model))
        for name in dict.fromkeys(site.module for site in self._all_sites()):
            module = self.model.get_submodule(name)
            build = captured_forward(module, partial(self._show, name), name)
            if build is not None:
                self._undo.enter_context(replaced(module, build))
            if name in self._of_source:
                # Before the hooks of a user, which may change what the module gave.
                hook = module.register_forward_hook(partial(self._hook, name), prepend=True, with_kwargs=True)
                self._undo.callback(hook.remove)
                before = module.register_forward_pre_hook(partial(self._expand, name))
                self._undo.callback(before.remove)
        return self

    def _all_sites(self) -> list[Site]:
        """Of all maps, those that share their weight among them."""
        return [*self.layout.sites.values(), *(site for sites in self.tied.values() for site in sites)]

    @property
    def free(self) -> list[str]:
        """Tensors whose gradients do not come with those of maps."""
        return [name for name in self.layout.free if name not in self.spread and name not in self.tied]

    def untie(self, names: Iterable[str]) -> None:
        """Take gradients of some tensors that several maps share datum by datum."""
        gone = {site.name for name in list(names) for site in self.tied.pop(name)}
        left = {source: [site for site in sites if site.name not in gone] for source, sites in self._of_source.items()}
        self._of_source = {source: sites for source, sites in left.items() if sites}
        self._fixed = self._fixed & self._of_source.keys()

    @property
    def known(self) -> Known:
        """What was found out so far."""
        return Known(self.one_by_one, frozenset(self.tied), frozenset(self.spread), frozenset(self._fixed))

    def follow(self, known: Known) -> None:
        """Capture as another one of the same model did, without looking again."""
        self.untie(self.tied.keys() - known.tied)
        self.one_by_one, free = known.one_by_one, set(self.layout.free)
        self.spread, self._fixed = known.spread & free, known.fixed & self._of_source.keys()
        # What was not spread may not have mattered then, as behind a head of zeros, with which training may begin.
        own = dict(self.model.named_parameters())
        self._looked = all(name in self.spread or own[name].shape[:1] != (1,) for name in free)

    def _sees_data(self, site: Site) -> bool:
        """Whether what a map saw in the last look, at three data, is of each of them, and of one shape in all calls."""
        calls = self._seen.get(site.source, [])
        if len({call.shape for call in calls}) != 1 or site.source in self._fixed:
            return False
        return calls[0].ndim > 0 and len(calls[0]) % (3 * site.copies) == 0

    def forget(self) -> None:
        """What outputs depend on, and whether data mix in tensors that they share, is found out again by the next inputs."""
        self.tracked = None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._undo.close()
        self.sites, self.inputs, self._seen, self._given = {}, {}, {}, {}

    def forward(self, inputs: Tensor) -> Float[Tensor, "n c"]:
        """The outputs of the model; what its maps saw is in `inputs`.

        Raises:
            RuntimeError: If a map with trainable weights did not run, or on data of several shapes.
            ValueError: If the outputs are not a row for each datum.
        """
        first = self.tracked is None
        if first:
            self.tracked = depends_on_more(self.model, inputs[:_LOOKED_AT], hyperparameters=False)
        if not self._looked:
            self.spread = self._find_spread(inputs[:_LOOKED_AT])
            self._fixed = self._find_fixed(inputs[:1])
            self.untie([name for name, sites in self.tied.items() if not all(map(self._sees_data, sites))])
            self._looked = True
        outputs = self._run(inputs)
        if outputs.ndim != 2 or len(outputs) != len(inputs):
            self.refuse_expanded()
            raise ValueError(
                f"The model must give outputs [n, c], a row for each of the {len(inputs)} inputs; "
                f"got shape {tuple(outputs.shape)}."
            )
        for site in self._all_sites():
            name, calls = site.name, self._seen.get(site.source)
            if calls is None:
                raise RuntimeError(
                    f"Parameter {site.weight or site.bias!r} is trainable, but its module did not run in the forward pass, so "
                    "the evidence would ignore it. Freeze it (requires_grad=False), or call the module."
                )
            if len({call.shape for call in calls}) > 1:
                raise RuntimeError(
                    f"A module that is called several times must see data of one shape each time; {site.source!r} sees "
                    f"{[tuple(call.shape) for call in calls]}. Give each call a module of its own, or use Ggn() or Lanczos(), "
                    "which do not look into modules."
                )
            self.inputs[name] = _side_by_side(calls, 0)
            self.sites[name] = replace(site, parts=len(self.inputs[name]) // (len(inputs) * site.copies))
        if first and self.tied and self._misplaced([s.source for sites in self.tied.values() for s in sites], outputs):
            self.untie(list(self.tied))
            return self.forward(inputs)
        if first and self.spread and self._misplaced(sorted(self.spread), outputs):
            self.spread = set()
            return self.forward(inputs)
        self._check_parts(outputs)
        self._proven = True
        return outputs

    def look(self, inputs: Tensor) -> list[Tensor]:
        """What maps see and give in a forward pass, and its outputs; of whatever they are called with, nothing is refused."""
        self._looking = True
        try:
            outputs = self._run(inputs)
            return [*(tensor for tensor, _ in self._recorded), outputs]
        finally:
            self._looking, self._recorded = False, []

    def _check_parts(self, outputs: Float[Tensor, "n c"]) -> None:
        """Refuse parts of data that are not where their datum is.

        In every batch, since where they are may depend on data: on lengths, or on an order that data are brought to.

        Raises:
            RuntimeError: Naming their module.
        """
        known = self._given.keys() - self.spread
        sources = [name for name in self._given if name in known and self.sites[self._of_source[name][0].name].parts > 1]
        wrong = self._misplaced(sources, outputs)
        if wrong is not None:
            raise mixed_data(wrong)

    def _misplaced(self, sources: Sequence[str], outputs: Float[Tensor, "n c"]) -> str | None:
        """A source that sees data in another order than the model gives their outputs; None where all see them in that.

        With the outputs of datum n times w_n, gradients of its parts are w_n times what they are without.
        """
        if not sources or not outputs.requires_grad or is_capturing(outputs):
            return None
        flat = [(name, call.edge) for name in sources for call in self._given[name]]
        generator = torch.Generator().manual_seed(len(outputs))
        factors = (torch.rand(len(outputs), generator=generator) + 1).to(outputs)
        column = (torch.rand(outputs.shape[1:], generator=generator) + 0.5).to(outputs).expand_as(outputs)
        with self._precision(outputs.device):
            usual, scaled = (
                torch.autograd.grad(outputs, [edge for _, edge in flat], some, retain_graph=True, allow_unused=True)
                for some in (column, factors[:, None] * column)
            )
        for (name, _), one, other in zip(flat, usual, scaled, strict=True):
            if one is not None and other is not None and not _scales(one.detach(), other.detach(), factors.to(one)):
                return name
        return None

    def refuse_expanded(self, error: Exception | None = None) -> None:
        """Refuse a module that was shown for each datum what is the same for all, where the model does not use it so.

        Raises:
            RuntimeError: Naming it, if there is one.
        """
        for name in self._expanded:
            raise _not_of_data(name, "; it is called once for all of them") from error

    def _find_fixed(self, datum: Tensor) -> set[str]:
        """Sources that see as many of whatever it is for two data as for three."""
        lengths: list[dict[str, list[torch.Size]]] = []
        for count in (2, 3):
            self._fixed = set()
            self.look(datum.repeat(count, *(1,) * (datum.ndim - 1)))
            lengths.append({name: [call.shape[:1] for call in calls] for name, calls in self._seen.items()})
        return {name for name, found in lengths[0].items() if lengths[1].get(name) == found}

    def _find_spread(self, inputs: Tensor) -> set[str]:
        """Free tensors with an axis for the data, along which each may have a copy of its own; together, if they may at all."""
        self.spread = set()
        tensors = held(self.model, differentiable=False)
        looks = (inputs[:1].repeat(3, *(1,) * (inputs.ndim - 1)), inputs)
        may = [name for name in self.layout.free if tensors[name].shape[:1] == (1,)]
        if may and all(self._may_spread(may, tensors, look) for look in looks):
            return set(may)
        for look in looks:
            may = [name for name in may if self._may_spread([name], tensors, look)]
        return set(may) if len(may) < 2 or self._may_spread(may, tensors, inputs) else set()

    @torch.enable_grad()
    def _may_spread(self, names: Sequence[str], tensors: Mapping[str, Tensor], inputs: Tensor) -> bool:
        """Whether outputs stay as they are, and that of a datum depends on its own copies alone.

        Data whose numbers differ in a bit are told apart by a backward pass from those that have it, and one from others.
        """
        copies = {name: tensors[name].expand(len(inputs), *tensors[name].shape[1:]).requires_grad_() for name in names}
        numbers = torch.arange(len(inputs), device=inputs.device)
        halves = [numbers >> bit & 1 == has for bit in range(max(1, (len(inputs) - 1).bit_length())) for has in (0, 1)]
        try:
            outputs, plain = (call_with(self.model, {**tensors, **each}, inputs) for each in (copies, {}))
            column, own = torch.arange(1.0, outputs.shape[1] + 1).to(outputs), list(copies.values())
            found = [
                torch.autograd.grad((outputs[half] * column).sum(), own, retain_graph=True, materialize_grads=True)
                for half in halves
            ]
        except (RuntimeError, ValueError, IndexError):
            return False
        apart = all(not each[~half].any() for half, some in zip(halves, found, strict=True) for each in some)
        used = all(any(some[at].any() for some in found) for at in range(len(names)))
        return torch.allclose(outputs, plain, 1e-3, 1e-5) and apart and used

    def _run(self, inputs: Tensor) -> Tensor:
        """A recorded forward pass; of copies where an operation in place (nn.ReLU(inplace=True)) changes what is recorded."""
        outputs = self._run_once(inputs)
        if outputs is None:
            self._copying = True
            outputs = self._run_once(inputs)
        if outputs is None:
            raise RuntimeError("An operation in place changed what a map saw or gave, although it was given a copy.")
        return outputs

    def _run_once(self, inputs: Tensor) -> Tensor | None:
        """The same; None if something was changed."""
        self.sites, self.inputs, self._seen, self._given, self._recorded, self._size = {}, {}, {}, {}, [], len(inputs)
        tensors = held(self.model, self.differentiable)
        for name in self.spread:
            tensors[name] = tensors[name].expand(len(inputs), *tensors[name].shape[1:]).requires_grad_()
            self._given[name] = [Given(get_gradient_edge(tensors[name]), tensors[name].numel(), is_first=True)]
        self._recording = True
        try:
            precision = self._precision(inputs.device) if self.coarse else nullcontext()
            with torch.enable_grad(), precision, NormsByParts() if len(inputs) == 1 else nullcontext():
                outputs: Tensor = call_with(self.model, tensors, inputs)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError, IndexError) as error:
            if any(words in str(error) for words in _IN_PLACE) and not self._copying:
                return None
            if not self._proven:
                self.refuse_expanded(error)
            raise
        finally:
            self._recording = False
        changed = any(recorded._version > version for recorded, version in self._recorded)
        if not self._looking:
            self._recorded = []
        return None if changed else outputs

    def backward(
        self, outputs: Float[Tensor, "n c"], columns: Float[Tensor, "k v n c"], deliver: Deliver, *, keep: bool = False
    ) -> None:
        """Deliver ∂(column · outputs)/∂(output of each map) for every column, some at a time; others may follow, if it is kept.

        Raises:
            RuntimeError: If the outputs do not depend on a map.
        """
        if not self._given:
            return
        size = sum(call.count for calls in self._given.values() for call in calls)
        at_once = max(1, (COLUMN_BUDGET_CPU if outputs.device.type == "cpu" else COLUMN_BUDGET) // max(1, size))
        chunks = [(part, chunk) for part, of_part in enumerate(columns) for chunk in of_part.split(at_once)]
        for index, (part, chunk) in enumerate(chunks):
            others = keep or index + 1 < len(chunks)
            to_maps = partial(self._deliver, partial(deliver, part))
            with self._precision(outputs.device):
                if self.differentiable:
                    found = with_graph(outputs, chunk, self._given, to_maps)
                elif len(chunk) > 1 and not self.one_by_one:
                    found = many_columns(outputs, chunk, self._given, to_maps, keep=others)
                else:
                    go_back = partial(one_column, outputs, given=self._given, deliver=to_maps, to_all=bool(self.tracked))
                    last = len(chunk) - 1
                    found = set[str]().union(*(go_back(column=c, keep=others or k < last) for k, c in enumerate(chunk)))
            for name in self._given.keys() - found:
                site = None if name in self.spread else self._of_source[name][0]
                unused = name if site is None else site.weight or site.bias
                raise RuntimeError(
                    f"Parameter {unused!r} is trainable, but the outputs of the model do not depend on it. "
                    "Freeze it (requires_grad=False), or use it."
                )

    def _precision(self, device: torch.device) -> AbstractContextManager[None]:
        """That of gradients: products of matrices as convolutions, but where all of it is to be differentiated."""
        return nullcontext() if self.differentiable else tensor_cores(device)

    def _deliver(self, deliver: Callable[[str, Tensor], None], source: str, gradients: Sequence[Tensor | None]) -> None:
        some = next(gradient for gradient in gradients if gradient is not None)
        whole = _side_by_side([torch.zeros_like(some) if gradient is None else gradient for gradient in gradients], 1)
        if source in self.spread:
            deliver(source, whole)
            return
        for site in self._of_source[source]:
            deliver(site.name, whole)

    def _expand(self, name: str, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """What is the same for all data, once for each of them."""
        if name not in self._fixed or not self._recording or not inputs:
            return None
        first, *others = inputs
        size = self._size * self._of_source[name][0].copies
        if isinstance(module, nn.Embedding) and first.ndim == 1:
            first = first.expand(size, -1)
        elif first.shape[:1] == (1,):
            first = first.expand(size, *first.shape[1:])
        else:
            return None
        self._expanded.add(name)
        return first, *others

    def _hook(self, name: str, _: nn.Module, inputs: tuple[Any, ...], by_name: dict[str, Any], outputs: Tensor) -> Tensor:
        return self._record(name, first_of(inputs, by_name), outputs)

    def _show(self, name: str, part: str, inputs: Tensor, outputs: Tensor) -> Tensor:
        return self._record(f"{name}.{part}" if name else part, inputs, outputs)

    def _record(self, name: str, inputs: Tensor, outputs: Tensor) -> Tensor:
        if name not in self._of_source or not self._recording:
            return outputs
        size = self._size * self._of_source[name][0].copies
        apart = not inputs.ndim or len(inputs) % size or len(inputs) != len(outputs) or name in self._fixed - self._expanded
        if apart and not self._looking:
            raise _not_of_data(name, f": there are {size}, got inputs of shape {tuple(inputs.shape)}")
        outputs, given = Given.of(outputs)
        seen = inputs if self.differentiable else inputs.detach()
        seen = seen.clone() if self._copying else seen
        self._seen.setdefault(name, []).append(seen)
        self._given.setdefault(name, []).append(given)
        self._recorded += [(outputs, outputs._version), (seen, seen._version)]
        return outputs.clone() if self._copying else outputs


def _not_of_data(name: str, words: str) -> RuntimeError:
    return RuntimeError(
        f"Module {name!r} must get the data along its first axis so that its curvature is of each datum{words}. Keep the batch "
        "first ([n, positions, features]); expand what is the same for all data to it, or make it an nn.Parameter."
    )


def _scales(gradients: Tensor, scaled: Tensor, factors: Float[Tensor, " n"]) -> bool:
    """Whether gradients of the parts of each datum were multiplied by its factor, where they are more than rounding."""
    expected = gradients * factors.repeat_interleave(len(gradients) // len(factors)).view(-1, *(1,) * (gradients.ndim - 1))
    size, wrong = (each.reshape(len(each), -1).norm(dim=1) for each in (gradients, scaled - expected))
    return not (wrong > _NEAR * size + _NEAR**2 * size.max()).any()


def mixed_data(name: str) -> RuntimeError:
    """The error that a module sees data in another order than the model gives their outputs."""
    return RuntimeError(
        f"Module {name!r} must get the data along its first axis: what it gave for one of them matters to the outputs of "
        "others. Keep the batch first ([n, positions, features]), with as many parts of each datum; expand what is the same "
        "for all data to it, or make it an nn.Parameter; or use Ggn() or Lanczos(), which do not look into modules."
    )


def _side_by_side(calls: Sequence[Tensor], axis: int) -> Tensor:
    """What several calls saw of each datum, or gradients of what they gave, beside one another along the axis of data."""
    return calls[0] if len(calls) == 1 else torch.stack(list(calls), axis + 1).flatten(axis, axis + 1)


def first_of(inputs: tuple[Any, ...], by_name: dict[str, Any]) -> Tensor:
    """What a module was called with, by position or by name."""
    found: Tensor = inputs[0] if inputs else next(iter(by_name.values()))
    return found
