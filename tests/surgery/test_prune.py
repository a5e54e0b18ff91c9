"""Pruning: costs and updates are those of a constrained quadratic, smaller models are the same as models with zeros."""

import logging
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import symbayes as sb
from symbayes.surgery import pruned
from symbayes.surgery.channels import cut_out, find_channels, parameters_of, parameters_without, stop_reading
from symbayes.surgery.surgeon import Quadratic


def positive(size, generator):
    root = torch.randn(size, size + 2, dtype=torch.float64, generator=generator)
    return root @ root.T


@pytest.fixture
def quadratic(generator):
    W = torch.randn(4, 5, dtype=torch.float64, generator=generator)
    return Quadratic(W, positive(4, generator), positive(5, generator))


def brute_force(quadratic, gone):
    """The best W with some elements zero, and its cost, from the whole matrix of the quadratic and Lagrange's equations."""
    H, w, index = torch.kron(quadratic.G, quadratic.A), quadratic.W.flatten(), gone.flatten().nonzero()[:, 0]
    C = torch.eye(len(w), dtype=torch.float64)[index]
    system = torch.cat([torch.cat([H, C.T], 1), torch.cat([C, torch.zeros(len(C), len(C))], 1)])
    change = torch.linalg.solve(system, torch.cat([torch.zeros_like(w), -w[index]]))[: len(w)]
    return (w + change).view_as(quadratic.W), change @ H @ change / 2


def exact(found, wanted):
    assert_close(found, wanted, rtol=1e-10, atol=1e-10)


def mask(quadratic, rows=slice(None), columns=slice(None)):
    gone = torch.zeros_like(quadratic.W, dtype=torch.bool)
    gone[rows, columns] = True
    return gone


def test_columns_cost_and_are_made_up_for_as_in_the_constrained_quadratic(quadratic):
    sets = torch.tensor([[0, 3], [1, 2], [4, 2]])
    for columns, cost in zip(sets, quadratic.column_costs(sets), strict=True):
        W, wanted = brute_force(quadratic, mask(quadratic, columns=columns))
        exact(cost, wanted)
        exact(quadratic.without_columns(columns), W)


def test_columns_in_rounds_cost_and_are_made_up_for_as_all_at_once(quadratic):
    first, then, none = torch.tensor([3]), torch.tensor([[0, 2]]), torch.tensor([], dtype=torch.long)
    left = quadratic.without(first, none)
    W, wanted = brute_force(quadratic, mask(quadratic, columns=[0, 2, 3]))
    exact(quadratic.column_costs(first[None])[0] + left.column_costs(then)[0], wanted)
    exact(left.without_columns(then[0]), W)
    exact(left.column_costs(first[None]), torch.zeros(1, dtype=torch.float64))  # what is gone costs nothing


def test_columns_that_only_rows_that_are_gone_read_cost_nothing(quadratic):
    rows, none = torch.tensor([1, 2]), torch.tensor([], dtype=torch.long)
    left = quadratic.without(none, rows)
    kept = torch.tensor([0, 3])
    smaller = Quadratic(quadratic.W[kept], quadratic.G[kept[:, None], kept], quadratic.A)
    sets = torch.tensor([[0, 3], [1, 2], [4, 2]])
    exact(left.column_costs(sets), smaller.column_costs(sets))
    exact(left.without_columns(sets[0])[kept], smaller.without_columns(sets[0]))


@pytest.mark.parametrize("units", ["channels", "weights"])
def test_magnitude_does_not_depend_on_the_scale_of_layers(units, generator):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    other, data = deepcopy(model), (torch.randn(20, 4, generator=generator), torch.arange(20) % 3)
    for layer, scale in zip((0, 2, 4), (100.0, 0.1, 0.1), strict=True):
        for parameter in other[layer].parameters():
            parameter.data.mul_(scale)
    found = [pruned(each, data, 0.5, by="magnitude", units=units, shots=1) for each in (model, other)]
    assert found[0].layers == found[1].layers
    for one, two in zip(*(each.model.parameters() for each in found), strict=True):
        assert torch.equal(one == 0, two == 0)
        assert_close(one / one.norm(), two / two.norm())


def test_without_elements_that_go_nothing_changes(quadratic):
    assert torch.equal(quadratic.without_elements(torch.zeros_like(quadratic.W, dtype=torch.bool)), quadratic.W)


class Auxiliary(nn.Module):
    """With a head that runs only in training."""

    def __init__(self):
        super().__init__()
        self.first, self.head, self.aux = nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(8, 2)

    def forward(self, inputs):
        hidden = self.first(inputs).relu()
        return torch.cat([self.head(hidden), self.aux(hidden)], 1) if self.training else self.head(hidden)


