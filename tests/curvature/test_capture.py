"""Any torch module: its exact diagonal from rows against Jacobians, and what is refused."""

import weakref
from contextlib import contextmanager
from copy import deepcopy
from math import isfinite

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.testing import assert_close

import symbayes as sb
from symbayes.curvature.blocks import KroneckerBlock
from symbayes.curvature.capture import Capture
from symbayes.curvature.check import trusted
from symbayes.curvature.diagonal import Diagonal
from symbayes.curvature.evaluate import evaluating
from symbayes.curvature.ggn import Ggn
from symbayes.curvature.gradients import refuse_unused
from symbayes.curvature.kernel import TangentKernel
from symbayes.curvature.kfac import Ekfac, Kfac, RunningCurvature
from symbayes.curvature.lanczos import Lanczos
from symbayes.data.source import TensorSource
from symbayes.groups.grids import p4
from symbayes.groups.lie import affine2d
from symbayes.layers.dense import Scale, Shift
from symbayes.layers.group_conv import GroupConvPath
from symbayes.layers.smooth import SparseConvPath
from symbayes.likelihoods.classes import Categorical
from symbayes.likelihoods.values import Gaussian
from symbayes.surgery.surgeon import JointKfac
from tests.curvature.networks import Do
from tests.oracles import dense_ggn, softmax_hessian

CPU = torch.device("cpu")


class Tokens(nn.Module):
    """An embedding, a free position table and a transformer layer, averaged over positions."""

    def __init__(self, attention):
        super().__init__()
        self.embedding = nn.Embedding(6, 4, padding_idx=0)
        self.position = nn.Parameter(torch.randn(3, 4))
        self.attention = attention
        self.head = nn.Linear(4, 3)

    def forward(self, tokens):
        return self.head(self.attention(self.embedding(tokens) + self.position).mean(1))


class SelfAttention(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.inner = nn.MultiheadAttention(4, 2, **options)
        self.mask = torch.triu(torch.ones(3, 3, dtype=torch.bool), 1)

    def forward(self, x):
        return self.inner(x, x, x, attn_mask=self.mask)[0]


def sequential(*layers):
    return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(3))


