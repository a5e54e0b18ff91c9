"""Heads: those go that cost least, the others make up for them, and nothing of them is left."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import symbayes as sb
from symbayes.surgery import pruned
from symbayes.surgery.heads import attentions, drop_heads, heads
from symbayes.surgery.surgeon import Quadratic


class Attention(nn.Module):
    def __init__(self, count=4, bias=True):
        super().__init__()
        self.attn, self.head = nn.MultiheadAttention(8, count, batch_first=True, bias=bias), nn.Linear(8, 3)

    def forward(self, x):
        return self.head((x + self.attn(x, x, x, need_weights=False)[0]).mean(1))


@pytest.fixture
def data(generator):
    return torch.randn(40, 5, 8, generator=generator), torch.arange(40) % 3


@pytest.fixture(params=[True, False], ids=["bias", "no bias"])
def model(request):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Attention(bias=request.param).eval()


def test_a_head_that_is_there_twice_goes_without_a_loss(model, data):
    model, attention, data = model.double(), model.attn, (data[0].double(), data[1])
    with torch.no_grad():
        for part in range(3):
            attention.in_proj_weight[8 * part + 2 : 8 * part + 4] = attention.in_proj_weight[8 * part : 8 * part + 2]
        attention.out_proj.weight.mul_(2)
    found = pruned(model, data, 0.75, units="heads", prior=sb.ScalarPrior(model, 1e-12), shots=1)
    left = heads(found.model)["attn"].tolist()
    assert left in ([True, False, True, True], [False, True, True, True])
    assert_close(found.model(data[0]), model(data[0]), rtol=1e-4, atol=1e-4)
    apart = pruned(model, data, 0.75, units="heads", by="magnitude", shots=1)
    assert (apart.model(data[0]) - model(data[0])).abs().max() > 10 * (found.model(data[0]) - model(data[0])).abs().max()


def test_costs_and_updates_are_those_of_the_columns_that_read_a_head(model, data, generator):
    def quadratics(model, names):
        W = model.attn.out_proj.weight.detach().double()
        if model.attn.out_proj.bias is not None:
            W = torch.cat([W, model.attn.out_proj.bias.detach().double()[:, None]], 1)
        roots = [torch.randn(size, size + 2, dtype=torch.float64, generator=generator) for size in W.shape]
        found.append(Quadratic(W, roots[0] @ roots[0].T, roots[1] @ roots[1].T))
        return {"attn.out_proj.weight": found}

    found = []
    drop_heads(model, 2, quadratics)
    (quadratic,) = found
    costs = [float(quadratic.column_costs(torch.tensor([[2 * head, 2 * head + 1]]))) for head in range(4)]
    gone = sorted(range(4), key=costs.__getitem__)[:2]
    assert heads(model)["attn"].tolist() == [head not in gone for head in range(4)]
    W = quadratic.without_columns(torch.tensor([2 * head + d for head in gone for d in range(2)]))
    assert_close(model.attn.out_proj.weight, W[:, :8].float())
    if model.attn.out_proj.bias is not None:
        assert_close(model.attn.out_proj.bias, W[:, 8].float())


@pytest.mark.parametrize("by", ["surgeon", "magnitude"])
def test_nothing_is_left_of_heads_and_the_model_is_left_alone(model, data, by):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = pruned(model, data, 0.5, units="heads", by=by)
    assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert found.layers == {"attn": (4, 2)}
    assert "attn: heads 4 → 2" in str(found)
    rows = (~heads(found.model)["attn"]).repeat_interleave(2).repeat(3)
    assert not found.model.attn.in_proj_weight[rows].any()
    assert found.model.attn.in_proj_weight[~rows].all()
    assert found.parameters[0] - found.parameters[1] == 2 * 4 * 8 * 2
    assert heads(sb.prune(model, data, 0.1, units="heads"))["attn"].sum() == 1


def test_what_is_frozen_loses_columns_alone(model, data):
    model.attn.out_proj.requires_grad_(False)
    found = sb.prune(model, data, 0.5, units="heads")
    kept = heads(found)["attn"].repeat_interleave(2)
    assert_close(found.attn.out_proj.weight[:, kept], model.attn.out_proj.weight[:, kept])
    assert not found.attn.out_proj.weight[:, ~kept].any()


def test_a_bias_that_is_frozen_stays(model, data):
    if model.attn.out_proj.bias is not None:
        model.attn.out_proj.bias.data.fill_(0.5)
        model.attn.out_proj.bias.requires_grad_(False)
    found = sb.prune(model, data, 0.5, units="heads")
    kept = heads(found)["attn"].repeat_interleave(2)
    assert kept.sum() == 4
    assert (found.attn.out_proj.weight[:, kept] != model.attn.out_proj.weight[:, kept]).all()
    if model.attn.out_proj.bias is not None:
        assert_close(found.attn.out_proj.bias, model.attn.out_proj.bias, rtol=0, atol=0)
        assert not found.attn.out_proj.bias.requires_grad


class Two(nn.Module):
    """Attention twice, of which the second may be of several widths, or have a forward pass of its own."""

    def __init__(self, second):
        super().__init__()
        self.first, self.second, self.head = nn.MultiheadAttention(8, 4, batch_first=True), second, nn.Linear(8, 3)

    def forward(self, x):
        x = x + self.first(x, x, x)[0]
        keys = x[..., : self.second.kdim]
        return self.head((x + self.second(x, keys, x)[0]).mean(1))


class Own(nn.MultiheadAttention):
    def forward(self, *args, **named):
        return super().forward(*args, **named)


@pytest.mark.parametrize("by", ["surgeon", "magnitude"])
def test_heads_that_were_not_read_before_are_left_alone(data, by):
    model = Two(nn.MultiheadAttention(8, 4, batch_first=True))
    nn.init.zeros_(model.second.out_proj.weight)
    with torch.no_grad():
        model.first.out_proj.weight[:, :2] = 0.0
    found = pruned(model, data, 0.5, units="heads", by=by)
    assert found.layers == {"first": (3, 2), "second": (0, 0)}
    assert_close(found.model.second.state_dict(), model.second.state_dict(), rtol=0, atol=0)
    assert_close(found.model.first.in_proj_weight[:2], model.first.in_proj_weight[:2], rtol=0, atol=0)
    assert not found.model.first.out_proj.weight[:, :2].any()


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (lambda: nn.MultiheadAttention(8, 2, kdim=4, batch_first=True), "its queries, keys and values are of several widths"),
        (lambda: Own(8, 2, batch_first=True), "it has a forward pass of its own"),
    ],
)
def test_attention_whose_heads_stay_says_why(second, reason, data):
    found = pruned(Two(second()), data, 0.5, units="heads", by="magnitude")
    assert found.layers == {"first": (4, 2)}
    assert found.left.keys() == {"second"}
    assert f"second: left as it is, since {reason}" in str(found)


def test_a_model_must_have_heads(data):
    with pytest.raises(ValueError, match=r"needs heads that can be removed: an nn.MultiheadAttention whose queries"):
        attentions(nn.Linear(8, 3))
    other = nn.MultiheadAttention(8, 2, kdim=4)
    with pytest.raises(ValueError, match=r"this one has none. units='branches' drops attention of any kind"):
        attentions(other)