def test_layers_that_run_only_in_training_are_refused():
    with pytest.raises(ValueError, match=r"must run while it evaluates.*'aux' does not"):
        sb.prune(Auxiliary(), (torch.randn(20, 4), torch.arange(20) % 3), 0.5)


def test_what_is_frozen_loses_columns_alone():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    model[2].requires_grad_(False)
    smaller = sb.prune(model, (torch.randn(20, 4), torch.arange(20) % 3), 0.5)
    assert torch.equal(smaller[2].bias, model[2].bias)
    columns = {tuple(column) for column in model[2].weight.T.tolist()}
    assert {tuple(column) for column in smaller[2].weight.T.tolist()} < columns


@pytest.mark.parametrize("units", ["channels", "weights"])
def test_a_bias_that_is_frozen_stays_while_its_weight_makes_up(units):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    model[2].bias.requires_grad_(False)
    smaller = sb.prune(model, (torch.randn(20, 4), torch.arange(20) % 3), 0.5, units=units)
    assert torch.equal(smaller[2].bias, model[2].bias)
    assert not set(smaller[2].weight.flatten().tolist()) & set(model[2].weight.flatten().tolist())


class Cross(nn.Module):
    """Attention from two tokens to others."""

    def __init__(self):
        super().__init__()
        self.attn, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.attn(x[:, :2], x[:, 2:], x[:, 2:])[0].mean(1))


@pytest.mark.parametrize("by", ["surgeon", "magnitude"])
def test_weights_of_attention_to_another_sequence_are_pruned(by):
    model, data = Cross(), (torch.randn(20, 5, 4), torch.arange(20) % 3)
    found = pruned(model, data, 0.5, units="weights", by=by)
    left = int((found.model.attn.in_proj_weight != 0).sum())
    assert found.layers["attn.in_proj_weight"] == (48, left)
    assert left < 48
    assert found.parameters[1] == found.parameters[0] // 2


def test_rows_are_columns_of_the_transpose(quadratic):
    rows = torch.tensor([0, 2])
    W, wanted = brute_force(quadratic, mask(quadratic, rows=rows))
    turned = Quadratic(quadratic.W.T, quadratic.A, quadratic.G)
    exact(turned.column_costs(rows[None])[0], wanted)
    exact(turned.without_columns(rows).T, W)
    inverse = torch.linalg.inv(quadratic.G)  # as it is written for rows
    exact(W, quadratic.W - inverse[:, rows] @ torch.linalg.inv(inverse[rows][:, rows]) @ quadratic.W[rows])


def test_elements_cost_and_are_made_up_for_as_in_the_constrained_quadratic(quadratic, generator):
    costs = quadratic.element_costs()
    for row in range(4):
        for column in range(5):
            exact(costs[row, column], brute_force(quadratic, mask(quadratic, row, column))[1])
    gone = torch.rand(4, 5, generator=generator) < 0.5
    exact(quadratic.without_elements(gone), brute_force(quadratic, gone)[0])


def test_many_elements_go_in_sets_and_all_of_them_are_zero(quadratic, generator):
    gone = torch.rand(4, 5, generator=generator) < 0.5
    W = quadratic.without_elements(gone, together=3)
    assert not W[gone].any()
    change, best = W - quadratic.W, brute_force(quadratic, gone)[1]
    zeroed = torch.where(gone, -quadratic.W, 0.0)
    cost, none = ((D.T @ quadratic.G @ D @ quadratic.A).trace() / 2 for D in (change, zeroed))
    assert best <= cost < none


def test_damped_factors_contain_the_precision_of_the_prior(generator):
    G, A, δ = positive(3, generator), positive(4, generator), 0.7
    damped = Quadratic.damped(torch.zeros(3, 4), G, A, δ)
    π = (A.trace() / 4 / (G.trace() / 3)).sqrt()
    mixed = δ**0.5 * (π * torch.kron(G, torch.eye(4)) + torch.kron(torch.eye(3), A) / π)
    exact(torch.kron(damped.G, damped.A), torch.kron(G, A) + δ * torch.eye(12, dtype=torch.float64) + mixed)
    dead = Quadratic.damped(torch.ones(3, 4), torch.zeros(3, 3), A, δ)  # what has no curvature still has its prior
    assert dead.element_costs().isfinite().all()


