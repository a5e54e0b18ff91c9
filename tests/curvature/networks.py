"""Random networks of torch's layers, of subclasses with a forward pass of their own, and with everything users do to modules.

A network is a chain of pieces, drawn by number. Each piece says whether it may be refused: one that couples data, draws random
numbers in evaluation, or writes to its inputs must be.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

#: Data, features, channels, sides of images, length of sequences, symbols, outputs.
N, D, C, S, L, V, OUT = 5, 4, 2, 4, 5, 6, 3


@dataclass(frozen=True)
class Network:
    """One of them, with data; `sound` says whether it has a likelihood that is a product over data."""

    model: nn.Module
    inputs: Tensor
    sound: bool
    pieces: tuple[str, ...]

    @property
    def words(self) -> str:
        return ", ".join(self.pieces)


class Standardised(nn.Conv2d):
    """Weight standardisation."""

    def forward(self, x):
        w = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return functional.conv2d(x, w / (w.square().mean((1, 2, 3), keepdim=True) + 0.1).sqrt(), self.bias, padding=1)


class Gained(nn.Conv2d):
    """By the method that torch's own forward pass calls."""

    def _conv_forward(self, x, weight, bias):
        return super()._conv_forward(x, 2 * weight, bias)


class Rolled(nn.Conv2d):
    """Circular, and moved by a cell afterwards."""

    def __init__(self):
        super().__init__(C, C, 3, padding=1, padding_mode="circular")

    def forward(self, x):
        return super().forward(x).roll(1, -1) + x


class Masked(nn.Linear):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.register_buffer("mask", (torch.arange(self.weight.numel()) % 3 > 0).view_as(self.weight))

    def forward(self, x):
        return functional.linear(x, self.weight * self.mask, self.bias)


class Cosine(nn.Linear):
    def forward(self, x):
        return functional.linear(functional.normalize(x, dim=-1), functional.normalize(self.weight, dim=-1), self.bias)


class Doubling(nn.Linear):
    def __call__(self, x):
        return 2 * super().__call__(x)


class Property(nn.Linear):
    """A weight that is computed when it is asked for."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.raw = nn.Parameter(self.weight.detach().clone())
        del self.weight

    @property
    def weight(self):
        return self.raw.tanh()


class ChannelNorm(nn.LayerNorm):
    """As in ConvNeXt: over channels of maps."""

    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ShiftedNorm(nn.LayerNorm):
    def forward(self, x):
        return functional.layer_norm(x, self.normalized_shape, 1 + self.weight, self.bias, self.eps)


class ScaledEmbedding(nn.Embedding):
    def forward(self, ids):
        return 3 * super().forward(ids)


class SquaredBatchNorm(nn.BatchNorm2d):
    def forward(self, x):
        return super().forward(x).square()


class HalvedInstanceNorm(nn.InstanceNorm2d):
    def forward(self, x):
        return super().forward(x) / 2


class ScaledAttention(nn.MultiheadAttention):
    def forward(self, *args, **kwargs):
        outputs, weights = super().forward(*args, **kwargs)
        return outputs / 2, weights


class Attend(nn.Module):
    """Self-attention over positions, beside what it sees."""

    def __init__(self, attention):
        super().__init__()
        self.inner = attention

    def forward(self, x):
        return x + self.inner(x, x, x, need_weights=False)[0]


class Swapped(nn.Module):
    """A layer that takes positions first."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x.transpose(0, 1)).transpose(0, 1)


class Do(nn.Module):
    """Any function of what it sees, and of parameters and modules that it is given."""

    def __init__(self, function, modules=(), **parameters):
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(modules)
        for name, value in parameters.items():
            self.register_parameter(name, nn.Parameter(value))

    def forward(self, x):
        return self.function(self, x)


class Kept(nn.Module):
    """Keeps its weight in a list, too."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(D, D)
        self.kept = [self.inner.weight]

    def forward(self, x):
        return self.inner(x) + functional.linear(x.tanh(), self.kept[0])


class Patched(nn.Module):
    """A layer whose forward pass was replaced."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(D, D)
        usual = self.inner.forward
        self.inner.forward = lambda x: usual(x) * 2

    def forward(self, x):
        return self.inner(x)


