"""Forward passes equal to those of torch's modules that show their products: attention, and recurrence step by step."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

#: Called with the name of a part of a module, its input and its output; gives the output to go on with.
Show = Callable[[str, Tensor, Tensor], Tensor]


def attention_forward(module: nn.MultiheadAttention, show: Show, name: str) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """A forward pass for attention equal to the module's own that shows its projections."""

    def project(*given: Tensor) -> Sequence[Tensor]:
        """Queries, keys and values [n, length, width] by one matrix; by a third of it each where sequences differ.

        These stand side by side then, [n, longest, 3, width], with zeros behind the shorter ones, and end with a one.
        """
        W, bias = module.in_proj_weight, module.in_proj_bias
        if all(each is given[0] for each in given):
            return show("in_proj", given[0], functional.linear(given[0], W, bias)).chunk(3, -1)
        lengths, biases = [each.shape[1] for each in given], (None,) * 3 if bias is None else bias.chunk(3)
        found = (functional.linear(each, own, b) for each, own, b in zip(given, W.chunk(3), biases, strict=True))
        seen, packed = _side_by_side([functional.pad(each, (0, 1), value=1.0) for each in given]), _side_by_side(list(found))
        return [shown[:, :length] for shown, length in zip(show("in_proj", seen, packed).unbind(2), lengths, strict=True)]

    def project_apart(*given: Tensor) -> Sequence[Tensor]:
        """The same by a matrix for each; a bias of all is the same at all positions, which is one row."""
        found = [
            show(f"{part}_proj", each, functional.linear(each, getattr(module, f"{part}_proj_weight")))
            for part, each in zip("qkv", given, strict=True)
        ]
        if module.in_proj_bias is None:
            return found
        n = len(given[0])
        biases = show("in_proj", given[0].new_ones(n, 1, 1), module.in_proj_bias.repeat(n, 1, 1)).chunk(3, -1)
        return [each + bias for each, bias in zip(found, biases, strict=True)]

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
        if query.ndim != 3:
            raise RuntimeError(
                f"Attention {name!r} must see a batch of sequences, with three axes, so that its curvature can be captured; "
                f"got a query of shape {tuple(query.shape)}."
            )
        given = (query, key, value)
        if not module.batch_first:
            turned = {id(each): each.transpose(0, 1) for each in given}
            given = (turned[id(query)], turned[id(key)], turned[id(value)])
        queries, keys, values = (project if module._qkv_same_embed_dim else project_apart)(*given)
        n, length, width = queries.shape
        added = [(module.bias_k, module.bias_v)] if module.bias_k is not None and module.bias_v is not None else []
        if module.add_zero_attn:
            added.append((keys.new_zeros(1, 1, width),) * 2)
        for more_key, more_value in added:
            keys, values = (
                torch.cat([keys, more_key.expand(n, -1, -1)], 1),
                torch.cat([values, more_value.expand(n, -1, -1)], 1),
            )
        q, k, v = (each.unflatten(-1, (module.num_heads, -1)).transpose(1, 2) for each in (queries, keys, values))
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5  # [n, heads, length, keys]
        if attn_mask is not None:
            per_head = module.num_heads if attn_mask.ndim == 3 else 1
            mask = functional.pad(_additive(attn_mask, scores), (0, len(added)))
            scores = scores + mask.reshape(-1, per_head, length, keys.shape[1])
        if key_padding_mask is not None:
            scores = scores + functional.pad(_additive(key_padding_mask, scores), (0, len(added)))[:, None, None, :]
        weights = scores.softmax(-1) if need_weights else _safe_softmax(scores)  # as torch's own
        mixed = (weights @ v).transpose(1, 2).reshape(n, length, width)
        outputs = show("out_proj", mixed, functional.linear(mixed, module.out_proj.weight, module.out_proj.bias))
        shown = weights.mean(1) if average_attn_weights else weights
        outputs = outputs if module.batch_first else outputs.transpose(0, 1)
        return outputs, shown if need_weights else None

    return forward


def runs_of(module: nn.RNNBase) -> list[str]:
    """The runs of a recurrent module over a sequence, as its tensors name them: layer by layer, both ways."""
    ways = ("", "_reverse") if module.bidirectional else ("",)
    return [f"l{layer}{way}" for layer in range(module.num_layers) for way in ways]