def test_a_linear_model_becomes_the_best_with_zeros_where_it_has_them(generator):
    """KFAC is exact there: with hardly a prior the update is least squares with the weights that are left."""
    inputs = torch.randn(80, 5, dtype=torch.float64, generator=generator) @ positive(5, generator)
    targets = torch.randn(80, 2, dtype=torch.float64, generator=generator) + inputs[:, :2]
    model = nn.Linear(5, 2).double()
    one = torch.ones(80, 1, dtype=torch.float64)
    best = torch.linalg.lstsq(torch.cat([inputs, one], 1), targets).solution.T
    with torch.no_grad():
        model.weight.copy_(best[:, :5]), model.bias.copy_(best[:, 5])
    found = pruned(
        model, (inputs, targets), 0.6, units="weights", likelihood=sb.Gaussian(), prior=sb.ScalarPrior(model, 1e-8), shots=1
    )
    assert found.parameters == (12, 7)
    assert found.layers == {"weight": (10, 5)}
    for row in range(2):
        kept = found.model.weight[row] != 0
        some = torch.cat([inputs[:, kept], one], 1)
        wanted = torch.linalg.lstsq(some, targets[:, row : row + 1]).solution[:, 0]
        assert_close(torch.cat([found.model.weight[row][kept], found.model.bias[row : row + 1]]), wanted, rtol=1e-3, atol=1e-4)


class Block(nn.Module):
    """With a residual and norms."""

    def __init__(self, c, d, stride=1):
        super().__init__()
        self.first, self.norm = nn.Conv2d(c, d, 3, stride, 1, bias=False), nn.BatchNorm2d(d)
        self.second, self.other = nn.Conv2d(d, d, 3, 1, 1, bias=False), nn.BatchNorm2d(d)
        self.short = nn.Identity() if c == d else nn.Sequential(nn.Conv2d(c, d, 1, stride, bias=False), nn.BatchNorm2d(d))

    def forward(self, inputs):
        return torch.relu(self.short(inputs) + self.other(self.second(torch.relu(self.norm(self.first(inputs))))))


class Attention(nn.Module):
    """A transformer's block over five tokens, with positions and four heads."""

    def __init__(self, d=8):
        super().__init__()
        self.embed, self.positions = nn.Linear(3, d), nn.Parameter(torch.randn(5, d))
        self.norms = nn.ModuleList([nn.LayerNorm(d), nn.LayerNorm(d)])
        self.q, self.k, self.v, self.out = (nn.Linear(d, d) for _ in range(4))
        self.up, self.down, self.head = nn.Linear(d, 16), nn.Linear(16, d), nn.Linear(d, 3)

    def forward(self, inputs):
        hidden = self.embed(inputs) + self.positions
        seen = self.norms[0](hidden)
        q, k, v = (part(seen).unflatten(-1, (4, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        hidden = hidden + self.out((torch.softmax(q @ k.mT, -1) @ v).transpose(1, 2).flatten(2))
        hidden = hidden + self.down(nn.functional.gelu(self.up(self.norms[1](hidden))))
        return self.head(hidden.mean(1))


class Mobile(nn.Module):
    """With a depthwise convolution, gates by pooled channels, and features beside each other."""

    def __init__(self):
        super().__init__()
        self.wide, self.norm, self.depth = nn.Conv2d(2, 8, 1), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.squeeze, self.gate = nn.Linear(8, 4), nn.Linear(4, 8)
        self.left, self.right = nn.Conv2d(8, 5, 1), nn.Conv2d(8, 4, 3, padding=1)
        self.both, self.head = nn.BatchNorm2d(9), nn.Linear(9, 3)

    def forward(self, inputs):
        hidden = torch.sigmoid(self.depth(torch.relu(self.norm(self.wide(inputs)))))
        gates = torch.sigmoid(self.gate(torch.relu(self.squeeze(hidden.mean((2, 3))))))
        hidden = hidden * gates[:, :, None, None]
        beside = self.both(torch.cat([self.left(hidden), self.right(hidden)], 1))
        return self.head(beside.relu().mean((2, 3)))


#: Networks, what they see, and the layers of which channels are removed.
NETWORKS = {
    "conv": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 6, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(6, 8, 3, 2),
            nn.Tanh(),
            nn.AvgPool2d(3),
            nn.Flatten(),
            nn.Linear(8, 3),
        ),
        (2, 8, 8),
        {"0", "2"},
    ),
    "flat": (
        lambda: nn.Sequential(
            nn.Conv1d(2, 6, 3), nn.Softplus(), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(18, 12), nn.PReLU(12), nn.Linear(12, 3)
        ),
        (2, 8),
        {"0", "4"},
    ),
    "residual": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 6, 3, padding=1), Block(6, 6), Block(6, 8, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)
        ),
        (2, 8, 8),
        {"0", "1.first", "1.second", "2.first", "2.second", "2.short.0"},
    ),
    "attention": (Attention, (5, 3), {"up"}),
    "mobile": (Mobile, (2, 6, 6), {"wide", "depth", "squeeze", "gate", "left", "right"}),
}