def hooked(module, **hooks):
    """A module with hooks of a user."""
    for kind, hook in hooks.items():
        getattr(module, f"register_{kind}")(hook)
    return module


def _write_after(self, x):
    h = x * 1.0
    y = self.parts[0](h)
    h.mul_(2)
    return y + h


def _write_between(self, x):
    h = self.parts[0](x)
    h += 1
    return self.parts[1](h.tanh())


def _write_inputs(self, x):
    x += 1
    return self.parts[0](x)


def linear(*sizes):
    return nn.Linear(*sizes) if sizes else nn.Linear(D, D)


def conv(**options):
    return nn.Conv2d(C, C, 3, padding=1, **options)


#: For features [n, D]: the piece, and whether data keep their independence.
VECTORS = {
    "linear": (linear, True),
    "no bias": (lambda: nn.Linear(D, D, bias=False), True),
    "masked": (lambda: Masked(D, D), True),
    "cosine": (lambda: Cosine(D, D), True),
    "doubling": (lambda: Doubling(D, D), True),
    "property": (lambda: Property(D, D), True),
    "patched": (Patched, True),
    "weight norm": (lambda: parametrizations.weight_norm(nn.Linear(D, D)), True),
    "spectral norm": (lambda: parametrizations.spectral_norm(nn.Linear(D, D)), True),
    "orthogonal": (lambda: parametrizations.orthogonal(nn.Linear(D, D)), True),
    "layer norm": (lambda: nn.LayerNorm(D), True),
    "shifted norm": (lambda: ShiftedNorm(D), True),
    "rms norm": (lambda: nn.RMSNorm(D), True),
    "batch norm": (lambda: nn.BatchNorm1d(D), True),
    "prelu": (lambda: nn.PReLU(), True),
    "prelu, by channel": (lambda: nn.PReLU(D), True),
    "bilinear": (lambda: Do(lambda s, x: s.parts[0](x, x), [nn.Bilinear(D, D, D)]), True),
    "distances": (lambda: Do(lambda s, x: torch.cdist(x[:, None], s.centres[None])[:, 0], centres=torch.randn(D, D)), True),
    "temperature": (lambda: Do(lambda s, x: x * s.t.exp(), t=torch.tensor(0.3)), True),
    "free matrix": (lambda: Do(lambda s, x: x @ s.w, w=torch.randn(D, D) / 2), True),
    "hook on what it gives": (lambda: hooked(linear(), forward_hook=lambda m, x, y: 3 * y), True),
    "hook on what it sees": (lambda: hooked(linear(), forward_pre_hook=lambda m, x: (x[0] + 1,)), True),
    "two hooks": (
        lambda: hooked(linear(), forward_pre_hook=lambda m, x: (x[0] ** 2,), forward_hook=lambda m, x, y: y.sin()),
        True,
    ),
    "by name": (lambda: Do(lambda s, x: s.parts[0](input=x), [linear()]), True),
    "twice": (lambda: Do(lambda s, x: s.parts[0](s.parts[0](x).tanh()), [linear()]), True),
    "used outside": (lambda: Do(lambda s, x: functional.linear(s.parts[0](x).tanh(), s.parts[0].weight), [linear()]), True),
    "uncalled": (lambda: Do(lambda s, x: functional.linear(x, s.parts[0].weight, s.parts[0].bias), [linear()]), True),
    "kept in a list": (Kept, True),
    "tied": (lambda: tied(), True),
    "write after": (lambda: Do(_write_after, [linear()]), True),
    "write between": (lambda: Do(_write_between, [linear(), linear()]), True),
    "frozen bias": (lambda: frozen_bias(), True),
    "residual": (lambda: Do(lambda s, x: x + s.parts[0](x), [linear()]), True),
    "branch over data": (lambda: Do(lambda s, x: torch.where(x > 0, s.parts[0](x), s.parts[1](x)), [linear(), linear()]), True),
    "table of as many rows as data": (
        lambda: Do(lambda s, x: x + s.parts[0](torch.arange(N)).mean(0), [nn.Embedding(N, D)]),
        True,
    ),
    "free table": (lambda: Do(lambda s, x: x + s.table.mean(0), table=torch.randn(N, D)), True),
    "centred": (lambda: Do(lambda s, x: s.parts[0](x) - s.parts[0](x).mean(0), [linear()]), False),
    "relative to the first": (lambda: Do(lambda s, x: s.parts[0](x) - x[:1], [linear()]), False),
    "relative to the last": (lambda: Do(lambda s, x: s.parts[0](x) - x[-1:], [linear()]), False),
    "batch norm without statistics": (lambda: nn.BatchNorm1d(D, track_running_stats=False), False),
    "dropout that never ends": (lambda: Do(lambda s, x: functional.dropout(s.parts[0](x), 0.5, True), [linear()]), False),
    "noise": (lambda: Do(lambda s, x: s.parts[0](x) + torch.randn_like(x), [linear()]), False),
    "write to inputs": (lambda: Do(_write_inputs, [linear()]), None),
}