MODELS = {
    "conv 1-d, dilated": (lambda: sequential(nn.Conv1d(2, 3, 3, dilation=2, padding="same"), nn.Tanh()), (2, 6)),
    "conv 2-d, groups and strides": (
        lambda: sequential(nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0), groups=2), nn.Tanh()),
        (4, 5, 4),
    ),
    "conv 2-d, reflected same": (
        lambda: sequential(nn.Conv2d(2, 3, 4, padding="same", padding_mode="reflect"), nn.Tanh()),
        (2, 5, 5),
    ),
    "conv 3-d": (lambda: sequential(nn.Conv3d(1, 2, 2, padding_mode="circular", padding=1), nn.Tanh()), (1, 2, 3, 2)),
    "batch norm and in-place relu": (
        lambda: sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(inplace=True)),
        (2, 4, 4),
    ),
    "group norm": (lambda: sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Tanh()), (2, 4, 4)),
    "batch norm 1-d": (lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3)), (3,)),
    "linear on a sequence": (lambda: sequential(nn.Linear(3, 4), nn.LayerNorm((5, 4)), nn.Tanh()), (5, 3)),
    "linear that adds its bias in place": (lambda: sequential(Turn(), nn.Linear(3, 4), nn.Tanh()), (3, 5)),
    "shifts and scales": (lambda: sequential(Shift(), nn.Conv2d(2, 3, 2, bias=False), nn.Tanh(), Scale(), Shift()), (2, 3, 3)),
    "a layer of others": (lambda: sequential(nn.ConvTranspose2d(2, 3, 2), nn.PReLU()), (2, 3, 3)),
    "attention": (lambda: Tokens(SelfAttention(batch_first=True)), "tokens"),
    "attention, data second": (lambda: Tokens(nn.Sequential(Swap(), SelfAttention(), Swap())), "tokens"),
    "transformer layer": (
        lambda: Tokens(nn.TransformerEncoderLayer(4, 2, 8, dropout=0.5, batch_first=True)),
        "tokens",
    ),
    "attention to another sequence": (lambda: to_another(nn.MultiheadAttention(4, 2, batch_first=True)), (5, 4)),
    "attention to another, sequences first": (lambda: to_another(nn.MultiheadAttention(4, 2)), (5, 4)),
    "attention whose values are others than its keys": (
        lambda: Do(
            lambda s, x: s.parts[1](s.parts[0](q := x[:, :2], q, x[:, 2:4], attn_mask=s.mask)[0].mean(1)),
            [nn.MultiheadAttention(4, 2, batch_first=True), head(4)],
            mask=torch.randn(2, 2),
        ),
        (5, 4),
    ),
    "attention of several widths": (
        lambda: Do(
            lambda s, x: s.parts[1](s.parts[0](x[:, :2], x[:, 2:, :3], x[:, 2:, :2])[0].mean(1)),
            [nn.MultiheadAttention(4, 2, kdim=3, vdim=2, batch_first=True), head(4)],
        ),
        (5, 4),
    ),
    "attention of several widths, without biases": (
        lambda: Do(
            lambda s, x: s.parts[1](s.parts[0](x[:, :2], x[:, 2:, :3], x[:, 2:, :2])[0].mean(1)),
            [nn.MultiheadAttention(4, 2, kdim=3, vdim=2, bias=False, batch_first=True), head(4)],
        ),
        (5, 4),
    ),
    "attention with learned keys and zeros": (
        lambda: Do(
            lambda s, x: s.parts[1](s.parts[0](x, x, x, x[:, :, 0] > 0.5, attn_mask=torch.eye(5).bool())[0].mean(1)),
            [nn.MultiheadAttention(4, 2, add_bias_kv=True, add_zero_attn=True, batch_first=True), head(4)],
        ),
        (5, 4),
    ),
    "attention from a query that is learned": (
        lambda: Do(
            lambda s, x: s.parts[1](s.parts[0](s.query.expand(len(x), -1, -1), x, x)[0].mean(1)),
            [nn.MultiheadAttention(4, 2, batch_first=True), head(4)],
            query=torch.randn(1, 2, 4),
        ),
        (5, 4),
    ),
    "attention of rows that are masked altogether": (
        lambda: Do(padded, [nn.MultiheadAttention(4, 2, batch_first=True), head(4)]),
        (5, 4),
    ),
    "attention by a function": (
        lambda: Do(
            lambda s, x: s.parts[1](
                functional.scaled_dot_product_attention(*s.parts[0](x)[:, None].chunk(3, -1), is_causal=True)[:, 0].mean(1)
            ),
            [nn.Linear(4, 12), head(4)],
        ),
        (3, 4),
    ),
    "decoder layer": (
        lambda: Do(
            lambda s, x: s.parts[1](s.parts[0](x[:, :2], x[:, 2:]).mean(1)),
            [nn.TransformerDecoderLayer(4, 2, 6, dropout=0.5, batch_first=True), head(4)],
        ),
        (5, 4),
    ),
    "transformer": (
        lambda: Do(
            lambda s, x: s.parts[1](
                s.parts[0](x[:, 2:], x[:, :2], tgt_mask=s.parts[0].generate_square_subsequent_mask(2)).mean(1)
            ),
            [nn.Transformer(4, 2, 1, 1, 6, batch_first=True), head(4)],
        ),
        (5, 4),
    ),
    "transposed conv 1-d": (lambda: sequential(nn.ConvTranspose1d(2, 3, 3, stride=2), nn.Tanh()), (2, 4)),
    "transposed conv 2-d, groups and strides": (
        lambda: sequential(
            nn.ConvTranspose2d(4, 6, (3, 2), stride=2, padding=1, output_padding=1, groups=2, dilation=2), nn.Tanh()
        ),
        (4, 3, 3),
    ),
    "transposed conv 2-d, gaps wider than strides": (
        lambda: sequential(
            nn.ConvTranspose2d(4, 4, (3, 2), (2, 1), (1, 2), (1, 0), groups=2, bias=True, dilation=(3, 4)), nn.Tanh()
        ),
        (4, 3, 3),
    ),
    "transposed conv 2-d, wide gaps": (
        lambda: sequential(nn.ConvTranspose2d(2, 3, 2, dilation=2, output_padding=1), nn.Tanh()),
        (2, 3, 3),
    ),
    "transposed conv 2-d, a size that is given": (
        lambda: Do(
            lambda s, x: s.parts[1](s.parts[0](x, output_size=(6, 5)).tanh().flatten(1)),
            [nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1), head(90)],
        ),
        (2, 3, 3),
    ),
    "transposed conv 3-d": (lambda: sequential(nn.ConvTranspose3d(1, 2, 2, bias=False), nn.Tanh()), (1, 2, 2, 2)),
    "root mean squares": (lambda: sequential(nn.Linear(3, 4), nn.RMSNorm(4), nn.Tanh()), (2, 3)),
    "weight norm": (lambda: sequential(parametrizations.weight_norm(nn.Conv1d(2, 3, 3)), nn.Tanh()), (2, 5)),
    "spectral norm": (lambda: sequential(parametrizations.spectral_norm(nn.Linear(3, 4)), nn.Tanh()), (3,)),
    "low rank beside a layer that is frozen": (lambda: sequential(LowRank(nn.Linear(3, 4)), nn.Tanh()), (2, 3)),
    "the same by layers": (
        lambda: Do(
            lambda s, x: s.parts[3]((s.parts[0](x) + s.parts[2](s.parts[1](x))).tanh()),
            [nn.Linear(3, 4).requires_grad_(False), nn.Linear(3, 2, bias=False), nn.Linear(2, 4, bias=False), head(4)],
        ),
        (3,),
    ),
    "recurrent": (lambda: sequential(nn.RNN(3, 2, 2, nonlinearity="relu", batch_first=True), First()), (4, 3)),
    "gated": (lambda: sequential(nn.GRU(3, 2, bidirectional=True, batch_first=True), First()), (4, 3)),
    "gated, steps first, without biases": (lambda: sequential(Swap(), nn.GRU(3, 2, bias=False), First(), Swap()), (4, 3)),
    "long short-term memory": (
        lambda: sequential(nn.LSTM(3, 2, 2, bidirectional=True, dropout=0.5, batch_first=True), First()),
        (4, 3),
    ),
    "a state that is given": (
        lambda: Do(
            lambda s, x: s.parts[2](s.parts[1](x, s.parts[0](x[:, 0])[None])[1][0]),
            [head(3), nn.GRU(3, 3, batch_first=True), head(3)],
        ),
        (4, 3),
    ),
    "called twice": (lambda: Do(lambda s, x: s.parts[1](s.parts[0](s.parts[0](x).tanh())), [nn.Linear(4, 4), head(4)]), (4,)),
    "called twice, once for nothing": (
        lambda: Do(lambda s, x: s.parts[1](s.parts[0](x).tanh() + 0 * s.parts[0](x).detach()), [nn.Linear(4, 4), head(4)]),
        (4,),
    ),
    "convolution called three times": (lambda: again(3, nn.Conv2d(2, 2, 3, padding=1)), (2, 4, 4)),
    "group convolution called twice": (lambda: again(2, GroupConvPath(1, 1, p4(), 3)), (4, 3, 3)),
    "norm called twice": (
        lambda: Do(lambda s, x: s.parts[1](s.parts[0](s.parts[0](x).exp())), [nn.LayerNorm(4), head(4)]),
        (4,),
    ),
    "attention called twice": (
        lambda: Tokens(nn.Sequential(*[SelfAttention(batch_first=True)] * 2)),
        "tokens",
    ),
    "positions folded into data": (
        lambda: Do(lambda s, x: s.parts[1](s.parts[0](x.flatten(0, 1)).tanh().view(-1, 12)), [nn.Linear(3, 4), head(12)]),
        (3, 3),
    ),
    "images folded into data, called twice": (
        lambda: Do(
            lambda s, x: s.parts[1](s.parts[0](s.parts[0](x.flatten(0, 1)).tanh()).view(-1, 36)),
            [nn.Conv2d(2, 2, 3, padding=1), head(36)],
        ),
        (2, 2, 3, 3),
    ),
    "a table looked up once for all data": (
        lambda: Do(
            lambda s, x: s.parts[1]((x + s.parts[0](torch.arange(4)[None])).tanh().mean(1)), [nn.Embedding(4, 3), head(3)]
        ),
        (4, 3),
    ),
    "a table of as many rows as data, without their axis": (
        lambda: Do(lambda s, x: s.parts[1]((x + s.parts[0](torch.arange(5))).tanh().mean(1)), [nn.Embedding(5, 3), head(3)]),
        (5, 3),
    ),
    "a query that all data share": (
        lambda: Do(
            lambda s, x: s.parts[1]((s.parts[0](s.query) * x).tanh().mean(1)),
            [nn.Linear(2, 3), head(3)],
            query=torch.ones(1, 4, 2),
        ),
        (4, 3),
    ),
    "a layer of transformers": (lambda: sequential(Conv1D(4, 3), nn.Tanh(), Conv1D(5, 4)), (2, 3)),
    "tied": (lambda: tied(nn.Linear(4, 4), nn.Linear(4, 4), head(4)), (4,)),
    "embedding and head tied": (lambda: LanguageModel(), "tokens"),
}


