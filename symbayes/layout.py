"""The layout of a model: every linear map and every trainable tensor, found once.

Many parts need to know where the weights of a model are. The prior ties them by layer and path, curvature asks for their rows,
families of posteriors for the form of their matrices, tables for their symmetry. All of them read `Layout.of(model)`:

    tensors           every trainable tensor, with the layer and path that it belongs to, and the symmetry of that path
    sites             every linear map that has trainable tensors: its row form, the names of its weight and bias, and how many
                      copies of each datum it sees, where it is inside an average over transformations
    free              the tensors that belong to no map, or that modules share; of them only gradients are known
    hyperparameters   what is learned, too, but is no weight

No other file walks over the modules of a model to find its weights, and models without a layout are refused here. Tensors stay
in the model: a layout has their names, and `weights` and `hyperparameters` give them by name.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from symbayes.adapters import maps_inside, padding_row, uncalled
from symbayes.groups.grids import SpaceGroup
from symbayes.groups.group import Group
from symbayes.layers.basis import RadialBasis
from symbayes.layers.path import Averaging, LinearMap, RowForm, Rows, mean_of_copies
from symbayes.layers.relaxed import RelaxedLayer

Kind = Literal["weight", "bias", "shape"]
#: After the name of a symmetry that the border of a grid may break.
UP_TO_THE_BORDER = " up to the border"
#: Rows of the gradients of v columns.
GradientRows = Float[Tensor, "v n s block d_out"]


class Hyperparameter(nn.Parameter):
    """A parameter of the model itself, such as how far it is invariant: learned by the evidence, without prior or curvature.

    Not a weight: it is not integrated over. What a model computes may depend on it in any way that torch can differentiate.
    """

    def __reduce_ex__(self, protocol: Any) -> Any:  # torch would make it an nn.Parameter again
        return Hyperparameter, (self.data, self.requires_grad)


def hyperparameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Every hyperparameter that is learned, by name."""
    return {n: p for n, p in model.named_parameters() if isinstance(p, Hyperparameter) and p.requires_grad}


def weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """Every trainable weight by name: what has a prior and curvature, and is integrated over."""
    return {n: p for n, p in model.named_parameters() if p.requires_grad and not isinstance(p, Hyperparameter)}


def call_with(model: nn.Module, tensors: Mapping[str, Tensor], inputs: Tensor) -> Any:
    """What a model gives with other tensors in place of its own, named as `named_parameters` does.

    A tensor that several modules hold is replaced in all of them. Torch would find them by all their names, and leave a module
    that has two names without its parameters.
    """
    shared = {other: tensors[first] for first, *others in _holders(model) if first in tensors for other in others}
    return functional_call(model, {**tensors, **shared}, (inputs,), tie_weights=False)


def _holders(model: nn.Module) -> list[list[str]]:
    """The names of every parameter: one for each module that holds it."""
    found: dict[int, list[str]] = {}
    for name, module in model.named_modules():
        for own, parameter in module._parameters.items():
            if parameter is not None:
                found.setdefault(id(parameter), []).append(_join(name, own))
    return list(found.values())


def held(model: nn.Module, differentiable: bool) -> dict[str, Tensor]:
    """All parameters by name, cut off from autograd; hyperparameters not, where they are to be differentiated in."""
    kept = Hyperparameter if differentiable else ()
    return {n: p if isinstance(p, kept) else p.detach() for n, p in model.named_parameters()}


@dataclass(frozen=True)
class WeightTensor:
    """A trainable tensor and its place in the model."""

    name: str
    #: The relaxed layer or module that holds it; the empty name is the model itself.
    layer: str
    #: The path inside the layer, or the kind of module where there are no paths.
    path: str
    #: The symmetry of that path, in words, or None.
    symmetry: str | None
    size: int
    #: A lengthscale or the locations of anchors are a "shape": the form that weights take, not weights.
    kind: Kind
    #: Whether that path breaks a symmetry that another path of its layer keeps.
    relaxes: bool = False
    #: The symmetries of other paths of its layer that this tensor breaks.
    breaks: tuple[str, ...] = ()
    #: The group of that path, exact or up to the border; None where it has none.
    group: Group | None = None