#: For maps [n, C, S, S].
IMAGES = {
    "conv": (conv, True),
    "circular": (lambda: conv(padding_mode="circular"), True),
    "groups": (lambda: conv(groups=2), True),
    "standardised": (lambda: Standardised(C, C, 3), True),
    "gained": (lambda: Gained(C, C, 3, padding=1), True),
    "rolled": (Rolled, True),
    "transposed": (lambda: nn.ConvTranspose2d(C, C, 3, padding=1), True),
    "batch norm": (lambda: nn.BatchNorm2d(C), True),
    "squared batch norm": (lambda: SquaredBatchNorm(C), True),
    "instance norm": (lambda: nn.InstanceNorm2d(C, affine=True), True),
    "halved instance norm": (lambda: HalvedInstanceNorm(C, affine=True), True),
    "group norm": (lambda: nn.GroupNorm(1, C), True),
    "channel norm": (lambda: ChannelNorm(C), True),
    "prelu": (lambda: nn.PReLU(C), True),
    "in place": (lambda: nn.Sequential(conv(), nn.ReLU(inplace=True)), True),
    "hook": (lambda: hooked(conv(), forward_hook=lambda m, x, y: y * y), True),
    "weight norm": (lambda: parametrizations.weight_norm(conv()), True),
    "pooled": (lambda: nn.Sequential(conv(), nn.MaxPool2d(3, 1, 1)), True),
    "over positions": (lambda: Do(lambda s, x: s.parts[0](x.transpose(1, 3)).transpose(1, 3), [nn.Linear(C, C)]), True),
    "batch norm without statistics": (lambda: nn.BatchNorm2d(C, track_running_stats=False), False),
    "rolled over data": (lambda: Do(lambda s, x: s.parts[0](x) + x.roll(1, 0), [conv()]), False),
}

#: For tokens [n, L] of symbols, embedded as [n, L, D].
EMBEDDINGS = {
    "embedding": (lambda: nn.Embedding(V, D), True),
    "padding": (lambda: nn.Embedding(V, D, padding_idx=0), True),
    "scaled": (lambda: ScaledEmbedding(V, D), True),
    "with positions": (
        lambda: Do(lambda s, t: s.parts[0](t) + s.parts[1](torch.arange(L)), [nn.Embedding(V, D), nn.Embedding(L, D)]),
        True,
    ),
    "one-hot": (lambda: Do(lambda s, t: s.parts[0](functional.one_hot(t, V).to(s.parts[0].weight)), [nn.Linear(V, D)]), True),
}
SEQUENCES = {
    "linear": (linear, True),
    "attention": (lambda: Attend(nn.MultiheadAttention(D, 2, batch_first=True)), True),
    "attention without bias": (lambda: Attend(nn.MultiheadAttention(D, 2, batch_first=True, bias=False)), True),
    "scaled attention": (lambda: Attend(ScaledAttention(D, 2, batch_first=True)), True),
    "attention of other widths": (
        lambda: Do(
            lambda s, x: x + s.parts[0](x, x[:, 1:, :3], x[:, 1:, :2])[0],
            [nn.MultiheadAttention(D, 2, kdim=3, vdim=2, batch_first=True)],
        ),
        True,
    ),
    "attention to the first": (
        lambda: Do(lambda s, x: x + s.parts[0](x, x[:, :2], x[:, :2])[0], [nn.MultiheadAttention(D, 2, batch_first=True)]),
        True,
    ),
    "decoder": (
        lambda: Do(lambda s, x: s.parts[0](x, x[:, :2]), [nn.TransformerDecoderLayer(D, 2, 6, batch_first=True)]),
        True,
    ),
    "attention, positions first": (lambda: Swapped(Attend(nn.MultiheadAttention(D, 2))), True),
    "transformer": (lambda: nn.TransformerEncoderLayer(D, 2, 6, dropout=0.3, batch_first=True), True),
    "positions first": (lambda: Swapped(linear()), True),
    "layer norm": (lambda: nn.LayerNorm(D), True),
    "norm of all": (lambda: nn.LayerNorm((L, D)), True),
    "position table": (lambda: Do(lambda s, x: x + s.table, table=torch.randn(L, D)), True),
    "recurrent": (lambda: Do(lambda s, x: s.parts[0](x)[0], [nn.GRU(D, D, batch_first=True)]), True),
    "attention over data": (lambda: Attend(nn.MultiheadAttention(D, 2)), False),
}


