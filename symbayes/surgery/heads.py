"""Heads of attention: those go whose output costs least to lose, by the columns of the projection that reads it.

`nn.MultiheadAttention` has as many heads as its width holds, and none can be cut out of it. So heads that go are zero: the
columns that read them, while others make up for it (`surgeon.py`), and the queries, keys and values that nothing reads then.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from symbayes.adapters import torch_layer
from symbayes.surgery.surgeon import Quadratic


def attentions(model: nn.Module) -> dict[str, nn.MultiheadAttention]:
    """The modules of a model that have heads.

    Raises:
        ValueError: If there is none.
    """
    found = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.MultiheadAttention) and _why_left(module) is None
    }
    if not found:
        raise ValueError(
            "A model needs heads that can be removed: an nn.MultiheadAttention whose queries, keys and values have one width; "
            "this one has none. units='branches' drops attention of any kind, where data flow around it."
        )
    return found


def without_heads(model: nn.Module) -> dict[str, str]:
    """By attention whose heads cannot be removed: why."""
    every = {name: module for name, module in model.named_modules() if isinstance(module, nn.MultiheadAttention)}
    reasons = {name: _why_left(module) for name, module in every.items()}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def _why_left(module: nn.MultiheadAttention) -> str | None:
    if torch_layer(module) is not nn.MultiheadAttention:
        return "it has a forward pass of its own"
    return None if module._qkv_same_embed_dim else "its queries, keys and values are of several widths"


def heads(model: nn.Module) -> dict[str, Bool[Tensor, " heads"]]:
    """By attention: which heads are read."""
    return {name: module.out_proj.weight[:, _columns(module)].any(2).any(0) for name, module in attentions(model).items()}


def _columns(module: nn.MultiheadAttention) -> Int[Tensor, "heads d"]:
    """Of the projection of outputs, by head; and rows of those of queries, keys and values."""
    return torch.arange(module.embed_dim, device=module.out_proj.weight.device).view(module.num_heads, -1)


@torch.no_grad()
def drop_heads(
    model: nn.Module, target: int, quadratics: Callable[[nn.Module, Sequence[str]], Mapping[str, list[Quadratic]]] | None
) -> None:
    """Set heads of a model to zero, in place, until so many are left.

    Args:
        model: With attention.
        target: Heads, of all attention together.
        quadratics: What changes of weights cost, with a bias that is trained as last column. When None, squares of columns
            count, relative to their mean, and no others make up for them.
    """
    modules, before, left = attentions(model), heads(model), heads(model)
    names = {name: f"{name}.out_proj.weight".removeprefix(".") for name in modules}
    found = None if quadratics is None else quadratics(model, list(names.values()))
    every: list[tuple[float, str, int]] = []
    for name, module in modules.items():
        quadratic = None if found is None else found[names[name]][0]
        costs = _squares(module) if quadratic is None else quadratic.column_costs(_columns(module))
        of_each = costs / (4 * module.embed_dim * module.head_dim)  # its parameters: attention may be of several sizes
        every += [(cost, name, head) for head, cost in enumerate(of_each.tolist()) if left[name][head]]
    for _, name, head in sorted(every)[: max(0, len(every) - target)]:
        left[name][head] = False
    for name, module in modules.items():
        gone = before[name] & ~left[name]
        if not gone.any():
            continue
        columns, out = _columns(module)[~left[name]].flatten(), module.out_proj  # those that were zero stay so
        if found is not None and out.weight.requires_grad:  # what is frozen loses columns, and nothing else
            W = found[names[name]][0].without_columns(columns)
            out.weight.copy_(W[:, : module.embed_dim])
            if out.bias is not None and out.bias.requires_grad:
                out.bias.copy_(W[:, -1])
        out.weight[:, columns] = 0.0
        rows = _columns(module)[gone].flatten()
        for part in range(3):
            module.in_proj_weight[part * module.embed_dim + rows] = 0.0
            if module.in_proj_bias is not None:
                module.in_proj_bias[part * module.embed_dim + rows] = 0.0


def _squares(module: nn.MultiheadAttention) -> Float[Tensor, " heads"]:
    """Of the columns that read a head, relative to their mean over heads that are read."""
    squares = module.out_proj.weight.double().square().sum(0)[_columns(module)].sum(1)
    return squares / squares[squares > 0].mean() if squares.any() else squares