@dataclass(frozen=True)
class Site:
    """A linear map at its place in the model: its row form, and the trainable tensors that are its weight and bias."""

    name: str
    form: RowForm
    weight: str | None
    bias: str | None
    #: The module that computes it, and the part of that which it is; the empty part is the module itself.
    module: str
    part: str = ""
    #: Copies of each datum that the module sees in a batch, side by side, inside an average over transformations.
    copies: int = 1
    #: What each of these counts in the average, now; None where all count the same.
    weigh: Callable[[], Float[Tensor, " copies"]] | None = None
    #: Parts of each of these that it saw for themselves, side by side in a batch; known where it was called.
    parts: int = 1
    #: Blocks and sides of the weight as it is stored; None where it is frozen, or no matrix.
    matrix: tuple[int, int, int] | None = None
    #: Whether the form speaks of the forward pass that the module has when it says that weights meet a datum once.
    may_meet_once: bool = False

    @property
    def source(self) -> str:
        """The name of what its inputs and outputs are recorded of; the sites of a map and of its shape have the same."""
        return _join(self.module, self.part)

    def rows(self, inputs: Tensor) -> Rows:
        """The rows of what the map saw."""
        return self.form.rows(inputs).join(self.parts).fold(self.copies)

    def mean_rows(self, inputs: Tensor, budget: int, *, distinct: bool) -> Iterator[Rows]:
        """Rows, or distinct rows, averaged over copies; for as many data at a time as stay below a budget of numbers."""
        inputs, copies, weights = self._mean_inputs(inputs)
        seen = copies * self.parts
        at_once = max(1, budget // max(1, self.form.rows(inputs[:seen], distinct=distinct).values.numel()))
        for chunk in torch.split(inputs, at_once * seen):
            yield self.form.rows(chunk, distinct=distinct).join(self.parts).fold(copies).mean_over_copies(weights)

    def row_moment(self, inputs: Tensor, budget: int) -> tuple[Float[Tensor, "block d_in d_in"], int] | None:
        """Σ a aᵀ over rows that are averaged over copies, and how many there are; None where it is best taken from rows."""
        inputs, copies, _ = self._mean_inputs(inputs)
        return self.form.row_moment(inputs, budget) if copies == 1 else None

    def _mean_inputs(self, inputs: Tensor) -> tuple[Tensor, int, Float[Tensor, " copies"] | None]:
        """What a map saw, averaged over copies where it can be; how many are left, and what each counts."""
        copies, weights = self.copies, None if self.weigh is None else self.weigh()
        if copies > 1 and self.form.structure == "dense":
            # Rows are linear in what a map sees: those of the mean are the mean of those of all copies.
            return mean_of_copies(inputs.unflatten(0, (-1, copies, self.parts)), weights).flatten(0, 1), 1, None
        return inputs, copies, weights

    def gradient_rows(self, gradients: Float[Tensor, "v m *rest"]) -> GradientRows:
        """The rows of gradients with respect to the output, for several columns."""
        rows = Rows(self.form.output_rows(gradients.flatten(0, 1)), self.form.copies).join(self.parts).fold(self.copies)
        return rows.values.unflatten(0, (len(gradients), -1))

    def summed_gradient_rows(self, gradients: Float[Tensor, "v m *rest"]) -> Float[Tensor, "vn s block d_out"]:
        """The same, summed over copies; columns and data side by side."""
        if self.copies > 1:
            gradients = gradients.unflatten(1, (-1, self.copies, self.parts)).sum(2).flatten(1, 2)
        rows = Rows(self.form.output_rows(gradients.flatten(0, 1)), self.form.copies)
        return rows.join(self.parts).sum_over_copies().values

    def bias_gradients(self, gradients: GradientRows) -> Float[Tensor, "v n p"]:
        """The gradient of the bias for every column and datum on its own."""
        return self.form.bias_from_rows(gradients.sum(2))


@dataclass(frozen=True)
class Layout:
    """Every linear map and every trainable tensor of a model; `Layout.of(model)` finds them."""

    #: By name, in the order of `named_parameters`.
    tensors: dict[str, WeightTensor]
    #: By name.
    sites: dict[str, Site]
    #: The tensors that belong to no site: to none of the modules, or to several of them.
    free: tuple[str, ...]
    #: Those that several modules hold, all of them as the weight of a map: each of these, by its own name of the tensor.
    tied: dict[str, tuple[Site, ...]]
    #: The names of hyperparameters that are learned.
    hyperparameters: tuple[str, ...]
    #: The other names of tensors that several modules share, and the name that each is known by.
    shared: dict[str, str]
    #: Embeddings with a row that torch never gives a gradient, and which it is.
    padding: dict[str, int]

    @staticmethod
    def of(model: nn.Module) -> "Layout":
        """The layout of a model as it is now.

        Raises:
            TypeError: If modules are wrapped or scripted, so that their weights cannot be replaced.
            ValueError: If the model has nothing to train, or weights without a shape, or in another precision than single or
                double.
        """
        modules = dict(model.named_modules())
        tensors = _tensors(model, modules)
        tied = {first: (first, *others) for first, *others in _holders(model) if others and first in tensors}
        parameters = dict(model.named_parameters(remove_duplicate=False))
        sites = _sites(modules, parameters, tensors.keys() - tied.keys())
        covered = {tensor for site in sites.values() for tensor in (site.weight, site.bias)}
        free = tuple(name for name in tensors if name not in covered)
        rows = {name: padding_row(module) for name, module in modules.items()}
        padding = {name: row for name, row in rows.items() if row is not None}
        by_rows = {name: _tied(name, _sites(modules, parameters, set(names)), names) for name, names in tied.items()}
        of_maps = {name: found for name, found in by_rows.items() if found}
        return Layout(tensors, sites, free, of_maps, tuple(hyperparameters(model)), _shared(model), padding)

    def refuse_padding(self) -> None:
        """Refuse embeddings with a row that torch never gives a gradient: its spread would grow unchecked.

        Raises:
            ValueError: Naming the first.
        """
        for name, row in self.padding.items():
            raise ValueError(
                f"Every weight must have a gradient to learn its spread; row {row} of the embedding {name!r} has none, because "
                "of its padding_idx. Build it without, and mask what is padded; or freeze it."
            )

    @property
    def unshared(self) -> set[str]:
        """The tensors that a single module uses."""
        return self.tensors.keys() - set(self.shared.values())


def _join(module: str, inside: str) -> str:
    """The name of something inside a module; either may be empty."""
    return f"{module}.{inside}" if module and inside else module or inside


def _tensors(model: nn.Module, modules: Mapping[str, nn.Module]) -> dict[str, WeightTensor]:
    if wrapped := next((m for m in modules.values() if isinstance(m, nn.DataParallel | torch.jit.ScriptModule)), None):
        raise TypeError(
            f"The model must be made of plain modules, whose weights can be replaced; it has a {type(wrapped).__name__}. Pass "
            "what was wrapped or scripted, such as model.module."
        )
    found = {}
    maps = [name for name, module in modules.items() if isinstance(module, LinearMap)]
    relaxed = {f"{_join(name, 'paths')}.": name for name, module in modules.items() if isinstance(module, RelaxedLayer)}
    for name, parameter in weights(model).items():
        if isinstance(parameter, nn.UninitializedParameter):
            raise ValueError(f"Parameter {name!r} has no shape yet. Call the model on a batch first, as lazy layers need.")
        if parameter.dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"Weights must be in single or double precision, since curvature and evidence are; {name!r} is "
                f"{parameter.dtype}. Convert the model: model.float(). To train at lower precision, use torch.autocast."
            )
        found[name] = _place(name, parameter.numel(), modules, maps, relaxed)
    if not found:
        raise ValueError("The model has no trainable parameter: there is nothing to learn. Set requires_grad on some.")
    return found