@pytest.fixture(params=NETWORKS, ids=str)
def case(request, generator):
    build, shape, layers = NETWORKS[request.param]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, inputs = build(), torch.randn(40, *shape)
        model.train()(inputs)
        for parameter in model.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
    return model.eval(), (inputs, torch.randint(0, 3, (40,), generator=generator)), layers


def test_a_model_without_channels_is_what_it_is_when_nothing_reads_them(case, generator):
    model, (inputs, _), layers = case
    found = find_channels(model, inputs[:8])
    written = {name.rpartition(".")[0] for channel in found.removable for name, _ in channel.writes}
    assert written >= layers
    modules = dict(model.named_modules())
    assert not {name for name in written - layers if isinstance(modules[name], nn.Linear | nn.Conv2d | nn.Conv1d)}
    some = [found.removable[i] for i in torch.randperm(len(found.removable), generator=generator)[: len(found.removable) // 3]]
    unread, smaller = deepcopy(model), deepcopy(model)
    stop_reading(unread, some)
    cut_out(smaller, some)
    assert_close(smaller(inputs), unread(inputs), rtol=1e-5, atol=1e-5)
    sizes = [sum(parameter.numel() for parameter in one.parameters()) for one in (model, smaller)]
    assert sizes[1] == parameters_without(model, some) < sizes[0]
    gone, others = some[1:], [channel for channel in found.removable if channel not in some[1:]]
    without_each = [parameters_without(model, gone) - parameters_without(model, [*gone, channel]) for channel in others]
    assert parameters_of(model, others, gone) == without_each
    assert (smaller(inputs) - model(inputs)).abs().max() > 1e-4  # the channels were for something


@pytest.mark.parametrize("by", ["surgeon", "magnitude"])
def test_layers_become_smaller_and_plain_and_the_model_is_left_alone(case, by):
    model, data, layers = case
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = pruned(model, data, 0.8, by=by, shots=2)
    assert_close(model.state_dict(), before)
    size = sum(parameter.numel() for parameter in found.model.parameters())
    assert found.parameters == (sum(parameter.numel() for parameter in model.parameters()), size)
    assert size <= 0.8 * found.parameters[0]
    assert found.operations[1] < found.operations[0]
    assert found.layers.keys() <= layers
    assert any("reach those of the model" in reason for reason in found.left.values())
    exported = torch.export.export(found.model, (data[0],)).module()
    assert_close(exported(data[0]), found.model(data[0]))
    for module in found.model.modules():
        if isinstance(module, nn.Linear):
            assert tuple(module.weight.shape) == (module.out_features, module.in_features)
    assert "parameters" in str(found)


def test_heads_stay_and_say_why():
    model, inputs = Attention(), torch.randn(8, 5, 3)
    left = find_channels(model, inputs).left
    assert "cannot be called with one less" in left["v"]
    assert "mixed before 'out'" in left["q"]
    assert "reach those of the model" in left["head"]


def trained(generator, hidden=24):
    inputs = torch.randn(300, 6, generator=generator)
    targets = (inputs[:, 0] * inputs[:, 1] > 0).long() + (inputs[:, 2] > 0).long()
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(6, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, 3))
    optimiser = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(150):
        optimiser.zero_grad()
        (
            nn.functional.cross_entropy(model(inputs), targets) + 1e-3 * sum(p.square().sum() for p in model.parameters())
        ).backward()
        optimiser.step()
    return model, (inputs, targets)


@pytest.mark.parametrize("units", ["channels", "weights"])
def test_the_surgeon_keeps_more_of_the_fit_and_more_shots_no_less(units, generator):
    model, data = trained(generator)
    by = {
        (by, shots): pruned(model, data, 0.3, by=by, units=units, shots=shots)
        for by in ("surgeon", "magnitude")
        for shots in (1, 4)
    }
    fits = {key: found.log_likelihood[1] for key, found in by.items()}
    assert max(fits["magnitude", 1], fits["magnitude", 4]) < fits["surgeon", 1] < 0
    assert fits["surgeon", 4] > fits["surgeon", 1] - 0.02
    for found in by.values():
        assert found.parameters[1] <= 0.301 * found.parameters[0]


def test_what_is_there_twice_goes_without_a_loss(generator):
    model, (inputs, targets) = trained(generator, hidden=8)
    twice = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 8), nn.GELU(), nn.Linear(8, 3))
    with torch.no_grad():
        for own, other in zip(twice[0].parameters(), model[0].parameters(), strict=True):
            own.copy_(torch.cat([other, other]))
        share = torch.rand(8, generator=generator)  # which of two goes is open, but not both of them
        twice[2].weight.copy_(torch.cat([share * model[2].weight, (1 - share) * model[2].weight], 1))
        twice[2].bias.copy_(model[2].bias)
        twice[4].load_state_dict(model[4].state_dict())
    keep = sum(p.numel() for p in model.parameters()) / sum(p.numel() for p in twice.parameters())
    prior = sb.ScalarPrior(twice, 1e-4)
    found = pruned(twice, (inputs, targets), keep, prior=prior, shots=1)
    assert found.layers == {"0": (16, 8)}
    assert_close(found.model(inputs), model(inputs), rtol=0.02, atol=0.02)