def frozen_bias():
    layer = linear()
    layer.bias.requires_grad_(False)
    return layer


def tied():
    first, second = nn.Linear(D, D), nn.Linear(D, D)
    second.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), second)


def network(number: int) -> Network:
    """The network of a number, the same every time; in double precision, its running statistics not those of the start."""
    generator = torch.Generator().manual_seed(number)

    def draw(pieces):
        words = list(pieces)[int(torch.randint(len(pieces), (), generator=generator))]
        make, kept = pieces[words]
        return make(), kept, words

    def several(pieces, count):
        return [draw(pieces) for _ in range(count)]

    count = 1 + number % 3
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(number)
        if number % 2:
            drawn = several(VECTORS, count)
            inputs = torch.randn(N, D, dtype=torch.float64)
            ends = [nn.Linear(D, OUT)]
            if drawn[0][2] != "write to inputs":  # the data themselves
                ends = [nn.Identity(), *ends]
        elif number % 4:
            drawn = several(IMAGES, count)
            inputs = torch.randn(N, C, S, S, dtype=torch.float64)
            ends = [nn.Flatten(), nn.Linear(C * S * S, OUT)]
        else:
            drawn = [draw(EMBEDDINGS), *several(SEQUENCES, count)]
            inputs = torch.randint(0, V, (N, L))
            ends = [Do(lambda s, x: x.mean(1)), nn.Linear(D, OUT)]
        layers = [layer for piece, _, _ in drawn for layer in (piece, nn.Tanh())]
        model = nn.Sequential(*layers, *ends).double()
        model.train()
        model(inputs.clone())
        for parameter in model.parameters():
            if parameter.ndim < 2 and parameter.requires_grad:
                parameter.data += torch.randn_like(parameter) / 4
    # Written to, a result of another layer is no harm; the data are.
    sound = all(kept or (kept is None and place > 0) for place, (_, kept, _) in enumerate(drawn))
    return Network(model, inputs, sound, tuple(words for _, _, words in drawn))


def jacobian(model: nn.Module, inputs: Tensor) -> tuple[Tensor, Tensor, list[str]]:
    """Outputs, J [n, c, p] and the names of tensors: one backward pass for each datum and output, nothing shared.

    Every datum stands beside a copy, since torch's own gradients of a single one can be wrong (batch norms on maps).
    """
    model = model.eval()
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    rows, values = [], []
    for datum in inputs:
        outputs = model(torch.stack([datum, datum]))[0]
        gradient = partial(torch.autograd.grad, inputs=list(named.values()), retain_graph=True, allow_unused=True)
        for output in outputs:
            found = gradient(output)
            flat = [torch.zeros_like(p) if g is None else g for p, g in zip(named.values(), found, strict=True)]
            rows.append(torch.cat([g.flatten() for g in flat]))
        values.append(outputs.detach())
    return torch.stack(values), torch.stack(rows).unflatten(0, (len(inputs), -1)), list(named)
