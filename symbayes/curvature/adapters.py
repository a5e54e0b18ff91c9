"""Plain torch modules as row forms: the one file that knows the layers of others.

`nn.Linear`, `nn.Conv1d/2d/3d` and `nn.Embedding` get Kronecker blocks, norm layers diagonal ones. `nn.MultiheadAttention`
computes its projections without calling a module, so while curvature is captured its forward pass is replaced by an
equal one that shows them. A subclass counts as its base only while it computes the same. Whatever is not listed here is a free
parameter (`free.py`).
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from math import prod
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from symbayes.curvature.evaluate import NormsByParts
from symbayes.layers.conv import CONVOLUTIONS, channel_rows, pad, patch_rows
from symbayes.layers.path import RowForm

#: Called with the name of a map inside a module, its input and its output; gives the output to go on with.
Show = Callable[[str, Tensor, Tensor], Tensor]


class LinearRows(RowForm):
    """nn.Linear on [n, *positions, d_in]: every position is a row."""

    def input_rows(self, inputs: Tensor) -> Float[Tensor, "n s 1 d_in"]:
        return _positions(inputs)[:, :, None]

    def output_rows(self, outputs: Tensor) -> Float[Tensor, "n s 1 d_out"]:
        return _positions(outputs)[:, :, None]


class ConvRows(RowForm):
    """nn.Conv1d/2d/3d with whatever padding, stride, dilation and groups it has."""

    def __init__(self, module: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> None:
        self.module = module

    def forward(self, inputs: Tensor) -> Tensor:
        """Equal to the module's own, with a padding that is cheaper to differentiate where it is circular."""
        conv = self.module
        return CONVOLUTIONS[len(conv.kernel_size)](
            self._padded(inputs), conv.weight, conv.bias, stride=conv.stride, dilation=conv.dilation, groups=conv.groups
        )

    def input_rows(self, inputs: Tensor) -> Float[Tensor, "n s block d_in"]:
        conv = self.module
        return patch_rows(self._padded(inputs), conv.kernel_size, conv.stride, conv.groups, conv.dilation)

    def output_rows(self, outputs: Tensor) -> Float[Tensor, "n s block d_out"]:
        return channel_rows(outputs, self.module.groups)

    def _padded(self, inputs: Tensor) -> Tensor:
        conv = self.module
        if not isinstance(conv.padding, str):
            return pad(inputs, conv.padding, conv.padding_mode)
        total = [d * (k - 1) if conv.padding == "same" else 0 for d, k in zip(conv.dilation, conv.kernel_size, strict=True)]
        sides = [side for t in reversed(total) for side in (t // 2, t - t // 2)]
        return functional.pad(inputs, sides, mode="constant" if conv.padding_mode == "zeros" else conv.padding_mode)


class EmbeddingRows(RowForm):
    """nn.Embedding: input rows are one-hot, so their second moment is diagonal; the weight is stored [d_in, d_out]."""

    one_hot_inputs = True

    def __init__(self, module: nn.Embedding) -> None:
        self.module = module

    def input_rows(self, inputs: Tensor) -> Float[Tensor, "n s 1 d_in"]:
        ids = inputs[:, None] if inputs.ndim == 1 else inputs.flatten(1)
        rows = functional.one_hot(ids, self.module.num_embeddings).to(self.module.weight.dtype)
        if self.module.padding_idx is not None:
            rows[..., self.module.padding_idx] = 0
        return rows[:, :, None]

    def output_rows(self, outputs: Tensor) -> Float[Tensor, "n s 1 d_out"]:
        return _positions(outputs)[:, :, None]

    def weight_from_rows(self, rows: Float[Tensor, "*batch 1 d_out d_in"]) -> Tensor:
        return rows.transpose(-1, -2).flatten(-3)


class NormRows(RowForm):
    """The affine part of a norm layer: every feature is a block that scales one number."""

    elementwise = True

    def __init__(self, normalise: Callable[[Tensor], Tensor], features: tuple[int, ...], channels_first: bool) -> None:
        self.normalise, self.features, self.channels_first = normalise, features, channels_first

    def input_rows(self, inputs: Tensor) -> Float[Tensor, "n s block 1"]:
        with NormsByParts() if len(inputs) == 1 else nullcontext():
            return self.output_rows(self.normalise(inputs))

    def output_rows(self, outputs: Tensor) -> Float[Tensor, "n s block 1"]:
        if self.channels_first:
            return outputs.flatten(2).transpose(1, 2)[..., None] if outputs.ndim > 2 else outputs[:, None, :, None]
        return outputs.reshape(len(outputs), -1, prod(self.features), 1)


class FoldedRows(RowForm):
    """A map inside an orbit average, which sees copies of every datum side by side: they become positions of that datum.

    Args:
        form: Of the map on its own.
        fold: Copies of each datum in a batch.
    """

    def __init__(self, form: RowForm, fold: int) -> None:
        self.form, self.fold, self.copies = form, fold, fold * form.copies
        self.one_hot_inputs, self.elementwise = form.one_hot_inputs, form.elementwise

    @property
    def arrangements(self) -> Int[Tensor, "g d_in"] | None:
        return self.form.arrangements

    def input_rows(self, inputs: Tensor) -> Float[Tensor, "n s block d_in"]:
        return self._folded(self.form.input_rows(inputs))

    def distinct_rows(self, inputs: Tensor) -> Float[Tensor, "n s block d"]:
        return self._folded(self.form.distinct_rows(inputs))

    def output_rows(self, outputs: Tensor) -> Float[Tensor, "n s block d_out"]:
        return self._folded(self.form.output_rows(outputs))

    def weight_from_rows(self, rows: Float[Tensor, "*batch block d_out d_in"]) -> Tensor:
        return self.form.weight_from_rows(rows)

    def bias_from_rows(self, rows: Float[Tensor, "*batch block d_out"]) -> Float[Tensor, "*batch p"]:
        return self.form.bias_from_rows(rows)

    def _folded(self, rows: Float[Tensor, "m s block d"]) -> Float[Tensor, "n s2 block d"]:
        return rows.unflatten(0, (-1, self.fold)).flatten(1, 2)


#: The layers that are known, and the methods by which a subclass may compute something else.
_KNOWN = (
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.InstanceNorm1d,
    nn.InstanceNorm2d, nn.InstanceNorm3d, nn.GroupNorm, nn.LayerNorm, nn.MultiheadAttention,
)  # fmt: skip
_METHODS = ("forward", "__call__", "_call_impl", "_conv_forward", "_apply_instance_norm", "_handle_no_batch_input")


def torch_layer(module: nn.Module) -> type[nn.Module] | None:
    """The layer of torch that a module computes the same as; None where it has a forward pass of its own."""
    kind = next((kind for kind in _KNOWN if isinstance(module, kind)), None)
    if kind is None or "forward" in vars(module):
        return None
    same = all(getattr(type(module), method, None) is getattr(kind, method, None) for method in _METHODS)
    return kind if same else None


def row_form(module: nn.Module) -> RowForm | None:
    """How a module shares its weights, or None if it is not one of those known."""
    if isinstance(module, RowForm):
        return module
    if torch_layer(module) is None:
        return None
    match module:
        case nn.Linear():
            return LinearRows()
        case nn.Conv1d() | nn.Conv2d() | nn.Conv3d():
            return ConvRows(module)
        case nn.Embedding(max_norm=None, scale_grad_by_freq=False):
            return EmbeddingRows(module)
        case nn.BatchNorm1d() | nn.BatchNorm2d() | nn.BatchNorm3d() if module.track_running_stats:
            normalise: Callable[[Tensor], Tensor] = lambda x: functional.batch_norm(  # noqa: E731
                x, module.running_mean, module.running_var, eps=module.eps
            )
            return NormRows(normalise, (module.num_features,), channels_first=True)
        case nn.InstanceNorm1d() | nn.InstanceNorm2d() | nn.InstanceNorm3d() if not module.track_running_stats:
            normalise = partial(functional.instance_norm, eps=module.eps)
            return NormRows(normalise, (module.num_features,), channels_first=True)
        case nn.GroupNorm():
            normalise = partial(functional.group_norm, num_groups=module.num_groups, eps=module.eps)
            return NormRows(normalise, (module.num_channels,), channels_first=True)
        case nn.LayerNorm():
            normalise = partial(functional.layer_norm, normalized_shape=module.normalized_shape, eps=module.eps)
            return NormRows(normalise, tuple(module.normalized_shape), channels_first=False)
        case _:
            return None


#: The maps inside attention that `attention_forward` shows: name, weight, bias.
ATTENTION_MAPS = (("in_proj", "in_proj_weight", "in_proj_bias"), ("out_proj", "out_proj.weight", "out_proj.bias"))


def shows_attention(module: nn.Module) -> bool:
    """Whether `attention_forward` does what a module does."""
    return torch_layer(module) is nn.MultiheadAttention and cast(nn.MultiheadAttention, module)._qkv_same_embed_dim


def attention_forward(module: nn.MultiheadAttention, show: Show, name: str) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """A forward pass for self-attention equal to the module's own that shows its two projections."""

    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,  # a hint; the mask itself is in attn_mask
    ) -> tuple[Tensor, Tensor | None]:
        if not (query is key and key is value) or module.bias_k is not None or module.add_zero_attn or query.ndim != 3:
            raise RuntimeError(
                f"Attention {name!r} must be self-attention on a batch, called with one tensor as query, key and value, and "
                "without bias_k or add_zero_attn, so that its curvature can be captured. Build others from nn.Linear layers."
            )
        inputs = query if module.batch_first else query.transpose(0, 1)
        n, length, width = inputs.shape
        packed = show("in_proj", inputs, functional.linear(inputs, module.in_proj_weight, module.in_proj_bias))
        heads = packed.view(n, length, 3, module.num_heads, -1).permute(2, 0, 3, 1, 4)  # [3, n, heads, length, d]
        scores = heads[0] @ heads[1].transpose(-1, -2) / heads.shape[-1] ** 0.5
        if attn_mask is not None:
            per_head = module.num_heads if attn_mask.ndim == 3 else 1
            scores = scores + _additive(attn_mask, scores).reshape(-1, per_head, length, length)
        if key_padding_mask is not None:
            scores = scores + _additive(key_padding_mask, scores)[:, None, None, :]
        weights = scores.softmax(-1)
        mixed = (weights @ heads[2]).transpose(1, 2).reshape(n, length, width)
        outputs = show("out_proj", mixed, functional.linear(mixed, module.out_proj.weight, module.out_proj.bias))
        shown = weights.mean(1) if average_attn_weights else weights
        outputs = outputs if module.batch_first else outputs.transpose(0, 1)
        return outputs, shown if need_weights else None

    return forward


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    """A mask as numbers to add to scores: torch's boolean masks are true where attention is forbidden."""
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, float("-inf"))


def _positions(features: Tensor) -> Float[Tensor, "n s d"]:
    """[n, *positions, d] with all positions in one axis."""
    return features[:, None] if features.ndim == 2 else features.flatten(1, -2)