def test_prune_gives_the_model_and_logs_the_report(generator, caplog):
    model, data = trained(generator, hidden=8)
    with caplog.at_level(logging.INFO, logger="symbayes"):
        smaller = sb.prune(model, data, 0.5, shots=1)
    assert "channels 8 →" in caplog.text
    assert smaller[0].out_features == smaller[2].in_features < 8


def test_a_relaxed_model_is_hardened_first(generator):
    inputs, targets = torch.randn(20, 1, 6, 6, generator=generator), torch.randint(0, 3, (20,), generator=generator)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    relaxed = sb.relax(model, inputs)
    with pytest.raises(ValueError, match="Harden it first"):
        sb.prune(relaxed, (inputs, targets), 0.5)
    smaller = sb.prune(sb.harden(relaxed, inputs), (inputs, targets), 0.6)
    assert smaller[0].out_channels < 4


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, inputs):
        return self.head(torch.relu(self.layer(torch.relu(self.layer(inputs)))))


def tied():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    model[2].weight = model[0].weight
    return model


DATA = torch.randn(10, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2, 0])


@pytest.mark.parametrize(
    ("model", "settings", "words"),
    [
        (nn.Linear(4, 3), {"keep": 0.0}, "keep must be a share"),
        (nn.Linear(4, 3), {"keep": 1.0}, "keep must be a share"),
        (nn.Linear(4, 3), {"by": "luck"}, "'surgeon' or 'magnitude'"),
        (nn.Linear(4, 3), {"units": "filters"}, "'channels', 'weights', 'branches' or 'heads', got 'filters'"),
        (nn.Linear(4, 3), {"shots": 0}, "shots must be at least 1"),
        (nn.ReLU(), {}, "must have parameters"),
        (nn.Linear(4, 3), {}, "no channel that could be removed.*reach those of the model"),
        (Twice(), {}, "'layer': it is called 2 times"),
        (tied(), {}, "'0': its weights are shared"),
        (nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3)), {"keep": 0.1}, "every layer a channel"),
        (nn.Linear(4, 3), {"units": "weights", "keep": 0.1}, "must leave biases"),
        (nn.LayerNorm(4), {"units": "weights"}, "no weight of a linear map"),
        (nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)), {}, "must take inputs of shape"),
    ],
)
def test_what_cannot_be_pruned_is_refused(model, settings, words):
    with pytest.raises(ValueError, match=words):
        sb.prune(model, DATA, **{"keep": 0.5, **settings})


def test_data_and_weights_must_be_finite():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    with pytest.raises(sb.NotFiniteError, match="Inputs must be finite"):
        sb.prune(model, (DATA[0] / 0, DATA[1]), 0.5)
    model[0].weight.data[0, 0] = torch.nan
    with pytest.raises(ValueError, match="'0' gives NaN"):
        sb.prune(model, DATA, 0.5)


def test_a_prior_must_be_of_the_model():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    with pytest.raises(ValueError, match="same trainable tensors"):
        sb.prune(model, DATA, 0.5, prior=sb.ScalarPrior(nn.Linear(4, 3)))


def test_frozen_layers_are_pruned_and_stay_frozen():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    model[0].requires_grad_(False)
    smaller = sb.prune(model, DATA, 0.6)
    assert [p.requires_grad for p in smaller.parameters()] == [False, False, True, True]


def test_weights_that_are_too_large_for_the_factors_of_an_evidence_are_pruned_by_factors(generator, monkeypatch):
    monkeypatch.setattr("symbayes.curvature.memory.LARGEST_SIDE", 30)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 40), nn.ReLU(), nn.Linear(40, 3))
    images = torch.randn(60, 1, 6, 6, generator=generator), torch.arange(60) % 3
    assert sum(p.numel() for p in sb.prune(model, images, keep=0.5).parameters()) < 1000
