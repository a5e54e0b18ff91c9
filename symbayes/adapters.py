"""Torch's layers as rows: the one file that knows the layers of others.

`nn.Linear`, `nn.Conv1d/2d/3d`, `nn.ConvTranspose1d/2d/3d` and `nn.Embedding` have dense or one-hot rows, norm layers diagonal
ones. `nn.RNN`, `nn.GRU`, `nn.LSTM` and `nn.MultiheadAttention` compute their products without calling a module, so while
curvature is captured their forward pass is replaced by an equal one that shows them. A subclass counts as its base only while
it computes the same. Whatever is not listed here has no rows, and its tensors are free parameters (`Layout.free`). All of it is
compared with torch's own gradient before it is used (`curvature/check.py`).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from inspect import signature
from math import prod
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from symbayes.forwards import CELLS, Show, attention_forward, recurrent_forward, runs_of
from symbayes.layers.conv import CONVOLUTIONS, added_cells, channel_rows, moment_of_patches, pad, patch_rows
from symbayes.layers.path import RowForm, Shaped

#: Norms that are fused, and their arguments in order.
_LAYER = ("input", "normalized_shape", "weight", "bias", "eps")
_INSTANCE = ("input", "weight", "bias", "running_mean", "running_var", "use_input_stats", "momentum", "eps")
_NORMS: dict[Callable[..., Any], tuple[str, ...]] = {
    functional.layer_norm: _LAYER,
    torch.layer_norm: _LAYER,
    torch.native_layer_norm: _LAYER,
    functional.instance_norm: tuple(signature(functional.instance_norm).parameters),
    torch.instance_norm: _INSTANCE,
    functional.batch_norm: tuple(signature(functional.batch_norm).parameters),
}


class NormsByParts(TorchFunctionMode):
    """A context in which norms are computed from means and variances: torch differentiates the fused ones wrongly at times.

    With torch.func, layer norms and instance norms hold mean and std when what it gave is differentiated again: Jacobians
    and products are right, their own derivatives are not. In a batch of one datum, gradients through batch norms and instance
    norms are wrong where they come in another order of memory.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in _NORMS:
            return func(*args, **kwargs)
        given = {"weight": None, "bias": None, "eps": 1e-5, **dict(zip(_NORMS[func], args, strict=False)), **kwargs}
        inputs: Tensor = given["input"]
        channels = (-1, *(1,) * (inputs.ndim - 2))
        if "normalized_shape" in given:
            axes, shape = tuple(range(-len(given["normalized_shape"]), 0)), tuple(given["normalized_shape"])
            variance, mean = torch.var_mean(inputs, axes, correction=0, keepdim=True)
        elif given.get("training", False) or (func is functional.batch_norm and given["running_mean"] is None):
            return func(*args, **kwargs)
        elif given.get("use_input_stats", func is functional.instance_norm):
            shape = channels
            variance, mean = torch.var_mean(inputs, tuple(range(2, inputs.ndim)), correction=0, keepdim=True)
        else:
            shape = channels
            variance, mean = given["running_var"].view(shape), given["running_mean"].view(shape)
        root = (variance + given["eps"]).rsqrt()
        outputs = (inputs - mean) * root
        outputs = outputs if given["weight"] is None else outputs * given["weight"].view(shape)
        outputs = outputs if given["bias"] is None else outputs + given["bias"].view(shape)
        return (outputs, mean, root) if func is torch.native_layer_norm else outputs


class LinearRows(RowForm):
    """nn.Linear on [n, *positions, d_in]: every position is a row."""

    def input_rows(self, inputs: Tensor) -> Float[Tensor, "n s 1 d_in"]:
        return _positions(inputs)[:, :, None]

    def output_rows(self, outputs: Tensor) -> Float[Tensor, "n s 1 d_out"]:
        return _positions(outputs)[:, :, None]

    def meets_once(self, inputs: Tensor) -> bool:
        return inputs.ndim <= 2