def _place(
    name: str, size: int, modules: Mapping[str, nn.Module], maps: Sequence[str], relaxed: Mapping[str, str]
) -> WeightTensor:
    """The layer and path of a tensor, and what it does to the symmetries of that layer.

    Args:
        name: Of the tensor.
        size: Of the tensor.
        modules: Of the model, by name.
        maps: The names of those that are linear maps.
        relaxed: The names of relaxed layers, by the beginning of the names of all that is in their paths.
    """
    owner, _, attribute = name.rpartition(".")
    kind: Kind = "bias" if attribute.endswith("bias") else "weight"
    if isinstance(modules[owner], RadialBasis):
        kind, owner = "shape", owner.rpartition(".")[0]  # the map that the basis belongs to
    # Where a map is made of others (FactoredPath, OrbitPath), tensors belong to the whole.
    layer = next((candidate for candidate in maps if f"{owner}.".startswith(f"{candidate}." if candidate else "")), owner)
    outermost = modules[layer]
    path, beside = type(outermost).__name__, list[nn.Module]()
    for prefix, candidate in relaxed.items():
        if name.startswith(prefix):
            paths = cast(RelaxedLayer, modules[candidate]).paths
            layer, path = candidate, name.removeprefix(prefix).split(".")[0]
            outermost, beside = paths[path], list(paths.children())
    relaxes = any(_extends(_group, other, outermost) or _extends(_inner_group, other, outermost) for other in beside)
    broken = (_symmetry(other) for other in beside if other is not outermost and _breaks(outermost, kind, other))
    breaks = tuple(dict.fromkeys(words for words in broken if words is not None))
    return WeightTensor(name, layer, path, _symmetry(outermost), size, kind, relaxes, breaks, _inner_group(outermost))