#: From gates of the input and of the state, and the state: the next one, which begins with what is given out.
_Cell = Callable[[nn.RNNBase, Tensor, Tensor, tuple[Tensor, ...]], tuple[Tensor, ...]]


def _plain_cell(module: nn.RNNBase, seen: Tensor, kept: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return ((seen + kept).relu() if module.mode == "RNN_RELU" else (seen + kept).tanh(),)


def _gru_cell(module: nn.RNNBase, seen: Tensor, kept: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    (reset, update, new), (of_reset, of_update, of_new) = seen.chunk(3, -1), kept.chunk(3, -1)
    share = (update + of_update).sigmoid()
    return ((1 - share) * (new + (reset + of_reset).sigmoid() * of_new).tanh() + share * state[0],)


def _lstm_cell(module: nn.RNNBase, seen: Tensor, kept: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    add, forget, new, give = (seen + kept).chunk(4, -1)
    cell = forget.sigmoid() * state[1] + add.sigmoid() * new.tanh()
    return give.sigmoid() * cell.tanh(), cell


#: Recurrent modules, and what they do in a step.
CELLS: dict[type[nn.Module], _Cell] = {nn.RNN: _plain_cell, nn.GRU: _gru_cell, nn.LSTM: _lstm_cell}


def recurrent_forward(module: nn.RNNBase, show: Show, name: str) -> Callable[..., Any]:
    """A forward pass equal to a recurrent module's own, step by step, that shows its products: those of states at each step."""
    cell, is_lstm = next(cell for kind, cell in CELLS.items() if isinstance(module, kind)), isinstance(module, nn.LSTM)

    def product(part: str, inputs: Tensor) -> Tensor:
        bias = getattr(module, f"bias_{part}", None)
        return show(part, inputs, functional.linear(inputs, getattr(module, f"weight_{part}"), bias))

    def run(inputs: Tensor, name: str, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        order, steps = -1 if name.endswith("_reverse") else 1, []
        for gates in product(f"ih_{name}", inputs).unbind(1)[::order]:
            state = cell(module, gates, product(f"hh_{name}", state[0]), state)
            steps.append(state[0])
        return torch.stack(steps[::order], 1), state

    def forward(input: Tensor, hx: Any = None) -> tuple[Tensor, Any]:
        if not isinstance(input, Tensor) or input.ndim != 3:
            got = f"shape {tuple(input.shape)}" if isinstance(input, Tensor) else f"a {type(input).__name__}"
            raise RuntimeError(
                f"Recurrent module {name!r} must see a batch of sequences [n, steps, features] of one length, so that its "
                f"curvature can be captured; got {got}."
            )
        outputs = input if module.batch_first else input.transpose(0, 1)
        runs = runs_of(module)
        zeros = outputs.new_zeros(len(runs), len(outputs), module.hidden_size)
        first = (zeros, zeros) if hx is None else tuple(hx) if is_lstm else (hx,)
        ways, last = 2 if module.bidirectional else 1, []
        for layer in range(module.num_layers):
            found = [
                run(outputs, runs[index], tuple(each[index] for each in first))
                for index in range(layer * ways, (layer + 1) * ways)
            ]
            outputs = torch.cat([steps for steps, _ in found], -1)
            last += [state for _, state in found]
        ends = tuple(torch.stack(each) for each in zip(*last, strict=True))
        return outputs if module.batch_first else outputs.transpose(0, 1), ends if is_lstm else ends[0]

    return forward


def _side_by_side(sequences: Sequence[Tensor]) -> Float[Tensor, "n longest m d"]:
    """Sequences [n, length, d] with zeros behind the shorter ones."""
    longest = max(each.shape[1] for each in sequences)
    return torch.stack([functional.pad(each, (0, 0, 0, longest - each.shape[1])) for each in sequences], 2)


def _safe_softmax(scores: Tensor) -> Tensor:
    """Of the last axis; zeros where all scores are −∞, such as those of a padded token that sees only padded ones."""
    masked = (scores == float("-inf")).all(-1, keepdim=True)
    return scores.masked_fill(masked, 0.0).softmax(-1).masked_fill(masked, 0.0)


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    """A mask as numbers to add to scores: torch's boolean masks are true where attention is forbidden."""
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, float("-inf"))