class Conv1D(nn.Module):
    """As transformers has it: a linear layer whose weight is stored [d_in, d_out]."""

    def __init__(self, nf, nx):
        super().__init__()
        self.nf, self.weight, self.bias = nf, nn.Parameter(torch.randn(nx, nf)), nn.Parameter(torch.randn(nf))

    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.shape[:-1], self.nf)


Conv1D.__module__ = "transformers.pytorch_utils"


class LowRank(nn.Module):
    """A layer that is frozen, and a product of rank two beside it."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.randn(2, layer.in_features)), nn.Parameter(torch.randn(layer.out_features, 2))

    def forward(self, x):
        return self.layer(x) + x @ self.down.T @ self.up.T


def to_another(attention):
    """From two tokens to the three others, one of which is masked in some data."""

    def forward(s, x):
        first, second = (x[:, :2], x[:, 2:]) if attention.batch_first else (x[:, :2].transpose(0, 1), x[:, 2:].transpose(0, 1))
        mask = (x[:, 2:, 0] > 0) & (torch.arange(3) == 1)
        given = s.parts[0](first, second, second, key_padding_mask=mask)[0]
        return s.parts[1](given.mean(1 if attention.batch_first else 0))

    return Do(forward, [attention, head(4)])


def padded(s, x):
    """From left to right, where the first two tokens of some data are padded: these see nothing."""
    mask = (x[:, :1, 0] > 0) & (torch.arange(x.shape[1]) < 2)
    causal = torch.triu(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool), 1)
    return s.parts[1](s.parts[0](x, x, x, key_padding_mask=mask, attn_mask=causal, need_weights=False)[0].mean(1))


def head(features):
    return nn.Linear(features, 3)


def again(times, layer):
    return sequential(*[layer, nn.Tanh()] * times)


def tied(first, second, *others):
    second.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), *others)


class LanguageModel(nn.Module):
    """Its head has the weights of its embedding."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.embedding(tokens).mean(1).tanh())


class First(nn.Module):
    """Of what is given."""

    def forward(self, given):
        return given[0]


class Turn(nn.Module):
    """Its output is not contiguous."""

    def forward(self, x):
        return x.transpose(1, 2)


class Swap(nn.Module):
    def forward(self, x):
        return x.transpose(0, 1)


def build(name, generator):
    make, shape = MODELS[name]
    if shape == "tokens":
        inputs = torch.randint(0, 6, (5, 3), generator=generator)
    else:
        inputs = torch.randn(5, *shape, generator=generator, dtype=torch.float64)
    model = make().double()
    model.train()
    model(inputs)  # shapes of lazy layers, and running statistics of norms
    return model, inputs


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of weight norms, datum by datum
@pytest.mark.parametrize("name", MODELS)
def test_the_diagonal_from_rows_is_exact(name, generator):
    model, inputs = build(name, generator)
    data = TensorSource(inputs, torch.zeros(5, dtype=torch.long), CPU)
    found = Diagonal(batch_size=3).curvature(model, data, Categorical()).blocks
    assert model.training
    assert all(not module._forward_hooks for module in model.modules())
    wanted = dense_ggn(model.eval(), inputs, softmax_hessian)
    assert found.keys() == {tensor for tensor, weight in model.named_parameters() if weight.requires_grad}
    for tensor, block in found.items():
        assert_close(block.diagonal, wanted[tensor, tensor].diagonal(), msg=lambda text, tensor=tensor: f"{tensor}: {text}")


def test_a_transposed_convolution_has_a_patch_for_each_cell_unless_a_stride_is_added(generator):
    for name, kronecker in (("gaps wider than strides", True), ("wide gaps", False)):
        model, inputs = build(f"transposed conv 2-d, {name}", generator)
        assert isinstance(run(model, inputs).blocks["0.weight"], KroneckerBlock) == kronecker


def test_kronecker_factors_of_an_embedding_are_diagonal_and_in_its_order(generator):
    model, _ = build("attention", generator)
    tokens = torch.tensor([[1, 2, 0]])
    block = Kfac().curvature(model, TensorSource(tokens, torch.zeros(1, dtype=torch.long), CPU), Categorical()).blocks
    embedding = block["embedding.weight"]
    assert embedding.A.diagonal
    assert_close(embedding.A.matrices[0], torch.tensor([0.0, 1, 1, 0, 0, 0], dtype=torch.float64) / 3)
    used = embedding.dense().diagonal().view(6, 4).sum(1) > 0
    assert used.tolist() == [False, True, True, False, False, False]


def test_attention_that_sees_nothing_gives_what_torch_gives(generator):
    model, inputs = build("attention of rows that are masked altogether", generator)
    wanted = model(inputs)
    assert (inputs[:, 0, 0] > 0).any()
    assert wanted.isfinite().all()
    with Capture(model) as capture:
        assert_close(capture.forward(inputs), wanted)
    result = sb.fit(model, (inputs, torch.arange(5) % 3), epochs=1, progress=False)
    assert isfinite(result.evidence.total)


def run(model, inputs):
    data = TensorSource(inputs, torch.zeros(len(inputs), dtype=torch.long), CPU)
    return Kfac().curvature(model, data, Categorical())


def test_a_module_that_is_called_on_data_of_several_shapes_is_refused_by_name():
    conv = nn.Conv1d(2, 2, 3)
    model = nn.Sequential(conv, nn.Tanh(), conv, nn.Flatten(), nn.LazyLinear(2))
    model(torch.randn(2, 2, 9))
    with pytest.raises(RuntimeError, match=r"must see data of one shape each time; '0' sees \[\(2, 2, 9\), \(2, 2, 7\)\]"):
        run(model, torch.randn(2, 2, 9))