def _sites(modules: Mapping[str, nn.Module], parameters: Mapping[str, nn.Parameter], tensors: Set[str]) -> dict[str, Site]:
    """Every linear map of a model that has some of the tensors."""
    averaged = _inside({name: module for name, module in modules.items() if isinstance(module, Averaging)})
    never_called = {_join(name, child) for name, module in modules.items() for child in uncalled(module)}
    found: dict[str, Site] = {}
    for name, module in modules.items():
        around = [average for prefix, average in averaged.items() if f"{name}.".startswith(prefix)]
        copies, weigh = prod(count for _, count in around), _weighing(around)
        for inner in maps_inside(module) if name not in never_called else ():
            named = (_join(name, tensor) for tensor in (inner.weight, inner.bias))
            weight, bias = (tensor if tensor in tensors else None for tensor in named)
            if weight or bias:
                matrix = _matrix(inner.form, parameters[weight].shape) if weight else None
                once = not inner.part and _may_meet_once(module, inner.form)
                own = _join(name, inner.name)
                found[own] = Site(
                    own, inner.form, weight, bias, name, inner.part, copies, weigh, matrix=matrix, may_meet_once=once
                )
    return found


def _tied(tensor: str, sites: Mapping[str, Site], names: Sequence[str]) -> tuple[Site, ...]:
    """The maps whose weight is a tensor that has several names, called by these; none where it is anything else as well."""
    found = [site for site in sites.values() if site.bias is None and site.matrix is not None]
    if len(found) < len(sites) or sorted(str(site.weight) for site in found) != sorted(names):
        return ()
    return tuple(replace(site, name=str(site.weight), weight=tensor) for site in found)


def _inside(averages: Mapping[str, Averaging]) -> dict[str, tuple[Averaging, int]]:
    """Averages and how many copies they make, by the beginning of the names of all that sees these."""
    return {
        f"{_join(name, child)}.": (average, count)
        for name, average in averages.items()
        for child, count in average.copies_inside.items()
    }


def _weighing(around: Sequence[tuple[Averaging, int]]) -> Callable[[], Tensor] | None:
    """What copies count in averages inside each other, the outermost first; None where all count the same."""

    def weights() -> list[Tensor | None]:
        return [average.copy_weights() for average, _ in around]

    if all(own is None for own in weights()):
        return None

    def weigh() -> Tensor:
        found = weights()
        known = next(own for own in found if own is not None)
        whole = known.new_ones(1)
        for own, (_, count) in zip(found, around, strict=True):
            whole = torch.kron(whole, known.new_full((count,), 1 / count) if own is None else own.to(known))
        return whole

    return weigh


def _matrix(form: RowForm, shape: torch.Size) -> tuple[int, int, int] | None:
    return None if form.structure == "diagonal" or len(shape) < 2 else form.matrices(shape)


def _may_meet_once(module: nn.Module, form: RowForm) -> bool:
    """Whether `form.meets_once` was written for the forward pass that a module has: a subclass may have another."""
    if type(form).meets_once is RowForm.meets_once or "forward" in vars(module):
        return False
    known = next(kind for kind in type(form).__mro__ if "meets_once" in vars(kind) or "forward" in vars(kind))
    return "meets_once" in vars(known)


def _shared(model: nn.Module) -> dict[str, str]:
    first: dict[int, str] = {}
    trainable = {id(parameter) for parameter in weights(model).values()}
    every = model.named_parameters(remove_duplicate=False)
    return {n: first[id(p)] for n, p in every if id(p) in trainable and first.setdefault(id(p), n) != n}


def _group(module: nn.Module) -> Group | None:
    return module.group if isinstance(module, LinearMap) else None


def _extends(group_of: Callable[[nn.Module], Group | None], module: nn.Module, other: nn.Module) -> bool:
    """Whether a module has more symmetry than another."""
    group = group_of(module)
    return group is not None and group.extends(group_of(other))


def _inner_group(module: nn.Module) -> Group | None:
    return module.inner_group if isinstance(module, LinearMap) else None


def _symmetry(module: nn.Module) -> str | None:
    """In words."""
    group, inner = _group(module), _inner_group(module)
    return group.name if group else f"{inner.name}{UP_TO_THE_BORDER}" if inner else None


def _breaks(module: nn.Module, kind: str, other: nn.Module) -> bool:
    """Whether weights, biases or shapes of a map break the symmetry that another has, exactly or up to the border."""
    own, wanted = _group(module), _group(other)
    if wanted is None:
        own, wanted = _inner_group(module), _inner_group(other)
    if wanted is None:
        return False
    if own is not None and (own.extends(wanted) or (own.name == wanted.name and not wanted.extends(own))):
        return False
    # At a single position there is nothing for a bias to tell apart; but turns have channels of their own there.
    alone = kind == "bias" and isinstance(module, LinearMap) and module.positions == 1
    return not alone or isinstance(wanted, SpaceGroup)
