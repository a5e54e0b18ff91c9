"""Where the weights of a model are: its maps, the tensors that belong to none, and gradients of weights from rows."""

from dataclasses import dataclass, replace
from functools import partial
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from symbayes.curvature.adapters import ATTENTION_MAPS, FoldedRows, LinearRows, row_form, shows_attention
from symbayes.invariance.orbit_average import OrbitAverage
from symbayes.layers.path import RowForm, Shaped
from symbayes.layers.structure import weight_tensors, weights

Rows = Float[Tensor, "n s block d"]
#: Rows of the gradients of v columns.
GradientRows = Float[Tensor, "v n s block d_out"]


@dataclass(frozen=True)
class Site:
    """One map of the model: its row form, and the trainable tensors that are its weight and bias."""

    name: str
    form: RowForm
    weight: str | None
    bias: str | None
    #: The module whose inputs and outputs it is about, and which the row forms of its shape parameters share.
    module: str
    #: Copies of each datum that the module sees in a batch, inside an orbit average.
    fold: int = 1


@dataclass(frozen=True)
class Sites:
    """All maps of a model, and the trainable tensors that belong to none of them."""

    maps: dict[str, Site]
    free: tuple[str, ...]


def find_sites(model: nn.Module) -> Sites:
    """Every map of a model that has trainable weights; a tensor that modules share belongs to the first of them."""
    trainable = set(weight_tensors(model))
    maps: dict[str, Site] = {}
    modules = dict(model.named_modules())
    averages = {f"{name}.net." if name else "net.": m for name, m in modules.items() if isinstance(m, OrbitAverage)}
    # Attention uses the weights of its last projection without calling it.
    attentions = (name for name, module in modules.items() if isinstance(module, nn.MultiheadAttention))
    uncalled = {f"{name}.out_proj" if name else "out_proj" for name in attentions}
    for name, module in modules.items():
        prefix = f"{name}." if name else ""
        fold = prod(average.samples for inside, average in averages.items() if prefix.startswith(inside))
        add = partial(_add, maps, trainable, fold)
        if shows_attention(module):
            for map_name, weight, bias in ATTENTION_MAPS:
                shown = f"{prefix}{map_name}"
                add(Site(shown, LinearRows(), f"{prefix}{weight}", f"{prefix}{bias}", shown))
        elif name not in uncalled and (form := row_form(module)) is not None:
            add(Site(name, form, f"{prefix}weight", f"{prefix}bias", name))
        if isinstance(module, Shaped):
            for tensor, form in module.shape_rows().items():
                add(Site(f"{prefix}{tensor}", form, f"{prefix}{tensor}", None, name))
    covered = {tensor for site in maps.values() for tensor in (site.weight, site.bias)}
    return Sites(maps, tuple(name for name in weight_tensors(model) if name not in covered))


def _add(maps: dict[str, Site], trainable: set[str], fold: int, site: Site) -> None:
    weight, bias = (name if name in trainable else None for name in (site.weight, site.bias))
    if weight or bias:
        form = FoldedRows(site.form, fold) if fold > 1 else site.form
        maps[site.name] = replace(site, form=form, weight=weight, bias=bias, fold=fold)


def refuse_shared(model: nn.Module) -> None:
    """Refuse trainable tensors that modules share.

    Raises:
        RuntimeError: Naming the first.
    """
    first: dict[int, str] = {}
    trainable = {id(parameter) for parameter in weights(model).values()}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in trainable and first.setdefault(id(parameter), name) != name:
            raise RuntimeError(
                f"Parameter {name!r} is the same tensor as {first[id(parameter)]!r}. The curvature of weights that are shared "
                "between modules is not known to the row form; give each module its own, or freeze it (requires_grad=False)."
            )


def gradient_rows(site: Site, gradients: Float[Tensor, "v m *rest"]) -> GradientRows:
    """The rows of gradients for several columns."""
    rows = site.form.output_rows(gradients.flatten(0, 1))
    return rows.unflatten(0, (len(gradients), -1))


def weight_gradients(inputs: Rows, gradients: GradientRows) -> Float[Tensor, "v n block d_out d_in"]:
    """The gradient of the weight for every column and datum on its own."""
    return torch.einsum("vnsbo,nsbi->vnboi", gradients, inputs)


def bias_gradients(site: Site, gradients: GradientRows) -> Float[Tensor, "v n p"]:
    """The gradient of the bias for every column and datum on its own."""
    return site.form.bias_from_rows(gradients.sum(2))