def test_calls_are_rows_of_a_datum(generator):
    model, inputs = build("called twice", generator)
    found = Kfac().curvature(model, TensorSource(inputs, torch.zeros(5, dtype=torch.long), CPU), Categorical()).blocks
    rows = torch.cat([inputs, model.parts[0](inputs).tanh()]).detach()
    assert_close(found["parts.0.weight"].A.matrices[0], rows.T @ rows / len(rows))
    wanted = dense_ggn(model.eval(), inputs, softmax_hessian)["parts.0.bias", "parts.0.bias"]
    assert_close(found["parts.0.bias"].dense(), wanted)  # exact, with what is between calls


class Partial(nn.Module):
    """Has a part that does not run, a part whose output is dropped, or a free tensor that is not used."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.used = kind, nn.Linear(3, 3)
        if kind == "free":
            self.extra = nn.Parameter(torch.zeros(2))
        else:
            self.extra = nn.Linear(3, 3)

    def forward(self, x):
        if self.kind == "dropped":
            self.extra(x)
        return self.used(x)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("idle", "'extra.weight' is trainable, but its module did not run"),
        ("dropped", "'extra.weight' is trainable, but the outputs of the model do not depend on it"),
        ("free", "'extra' is trainable, but the outputs of the model do not depend on it"),
    ],
)
def test_a_trainable_tensor_that_nothing_covers_is_refused_by_name(kind, message):
    model = Partial(kind)
    with pytest.raises(RuntimeError, match=message):
        run(model, torch.randn(2, 3))
    model.extra.requires_grad_(False)
    assert set(run(model, torch.randn(2, 3)).blocks) == {"used.weight", "used.bias"}


def test_what_is_not_used_is_named_whoever_asks():
    with pytest.raises(RuntimeError, match="'extra' is trainable, but the outputs of the model do not depend on it"):
        refuse_unused(Partial("free"), ("used.weight", "extra"), torch.randn(2, 3))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_a_bag_of_embeddings_is_a_free_parameter_and_has_no_products(generator):
    bag = nn.Sequential(nn.EmbeddingBag(9, 4), nn.Linear(4, 2))
    ids = torch.randint(0, 9, (12, 5), generator=generator)
    data = ids, ids[:, 0] % 2

    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = bag[0].weight, bag[1]

        def forward(self, ids):
            return self.head(self.table[ids].mean(1))

    found = [sb.laplace_evidence(net, data, sb.Categorical(), sb.TensorwisePrior(net)).total for net in (bag, Mean())]
    assert_close(*found)
    with pytest.raises(
        RuntimeError, match=r"along its weights.*_embedding_bag_backward.*with other operations.*or use Kfac\(\)"
    ):
        sb.fit(bag, data, epochs=1, progress=False)
    assert sb.fit(bag, data, objective=sb.Laplace(), epochs=1, progress=False).num_data == 12


def test_a_layer_that_torch_cannot_differentiate_datum_by_datum_is_refused_by_name():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return x * self.scale if x.sum() > 0 else x / self.scale

    with pytest.raises(RuntimeError, match=r"Parameters \['scale'\] are trainable.*Freeze them"):
        run(Branching(), torch.randn(2, 3))


APART = {
    "positions folded in first": lambda s, x: s.parts[1](
        s.parts[0](x.transpose(0, 1).flatten(0, 1)).tanh().view(4, -1, 3).mean(0)
    ),
    "positions first": lambda s, x: s.parts[1](s.parts[0](x.transpose(0, 1)).tanh().mean(0)),
    "all data at once": lambda s, x: s.parts[1](s.parts[0](x.mean(1))) + s.parts[0](torch.ones(2, 3)).sum(),
}


@pytest.mark.parametrize("function", APART.values(), ids=APART)
@pytest.mark.parametrize("count", [4, 5, 8])
def test_maps_whose_first_axis_is_not_the_data_are_refused_by_name(function, count):
    with pytest.raises(
        RuntimeError, match=r"Module 'parts.0' must get the data along its first axis|must see data of one shape"
    ):
        run(Do(function, [nn.Linear(3, 3), head(3)]), torch.randn(count, 4, 3))


def ragged(s, x):
    """Sums over the tokens that are there, which are marked in the last feature, without padding."""
    there = x[:, :, -1] > 0
    tokens = s.parts[0](x[there][:, :3]).tanh()
    return s.parts[1](torch.zeros(len(x), 3, dtype=x.dtype).index_add(0, there.nonzero()[:, 0], tokens))


def gated(s, x):
    """Parts come first, and some data do without them."""
    parts = s.parts[0](x[:, :2, :3].transpose(0, 1).reshape(-1, 3)).view(2, -1, 3)
    return s.parts[1](x[:, 2, :3]) + parts.prod(0) * (x[:, :1, 0] > 0)


def tokens(*counts):
    x = torch.randn(len(counts), 3, 4, dtype=torch.float64)
    x[:, :, -1] = (torch.arange(3) < torch.tensor(counts)[:, None]).double()
    return x


MOVED = {
    "parts first, one datum without": (gated, lambda: tokens(*[3] * 8).index_fill(0, torch.tensor([4]), -1.0)),
    "turned round and back, the middle stays": (
        lambda s, x: s.parts[1](s.parts[0](x[:, 0, :3]).tanh() * s.parts[0](x[:, 1, :3].flip(0)).tanh().flip(0)),
        lambda: tokens(*[3] * 7),
    ),
    "lengths that differ, as many in all": (ragged, lambda: tokens(2, 2, 2, 2, 2, 1, 3, 2)),
    "lengths that differ in a later batch": (ragged, lambda: tokens(*[2] * 8, *[1, 3] * 4)),
}


@pytest.mark.parametrize(("function", "inputs"), MOVED.values(), ids=MOVED)
def test_parts_that_are_not_where_their_datum_is_are_refused(function, inputs):
    model, inputs = Do(function, [nn.Linear(3, 3), head(3)]).double(), inputs()
    data = TensorSource(inputs, torch.zeros(len(inputs), dtype=torch.long), CPU)
    for rule in (Diagonal(batch_size=8), Kfac(batch_size=8)):
        with pytest.raises(
            RuntimeError, match=r"Module 'parts.0' must get the data along its first axis: what it gave for one"
        ):
            rule.curvature(model, data, Categorical())


def test_lengths_may_differ_between_batches():
    def trimmed(s, x):
        longest = int((x[:, :, -1] > 0).sum(1).max())
        return s.parts[1](s.parts[0](x[:, :longest, :3]).tanh().sum(1))

    model, inputs = Do(trimmed, [nn.Linear(3, 3), head(3)]).double(), tokens(*[1] * 8, *[3] * 8)
    targets = torch.zeros(16, dtype=torch.long)
    # What is beyond the longest of a batch differs from batch to batch, so both are taken by themselves.
    wanted = sum(dense_ggn(model, part, softmax_hessian)["parts.0.bias", "parts.0.bias"] for part in inputs.split(8))
    for order in (inputs, inputs.flip(0)):
        found = Kfac(batch_size=8).curvature(model, TensorSource(order, targets, CPU), Categorical()).blocks
        assert_close(found["parts.0.bias"].dense(), wanted)
        running = RunningCurvature(model, Categorical(), Kfac(), 20, torch.Generator())
        for part in order.split(8):
            running.add((part, targets[:8]))
        for name, block in running.curvature(16).blocks.items():
            assert_close(block.dense(), found[name].dense(), msg=lambda text, name=name: f"{name}: {text}")


def test_errors_of_a_model_that_takes_what_is_expanded_are_its_own():
    batches = []

    def forward(s, x):
        if len(x) == 7:
            batches.append(x)
            raise torch.OutOfMemoryError("of memory") if len(batches) == 1 else ValueError("of the model")
        return s.parts[1]((x + s.parts[0](torch.arange(4))).mean(1))

    model = Do(forward, [nn.Embedding(4, 3), head(3)])
    for error in (torch.OutOfMemoryError, ValueError):
        with Capture(model) as capture:
            capture.forward(torch.randn(5, 4, 3))
            with pytest.raises(error, match=r"of memory|of the model"):
                capture.forward(torch.randn(7, 4, 3))


def test_a_copy_that_is_made_while_a_model_evaluates_is_its_own():
    model, inputs = nn.Sequential(nn.LSTM(3, 2, batch_first=True), First()), torch.randn(4, 5, 3)
    wanted = model(inputs).detach()
    with evaluating(model):
        copy = deepcopy(model)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    assert_close(copy(inputs), wanted)


@pytest.mark.parametrize("kind", ["by name", "packed", "one by one"])
def test_recurrent_modules_are_called_in_all_ways_while_they_evaluate(kind):
    module, inputs = nn.GRU(3, 2, batch_first=True), torch.randn(4, 5, 3)

    def call():
        if kind == "by name":
            return module(input=inputs)[0]
        if kind == "one by one":
            return torch.stack([module(each)[0] for each in inputs])
        return module(nn.utils.rnn.pack_padded_sequence(inputs, [5, 4, 4, 1], batch_first=True))[0].data

    wanted = call()
    with evaluating(module):
        assert_close(call(), wanted)


def test_a_single_number_for_all_data_is_refused_by_name():
    model = Do(lambda s, x: s.parts[1](x + s.parts[0](torch.tensor(1))), [nn.Embedding(4, 3), head(3)])
    with pytest.raises(RuntimeError, match=r"'parts.0' must get the data along its first axis"):
        run(model, torch.randn(5, 3))


def test_layers_of_transformers_are_known_and_have_no_noise_behind_them(generator):
    model, inputs = nn.Sequential(Conv1D(3, 3), nn.Tanh(), Conv1D(3, 3)), torch.randn(5, 3, generator=generator)
    data = TensorSource(inputs, torch.zeros(5, dtype=torch.long), CPU)
    blocks = Kfac().curvature(model, data, Categorical()).blocks
    assert blocks["0.weight"].transposed
    assert not sb.MatrixNormal().over(model).local(inputs)


def test_what_is_the_same_for_all_data_and_not_added_to_each_is_refused_by_name():
    model = Do(lambda s, x: s.parts[1](x + s.parts[0](torch.arange(4)).mean(0)), [nn.Embedding(4, 3), head(3)])
    with pytest.raises(
        RuntimeError, match=r"'parts.0' must get the data along its first axis.*it is called once for all of them"
    ):
        run(model, torch.randn(5, 3))


def test_modules_are_left_in_the_mode_they_were_in():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    model[1].eval()
    data = TensorSource(torch.randn(4, 3), torch.zeros(4, dtype=torch.long), CPU)
    for rule in (Kfac(), Ggn(), TangentKernel(4), Lanczos(1, 2)):
        rule.curvature(model, data, Categorical())
        assert [module.training for module in model.modules()] == [True, True, False, True]


def test_attention_is_captured_with_masks_by_position_and_left_alone_when_frozen():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 3)
            self.inner.eval()

        def forward(self, x):
            return self.head(self.inner(x, x, x, torch.zeros(len(x), 3, dtype=torch.bool))[0].mean(1))

    model = Masked()
    inputs = torch.randn(5, 3, 4)
    assert "inner.in_proj_weight" in run(model, inputs).blocks
    data = TensorSource(inputs, torch.zeros(5, dtype=torch.long), CPU)
    precisions = {name: torch.tensor(1.0) for name, _ in model.named_parameters()}
    full = Ggn().curvature(model, data, Categorical()).log_det(precisions)
    sampled = Lanczos(30, 40).curvature(model, data, Categorical(), generator=torch.Generator().manual_seed(0))
    assert_close(sampled.log_det(precisions), full, rtol=0.2, atol=0)
    model.inner.requires_grad_(False)
    assert set(run(model, inputs).blocks) == {"head.weight", "head.bias"}


def test_an_embedding_of_single_ids_is_captured():
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3)).double()
    ids = torch.tensor([0, 3, 3])
    wanted = dense_ggn(model, ids, softmax_hessian)
    data = TensorSource(ids, torch.zeros(3, dtype=torch.long), CPU)
    for name, block in Diagonal().curvature(model, data, Categorical()).blocks.items():
        assert_close(block.diagonal, wanted[name, name].diagonal())


def test_settings_that_name_nothing_are_refused():
    data = TensorSource(torch.randn(2, 3), torch.zeros(2, dtype=torch.long), CPU)
    with pytest.raises(ValueError, match=r"'nope\.\*' matches none of weight"):
        Kfac(diagonal=("nope.*",)).curvature(nn.Linear(3, 2), data, Categorical())


LEARNED = [
    "attention to another sequence",
    "attention of several widths",
    "attention with learned keys and zeros",
    "attention by a function",
    "decoder layer",
    "transformer",
    "transposed conv 1-d",
    "transposed conv 2-d, groups and strides",
    "transposed conv 3-d",
    "root mean squares",
    "weight norm",
    "spectral norm",
    "low rank beside a layer that is frozen",
    "the same by layers",
    "gated",
    "long short-term memory",
    "embedding and head tied",
]


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of weight norms, datum by datum
@pytest.mark.parametrize("name", LEARNED)
def test_networks_of_users_learn_and_predict(name, generator):
    model, inputs = build(name, generator)
    targets = torch.arange(len(inputs)) % 3
    result = sb.fit(model, (inputs, targets), epochs=2, progress=False)
    assert result.log_evidence < 0
    assert result.predict(inputs).mean.isfinite().all()


CELLS = {
    "cell": ([nn.GRUCell(4, 3), head(3)], lambda s, x: s.parts[1](s.parts[0](x[:, 0]))),
    "projected": (
        [nn.LSTM(4, 3, proj_size=2, batch_first=True), head(2)],
        lambda s, x: s.parts[1](s.parts[0](x)[0][:, -1]),
    ),
}


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("name", CELLS)
def test_recurrence_that_torch_cannot_differentiate_datum_by_datum_is_refused_by_name(name):
    parts, forward = CELLS[name]
    with pytest.raises(RuntimeError, match=r"Parameters \['parts\.0\.bias_hh.* belong to no layer.*Freeze them"):
        sb.fit(Do(forward, parts), (torch.randn(8, 3, 4), torch.arange(8) % 3), epochs=2, progress=False)


def test_attention_on_a_single_sequence_is_refused_by_name():
    model = Do(lambda s, x: torch.stack([s.parts[0](each, each, each)[0][0] for each in x]), [nn.MultiheadAttention(4, 2)])
    with pytest.raises(RuntimeError, match=r"Attention 'parts.0' must see a batch.*got a query of shape \(3, 4\)"):
        run(model, torch.randn(2, 3, 4))


@pytest.mark.parametrize("name", [name for name in MODELS if "attention" in name or "former" in name or "decoder" in name])
def test_attention_that_is_captured_gives_what_its_module_gives(name, generator):
    model, inputs = build(name, generator)
    model.eval()
    with torch.no_grad(), Capture(model) as capture:
        found = capture.forward(inputs).detach()
    assert_close(found, model(inputs).detach())


@pytest.mark.parametrize(
    "name", ["attention to another sequence", "attention of several widths", "decoder layer", "transformer"]
)
def test_attention_has_kronecker_factors_and_exact_biases(name, generator):
    model, inputs = build(name, generator)
    found = run(model, inputs).blocks
    wanted = dense_ggn(model.eval(), inputs, softmax_hessian)
    for tensor, block in found.items():
        if "proj" in tensor and tensor.endswith("weight"):
            assert isinstance(block, KroneckerBlock), tensor
        elif "proj" in tensor:
            assert_close(block.dense(), wanted[tensor, tensor], msg=lambda text, tensor=tensor: f"{tensor}: {text}")


def apart(s, x):
    """Attention by functions, from two tokens to three others that are much larger."""
    q, k, v = (part(each) for part, each in zip(s.parts[:3], (x[:, :2], 10 * x[:, 2:], 10 * x[:, 2:]), strict=True))
    q, k, v = (each.unflatten(-1, (2, -1)).transpose(1, 2) for each in (q, k, v))
    mixed = functional.scaled_dot_product_attention(q, k, v)
    return s.parts[4](s.parts[3](mixed.transpose(1, 2).flatten(2)).mean(1))


def together(s, x):
    return s.parts[1](s.parts[0](x[:, :2], memory := 10 * x[:, 2:], memory, need_weights=False)[0].mean(1))


@pytest.mark.parametrize("bias", [True, False], ids=["biases", "no biases"])
@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("rule", [Kfac(), Kfac(sharing="reduce"), Ekfac(), JointKfac()], ids=str)
def test_attention_to_another_sequence_is_three_linear_layers(rule, copies, bias, generator):
    attention = nn.MultiheadAttention(2, 2, bias=bias, batch_first=True)
    linears = [nn.Linear(2, 2, bias=bias) for _ in range(3)]
    with torch.no_grad():
        for part, linear in enumerate(linears):
            linear.weight.copy_(attention.in_proj_weight[2 * part : 2 * part + 2])
            if bias:
                linear.bias.copy_(attention.in_proj_bias[2 * part : 2 * part + 2].normal_(generator=generator))
    last, inputs = head(2), torch.randn(4, 5, 2, generator=generator, dtype=torch.float64)
    models = [Do(together, [attention, last]).double(), Do(apart, [*linears, attention.out_proj, last]).double()]
    if copies > 1:
        models = [sb.OrbitAverage(model, sb.affine2d(on="points").starting(0.3), copies).eval() for model in models]
    prefix = "net." if copies > 1 else ""
    data = TensorSource(inputs, torch.arange(4) % 3, CPU)
    found, wanted = (rule.curvature(model, data, Categorical()).blocks for model in models)
    thirds = [wanted[f"{prefix}parts.{part}.weight"].dense() for part in range(3)]
    assert_close(found[f"{prefix}parts.0.in_proj_weight"].dense(), torch.block_diag(*thirds))


def test_kronecker_factors_of_queries_are_exact_where_there_is_one(generator):
    """Of a single datum, beside a longer sequence, H of the third that makes queries is a product."""
    attention, memory = nn.MultiheadAttention(2, 1, batch_first=True), slice(1, None)
    model = Do(lambda s, x: s.parts[0](x[:, :1], x[:, memory], x[:, memory])[0][:, 0], [attention]).double()
    inputs = torch.randn(1, 4, 2, generator=generator, dtype=torch.float64)
    inputs[:, memory] *= 10
    data = TensorSource(inputs, torch.zeros(1, 2, dtype=torch.float64), CPU)
    wanted = dense_ggn(model, inputs, lambda outputs: torch.eye(2, dtype=torch.float64))
    weight = "parts.0.in_proj_weight"
    for rule in (Kfac(), Kfac(sharing="reduce")):
        found = rule.curvature(model, data, Gaussian(1.0).double()).blocks[weight].dense()
        assert wanted[weight, weight][:4, :4].norm() > 0
        assert_close(found[:4, :4], wanted[weight, weight][:4, :4])


def test_attention_to_views_of_its_own_sequence_sees_it_once(generator):
    attention, inputs = nn.MultiheadAttention(4, 2, batch_first=True), torch.randn(4, 5, 4, generator=generator).double()
    same = Do(lambda s, x: s.parts[1](s.parts[0](x, x, x)[0].mean(1)), [attention, head(4)]).double()
    views = Do(lambda s, x: s.parts[1](s.parts[0](x, x[:], x[:])[0].mean(1)), same.parts).double()
    of_same, of_views = (run(model, inputs).blocks["parts.0.in_proj_weight"] for model in (same, views))
    assert_close(of_views.A.matrices, of_same.A.matrices.expand(3, -1, -1))
    G = of_same.G.matrices[0]
    assert_close(of_views.G.matrices, torch.stack([G[4 * part : 4 * part + 4, 4 * part : 4 * part + 4] for part in range(3)]))


def test_kronecker_factors_of_what_attention_sees_once_are_exact(generator):
    """Of a single datum and one position H is a product."""
    attention = nn.MultiheadAttention(2, 1, kdim=3, vdim=4, batch_first=True)
    model = Do(
        lambda s, x: s.parts[0](x[:, None, :2], x[:, 2:8].view(-1, 2, 3), x[:, 8:].view(-1, 2, 4))[0][:, 0], [attention]
    ).double()
    inputs = torch.randn(1, 16, generator=generator, dtype=torch.float64)
    data = TensorSource(inputs, torch.zeros(1, 2, dtype=torch.float64), CPU)
    found = Kfac().curvature(model, data, Gaussian(1.0).double()).blocks
    wanted = dense_ggn(model, inputs, lambda outputs: torch.eye(2, dtype=torch.float64))
    once = ("q_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")
    for tensor in (f"parts.0.{each}" for each in once):
        assert wanted[tensor, tensor].norm() > 0
        assert_close(found[tensor].dense(), wanted[tensor, tensor], msg=lambda text, tensor=tensor: f"{tensor}: {text}")


@pytest.mark.parametrize(
    "layer",
    [nn.ConvTranspose1d(4, 6, 3, groups=2), nn.ConvTranspose2d(2, 3, 2, stride=2), nn.ConvTranspose3d(2, 1, 2)],
    ids=str,
)
def test_kronecker_factors_of_transposed_convolutions_of_a_cell_are_exact(layer, generator):
    """Of a single datum and one cell H is a product, for each group of channels."""
    inputs = torch.randn(1, layer.in_channels, *(1,) * len(layer.kernel_size), generator=generator, dtype=torch.float64)
    model = nn.Sequential(layer, nn.Flatten()).double()
    outputs = model(inputs)
    data = TensorSource(inputs, torch.zeros_like(outputs).detach(), CPU)
    found = Kfac().curvature(model, data, Gaussian(1.0).double()).blocks
    wanted = dense_ggn(model, inputs, lambda outputs: torch.eye(len(outputs), dtype=torch.float64))
    assert isinstance(found["0.weight"], KroneckerBlock)
    for tensor, block in found.items():
        assert_close(block.dense(), wanted[tensor, tensor], msg=lambda text, tensor=tensor: f"{tensor}: {text}")


def test_maps_of_one_module_share_what_it_saw_and_gave(generator):
    path = SparseConvPath(1, 2, learn_lengthscale=True)
    model = nn.Sequential(path, nn.Flatten(), nn.Linear(18, 2))
    inputs = torch.randn(4, 1, 3, 3, generator=generator)
    seen = {}
    with Capture(model) as capture:
        outputs = capture.forward(inputs)
        assert capture.inputs["0"] is capture.inputs["0.basis.omega"]
        capture.backward(outputs, torch.ones(1, 1, 4, 2), lambda _, name, gradients: seen.setdefault(name, gradients))
    assert seen.keys() == {"0", "0.basis.omega", "2"}
    assert_close(seen["0"], seen["0.basis.omega"])


def test_a_lengthscale_has_curvature_where_its_weights_are_frozen(generator):
    path = SparseConvPath(1, 2, learn_lengthscale=True)
    path.weight.requires_grad_(False)
    path.bias.requires_grad_(False)
    model = nn.Sequential(path, nn.Flatten(), nn.Linear(18, 2)).double()
    inputs = torch.randn(4, 1, 3, 3, generator=generator, dtype=torch.float64)
    wanted = dense_ggn(model, inputs, softmax_hessian)
    data = TensorSource(inputs, torch.zeros(4, dtype=torch.long), CPU)
    found = Kfac().curvature(model, data, Categorical()).blocks
    assert found.keys() == {"0.basis.omega", "2.weight", "2.bias"}
    assert_close(found["0.basis.omega"].dense(), wanted["0.basis.omega", "0.basis.omega"])


@pytest.mark.parametrize("in_place", [False, True])
def test_what_maps_gave_is_not_held_after_a_forward_pass(in_place):
    """Of what a map gives, whoever needs it again holds it: a ReLU what it made of it, nothing what came in."""
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(in_place), nn.Linear(5, 6), nn.ReLU(in_place), nn.Linear(6, 3))
    given = []
    for layer in (model[0], model[2]):
        layer.register_forward_hook(lambda module, inputs, outputs: given.append(weakref.ref(outputs)))
    capture = Capture(model)
    with capture:
        inputs = torch.randn(7, 4)
        outputs = capture.forward(inputs)
        assert [each() for each in given] == [None] * len(given)
        arrived = {}
        capture.backward(outputs, torch.ones(1, 1, 7, 3), lambda part, name, gradients: arrived.update({name: gradients[0]}))
    behind = functional.relu(model[0](inputs))
    first = (model[2](behind) > 0) * model[4].weight.sum(0)
    assert_close(arrived["2"], first)
    assert_close(arrived["0"], (model[0](inputs) > 0) * (first @ model[2].weight))


def test_sums_are_kept_only_where_they_are_likely_to_be_asked_for():
    inputs, labels = torch.randn(30, 1, 4, 4), torch.randint(3, (30,))
    plain = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    source = TensorSource(inputs, labels, CPU)
    curvature = Kfac().curvature(plain, source, Categorical())
    assert callable(curvature.replay.sums)
    precisions = {name: torch.ones(()) for name in curvature.blocks}
    with torch.no_grad():
        wanted = {key: value.clone() for key, value in curvature.replay.sums().items()}
    curvature.replay.slopes(precisions)
    for key, value in curvature.replay.sums().items():  # asked for again, not added up again
        assert_close(value, wanted[key])
    kept = Kfac().curvature(sb.OrbitAverage(plain, affine2d()), source, Categorical()).replay.sums
    assert not callable(kept)


class Seldom(nn.Module):
    """A tensor of a user that matters to some data alone."""

    def __init__(self, more):
        super().__init__()
        self.first, self.last, self.more = nn.Linear(4, 5), nn.Linear(5, 3), more

    def forward(self, x):
        hidden, hot = torch.tanh(self.first(x)), x[:, :1] > 2
        return self.last(torch.where(hot, hidden * self.more, hidden) if hot.any() else hidden)


def test_gradients_in_what_matters_to_later_data_alone(generator):
    """Which the first ones do not show."""
    more = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    model = Seldom(more).double()
    inputs = torch.randn(40, 4, generator=generator, dtype=torch.float64).clamp(max=1.5)
    inputs[9::10, 0] = 3.0
    source = TensorSource(inputs, torch.arange(40) % 3, CPU)
    prior = sb.TensorwisePrior(model)

    def evidence():
        return sb.laplace_evidence(model, source, Categorical(), prior, rule=Kfac(batch_size=10)).total

    (found,) = sb.evidence_gradient(model, source, Categorical(), prior, [more], rule=Kfac(batch_size=10))
    with torch.no_grad():
        ends = []
        for step in (1e-5, -1e-5):
            more.add_(step)
            ends.append(float(evidence()))
            more.sub_(step)
    assert_close(float(found), (ends[0] - ends[1]) / 2e-5, rtol=1e-6, atol=1e-8)


class Routed(nn.Module):
    """A map that also runs where gradients are off, and what it gives is changed in place there."""

    def __init__(self, how):
        super().__init__()
        self.first, self.last, self.how = nn.Linear(4, 5), nn.Linear(5, 3), how

    def forward(self, x):
        if self.how == "gate":
            with torch.no_grad():
                gate = (self.first(x) > 0).to(x)
            return self.last(torch.tanh(self.first(x)) * gate)
        hidden = self.first(x)
        with torch.no_grad():
            hidden.mul_(0.5)
        return self.last(torch.tanh(hidden))


@pytest.mark.parametrize("how", ["gate", "in place"])
def test_maps_may_run_where_gradients_are_off(how, generator):
    model = Routed(how).double()
    inputs = torch.randn(12, 4, generator=generator, dtype=torch.float64)
    source = TensorSource(inputs, torch.arange(12) % 3, CPU)
    found = Diagonal().curvature(model, source, Categorical()).blocks
    for name, block in Ggn(joint=False).curvature(model, source, Categorical()).blocks.items():
        assert_close(found[name].dense().diagonal(), block.dense().diagonal())


@pytest.mark.parametrize(("likelihood", "is_coarse"), [(Categorical(), True), (Gaussian(), False)])
def test_outputs_are_coarse_only_where_a_likelihood_bears_it(likelihood, is_coarse, monkeypatch, generator):
    """With a small noise an error of TF32 would be one of many nats."""
    depth, seen = [0], []

    @contextmanager
    def noted(device):
        depth[0] += 1
        yield
        depth[0] -= 1

    monkeypatch.setattr("symbayes.curvature.capture.tensor_cores", noted)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    model[2].register_forward_hook(lambda module, inputs, outputs: seen.append(depth[0]))
    inputs = torch.randn(20, 4, generator=generator)
    targets = torch.arange(20) % 3 if is_coarse else torch.randn(20, 3, generator=generator)
    rule = Kfac(batch_size=10)
    with torch.no_grad():
        rule.curvature(model, TensorSource(inputs, targets, CPU), likelihood)
    assert (seen[-1] > 0) == is_coarse
    running = RunningCurvature(model, likelihood, rule, 3, torch.Generator())
    running.add((inputs, targets))
    assert (seen[-1] > 0) == is_coarse


class Placed(nn.Module):
    def __init__(self):
        super().__init__()
        self.places, self.head = nn.Parameter(torch.ones(1, 4)), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(torch.tanh(x + self.places))


def test_what_did_not_matter_at_first_is_looked_at_again(generator, monkeypatch):
    """As behind a head of zeros, with which training may begin."""
    model = Placed()
    nn.init.zeros_(model.head.weight)
    source = TensorSource(torch.randn(20, 4, generator=generator), torch.arange(20) % 3, CPU)
    with torch.no_grad(), trusted(model):
        Kfac().curvature(model, source, Categorical())
        nn.init.ones_(model.head.weight)
        model.head.weight[0] = 2.0
        monkeypatch.setattr("symbayes.curvature.sums.free_gradients", None)
        found = Kfac().curvature(model, source, Categorical()).blocks["places"]
    exact = Ggn(joint=False).curvature(model, source, Categorical()).blocks["places"]
    assert_close(found.dense().diagonal(), exact.dense().diagonal())


def test_a_model_that_is_trusted_is_not_looked_at_again(generator, monkeypatch):
    """What its check found out is followed."""
    model, looks, before = Placed(), [], Capture._find_fixed
    monkeypatch.setattr(Capture, "_find_fixed", lambda self, datum: looks.append(1) or before(self, datum))
    source = TensorSource(torch.randn(20, 4, generator=generator), torch.arange(20) % 3, CPU)
    with torch.no_grad():
        first = Kfac(batch_size=10).curvature(model, source, Categorical())
        assert len(looks) == 1
        with trusted(model):
            second = Kfac(batch_size=10).curvature(model, source, Categorical())
        assert len(looks) == 1
        Kfac(batch_size=10).curvature(model, source, Categorical())
    assert len(looks) == 2
    for name, block in first.blocks.items():
        assert_close(second.blocks[name].dense(), block.dense())