class ProjectionRows(LinearRows):
    """The matrix of attention that makes queries, keys and values of one sequence; its thirds are blocks where of several.

    What is seen is [n, longest, 3, width + 1] then: zeros behind the shorter sequences, and else a one at the end.
    """

    def input_rows(self, inputs: Tensor) -> Float[Tensor, "n s block d_in"]:
        return super().input_rows(inputs) if inputs.ndim == 3 else inputs[..., :-1]

    def presence(self, inputs: Tensor) -> Float[Tensor, "n s block"] | None:
        return None if inputs.ndim == 3 else inputs[..., -1]

    def output_rows(self, outputs: Tensor) -> Float[Tensor, "n s block d_out"]:
        return super().output_rows(outputs) if outputs.ndim == 3 else outputs


class TransposedRows(LinearRows):
    """The same for a weight that is stored [d_in, d_out], as a Conv1D of transformers has it."""

    transposed = True

    def meets_once(self, inputs: Tensor) -> bool:
        return False  # noise behind a map is for weights stored the other way round


class ConvRows(RowForm):
    """nn.Conv1d/2d/3d with whatever padding, stride, dilation and groups it has."""

    def __init__(self, module: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> None:
        self.module = module

    def forward(self, input: Tensor) -> Tensor:
        """Equal to the module's own, with a padding that is cheaper to differentiate where it is circular."""
        conv = self.module
        return CONVOLUTIONS[len(conv.kernel_size)](
            self._pad(input), conv.weight, conv.bias, stride=conv.stride, dilation=conv.dilation, groups=conv.groups
        )

    def input_rows(self, inputs: Tensor) -> Float[Tensor, "n s block d_in"]:
        conv = self.module
        return patch_rows(self._pad(inputs), conv.kernel_size, conv.stride, conv.groups, conv.dilation)

    def row_moment(self, inputs: Tensor, budget: int) -> tuple[Float[Tensor, "1 d_in d_in"], int] | None:
        conv = self.module
        return moment_of_patches(
            inputs, conv.kernel_size, conv.stride, conv.padding, conv.dilation, conv.groups, conv.padding_mode, budget
        )

    def output_rows(self, outputs: Tensor) -> Float[Tensor, "n s block d_out"]:
        return channel_rows(outputs, self.module.groups)

    def matrices(self, shape: Sequence[int]) -> tuple[int, int, int]:
        blocks = self.module.groups
        return blocks, shape[0] // blocks, prod(shape[1:])

    def _pad(self, inputs: Tensor) -> Tensor:
        conv = self.module
        if not isinstance(conv.padding, str):
            return pad(inputs, conv.padding, conv.padding_mode)
        sides = [side for total in reversed(added_cells(conv)) for side in (total // 2, total - total // 2)]
        return functional.pad(inputs, sides, mode="constant" if conv.padding_mode == "zeros" else conv.padding_mode)


class TransposedConvRows(RowForm):
    """The weight of an nn.ConvTranspose1d/2d/3d: every cell of the input is a row, and gives a patch of the output.

    Patches overlap, so what its bias sees has another form, `ChannelRows`.
    """

    transposed = True

    def __init__(self, module: nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d) -> None:
        self.module = module

    def input_rows(self, inputs: Tensor) -> Float[Tensor, "n s block d_in"]:
        return channel_rows(inputs, self.module.groups)

    def output_rows(self, outputs: Tensor) -> Float[Tensor, "n s block d_out"]:
        conv = self.module
        padded = pad(outputs, cast(tuple[int, ...], conv.padding), "zeros")
        return patch_rows(padded, conv.kernel_size, conv.stride, conv.groups, conv.dilation)

    def matrices(self, shape: Sequence[int]) -> tuple[int, int, int]:
        blocks = self.module.groups
        return blocks, shape[0] // blocks, prod(shape[1:])


class ChannelRows(RowForm):
    """A bias for every channel of a map [n, c, *grid]: every cell of what it sees and gives is a row."""

    def input_rows(self, inputs: Tensor) -> Float[Tensor, "n s 1 d_in"]:
        return channel_rows(inputs, 1)

    def output_rows(self, outputs: Tensor) -> Float[Tensor, "n s 1 d_out"]:
        return channel_rows(outputs, 1)


class EmbeddingRows(RowForm):
    """nn.Embedding: input rows are one-hot, so their second moment is diagonal; the weight is stored [d_in, d_out]."""

    structure = "one-hot"
    transposed = True

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


class NormRows(RowForm):
    """The affine part of a norm layer: every feature is a block that scales one number."""

    structure = "diagonal"

    def __init__(self, normalise: Callable[[Tensor], Tensor], features: tuple[int, ...], channels_first: bool) -> None:
        self.normalise, self.features, self.channels_first = normalise, features, channels_first

    def input_rows(self, inputs: Tensor) -> Float[Tensor, "n s block 1"]:
        with NormsByParts() if len(inputs) == 1 else nullcontext():
            return self.output_rows(self.normalise(inputs))

    def output_rows(self, outputs: Tensor) -> Float[Tensor, "n s block 1"]:
        if self.channels_first:
            return outputs.flatten(2).transpose(1, 2)[..., None] if outputs.ndim > 2 else outputs[:, None, :, None]
        return outputs.reshape(len(outputs), -1, prod(self.features), 1)


#: The layers that are known, and the methods by which a subclass may compute something else.
_KNOWN = (
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.InstanceNorm1d,
    nn.InstanceNorm2d, nn.InstanceNorm3d, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.MultiheadAttention, nn.RNN, nn.GRU,
    nn.LSTM, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d,
)  # fmt: skip
_METHODS = ("forward", "__call__", "_call_impl", "_conv_forward", "_apply_instance_norm", "_handle_no_batch_input")


def torch_layer(module: nn.Module) -> type[nn.Module] | None:
    """The layer of torch that a module computes the same as; None where it has a forward pass of its own."""
    kind = next((kind for kind in _KNOWN if isinstance(module, kind)), None)
    if kind is None or not isinstance(vars(module).get("forward"), Replaced | None):
        return None
    same = all(getattr(type(module), method, None) is getattr(kind, method, None) for method in _METHODS)
    return kind if same else None


def row_form(module: nn.Module) -> RowForm | None:
    """How a module shares its weights, or None if it is not one of those known."""
    if isinstance(module, RowForm):
        return module
    if (type(module).__module__, type(module).__name__) == ("transformers.pytorch_utils", "Conv1D"):
        return TransposedRows()
    if torch_layer(module) is None:
        return None
    match module:
        case nn.Linear():
            return LinearRows()
        case nn.Conv1d() | nn.Conv2d() | nn.Conv3d():
            return ConvRows(module)
        # Cells that are added behind the last patch would be taken for one more where they are as many as a stride.
        case nn.ConvTranspose1d() | nn.ConvTranspose2d() | nn.ConvTranspose3d() if all(
            added < step for added, step in zip(module.output_padding, module.stride, strict=True)
        ):
            return TransposedConvRows(module)
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
        case nn.RMSNorm():
            normalise = partial(functional.rms_norm, normalized_shape=list(module.normalized_shape), eps=module.eps)
            return NormRows(normalise, tuple(module.normalized_shape), channels_first=False)
        case _:
            return None


@dataclass(frozen=True)
class InnerMap:
    """A linear map as a module has it: the names of its tensors, and of the part that it is about."""

    #: Inside the module; empty where the map is the module.
    name: str
    form: RowForm
    weight: str
    #: Empty where there is none.
    bias: str
    #: The part of the module whose inputs and outputs these are; empty for the module itself.
    part: str = ""


def maps_inside(module: nn.Module) -> Iterator[InnerMap]:
    """The linear maps of a module that are its own, and not those of its children."""
    if _shows_attention(module):
        yield from _attention_maps(cast(nn.MultiheadAttention, module))
    elif _shows_recurrence(module):
        for part in (f"{kind}_{run}" for run in runs_of(cast(nn.RNNBase, module)) for kind in ("ih", "hh")):
            yield InnerMap(part, LinearRows(), f"weight_{part}", f"bias_{part}", part)
    elif isinstance(form := row_form(module), TransposedConvRows):
        yield InnerMap("", form, "weight", "")
        yield InnerMap("bias", ChannelRows(), "", "bias")
    elif form is not None:
        yield InnerMap("", form, "weight", "bias")
    if isinstance(module, Shaped):
        yield from (InnerMap(tensor, form, tensor, "") for tensor, form in module.shape_rows().items())


def uncalled(module: nn.Module) -> tuple[str, ...]:
    """The children whose weights a module uses without calling them."""
    return ("out_proj",) if isinstance(module, nn.MultiheadAttention) else ()


#: From a module to a forward pass that gives the same as its own.
Build = Callable[[Any], Callable[..., Any]]


def captured_forward(module: nn.Module, show: Show, name: str) -> Build | None:
    """A forward pass to replace a module's own while it is captured; None where its own will do.

    It gives the same, and shows maps that are no modules, or is cheaper to differentiate.
    """
    if _shows_attention(module):
        return partial(attention_forward, show=show, name=name)
    if _shows_recurrence(module):
        return partial(recurrent_forward, show=show, name=name)
    form = row_form(module)
    circular = isinstance(form, ConvRows) and form.module.padding_mode == "circular"
    return (lambda conv: ConvRows(conv).forward) if circular else None


@dataclass(frozen=True)
class Replaced:
    """A forward pass in place of a module's own, which gives the same; that of a copy of the module belongs to the copy."""

    build: Build
    module: nn.Module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.build(self.module)(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Replaced":
        return Replaced(self.build, deepcopy(self.module, memo))


@contextmanager
def replaced(module: nn.Module, build: Build) -> Iterator[None]:
    """A context in which a module has a forward pass that gives the same as its own."""
    before = vars(module).get("forward")
    vars(module)["forward"] = Replaced(build, module)
    try:
        yield
    finally:
        vars(module).pop("forward")
        if before is not None:
            vars(module)["forward"] = before


def stepwise_forwards(model: nn.Module) -> Iterator[tuple[nn.Module, Build]]:
    """Modules whose own forward pass torch cannot differentiate twice, or not while they evaluate, and one that it can."""
    return ((module, _stepwise_forward) for module in model.modules() if _shows_recurrence(module))


def _stepwise_forward(module: nn.RNNBase) -> Callable[..., Any]:
    """The forward pass of a recurrent module step by step, on a batch of sequences of one length; on others its own."""
    by_steps = recurrent_forward(module, lambda part, inputs, outputs: outputs, "")

    def forward(input: Any, hx: Any = None) -> Any:
        suited = isinstance(input, Tensor) and input.ndim == 3
        return by_steps(input, hx) if suited else type(module).forward(cast(Any, module), input, hx)

    return forward


def padding_row(module: nn.Module) -> int | None:
    """The row of an embedding's trainable weight that torch never gives a gradient; None where all have one."""
    return module.padding_idx if isinstance(module, nn.Embedding) and module.weight.requires_grad else None


def has_convolution(model: nn.Module) -> bool:
    """Whether a model has a convolution anywhere, of torch or as a path."""
    return any(
        isinstance(module, nn.modules.conv._ConvNd) or (isinstance(module, RowForm) and module.convolves)
        for module in model.modules()
    )


def mixes_data(model: nn.Module) -> bool:
    """Whether data of a batch see each other as a model is now: in a batch norm that trains."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training for module in model.modules())


def _shows_attention(module: nn.Module) -> bool:
    """Whether `attention_forward` does what a module does."""
    return torch_layer(module) is nn.MultiheadAttention


def _attention_maps(module: nn.MultiheadAttention) -> Iterator[InnerMap]:
    """Its projections; where queries, keys and values have weights of their own, their common bias is a map for itself."""
    if module._qkv_same_embed_dim:
        yield InnerMap("in_proj", ProjectionRows(), "in_proj_weight", "in_proj_bias", "in_proj")
    else:
        yield from (InnerMap(f"{part}_proj", LinearRows(), f"{part}_proj_weight", "", f"{part}_proj") for part in "qkv")
        yield InnerMap("in_proj", LinearRows(), "", "in_proj_bias", "in_proj")
    yield InnerMap("out_proj", LinearRows(), "out_proj.weight", "out_proj.bias", "out_proj")


def _shows_recurrence(module: nn.Module) -> bool:
    """Whether `recurrent_forward` does what a module does."""
    return torch_layer(module) in CELLS and not cast(nn.RNNBase, module).proj_size


def _positions(features: Tensor) -> Float[Tensor, "n s d"]:
    """[n, *positions, d] with all positions in one axis."""
    return features[:, None] if features.ndim == 2 else features.flatten(1, -2)
