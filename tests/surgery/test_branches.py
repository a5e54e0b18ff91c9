"""Branches: found by looking, gone as if their last maps were zero, and those first that cost least."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import symbayes as sb
from symbayes.surgery import pruned
from symbayes.surgery.branches import Branch, find_branches, without_branch
from symbayes.surgery.calls import count, operations
from tests.surgery.alone import assert_loads_alone


class BasicBlock(nn.Module):
    """As in torchvision: a ReLU that is called twice and works in place, a sum in place, a shortcut where shapes change."""

    def __init__(self, c, d, stride=1):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(c, d, 3, stride, 1, bias=False), nn.BatchNorm2d(d)
        self.relu = nn.ReLU(inplace=True)
        self.conv2, self.bn2 = nn.Conv2d(d, d, 3, 1, 1, bias=False), nn.BatchNorm2d(d)
        self.downsample = None if c == d else nn.Sequential(nn.Conv2d(c, d, 1, stride, bias=False), nn.BatchNorm2d(d))

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class PreNorm(nn.Module):
    """A block of a transformer as many write it: attention gives two things, and is called with keywords."""

    def __init__(self, d=8):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(d), nn.MultiheadAttention(d, 2, batch_first=True)
        self.norm2, self.mlp = nn.LayerNorm(d), nn.Sequential(nn.Linear(d, 12), nn.GELU(), nn.Linear(12, d))

    def forward(self, x):
        h = self.norm1(x)
        given, _ = self.attn(h, h, h, need_weights=False)
        x = x + given
        return x + self.mlp(self.norm2(x))


class Tokens(nn.Module):
    """With torch's own layers, on whole numbers."""

    def __init__(self, norm_first):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, norm_first=norm_first)
        self.embedding, self.positions = nn.Embedding(9, 8), nn.Embedding(6, 8)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        hidden = self.embedding(x) + self.positions(torch.arange(x.shape[1]))
        return self.head(self.encoder(hidden).mean(1))


def resnet():
    blocks = [BasicBlock(4, 4), BasicBlock(4, 6, 2), BasicBlock(6, 6)]
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))


def transformer():
    return nn.Sequential(nn.Linear(5, 8), PreNorm(), PreNorm(), nn.Flatten(), nn.Linear(48, 3))


def images(n, generator):
    return torch.randn(n, 1, 8, 8, generator=generator)


def vectors(n, generator):
    return torch.randn(n, 6, 5, generator=generator)


def tokens(n, generator):
    return torch.randint(9, (n, 6), generator=generator)


def of_layer(number, norm_first):
    """The branches of one of torch's layers."""
    parts = {"dropout1": ["self_attn"], "dropout2": ["linear1", "dropout", "linear2"]}
    norms = {"dropout1": ["norm1"], "dropout2": ["norm2"]} if norm_first else {"dropout1": [], "dropout2": []}
    path = f"encoder.layers.{number}."
    return {f"{path}{end}": {f"{path}{part}" for part in [*parts[end], *norms[end]]} for end in parts}


#: What torch's layers have in front of what ends a branch.
LAST = {"dropout1": "self_attn.out_proj", "dropout2": "linear2"}
#: A network, its data, its branches, and the tensors that are zero where one is gone.
CASES = {
    "resnet": (
        resnet,
        images,
        {
            "1.bn2": {"1.conv1", "1.bn1", "1.conv2"},
            "2.bn2": {"2.conv1", "2.bn1", "2.conv2"},
            "2.downsample": set(),
            "3.bn2": {"3.conv1", "3.bn1", "3.conv2"},
        },
        lambda end: [f"{end}.{own}".replace("sample.", "sample.1.") for own in ("weight", "bias")],
    ),
    "transformer": (
        transformer,
        vectors,
        {"1.attn": {"1.norm1"}, "1.mlp": {"1.norm2"}, "2.attn": {"2.norm1"}, "2.mlp": {"2.norm2"}},
        lambda end: [f"{end}.{'out_proj' if 'attn' in end else '2'}.{own}" for own in ("weight", "bias")],
    ),
    **{
        f"torch's layers, norms {'first' if first else 'last'}": (
            lambda first=first: Tokens(first),
            tokens,
            of_layer(0, first) | of_layer(1, first),
            lambda end: [f"{end[:-8]}{LAST[end[-8:]]}.{own}" for own in ("weight", "bias")],
        )
        for first in (True, False)
    },
}


@pytest.fixture(params=CASES, ids=str)
def case(request, generator):
    build, data, branches, zeros = CASES[request.param]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(std=0.1)
                module.bias.data.normal_(std=0.1)
    return model.eval(), data(8, generator), branches, zeros


def zeroed(model, names):
    """The same with some tensors that are zero."""
    model = deepcopy(model)
    with torch.no_grad():
        for name in names:
            model.get_parameter(name).zero_()
    return model


def test_branches_are_found_by_looking(case):
    model, inputs, branches, _ = case
    assert {found.end: set(found.others) for found in find_branches(model, inputs)} == branches


def test_a_model_without_a_branch_is_one_whose_last_maps_are_zero(case):
    model, inputs, _, zeros = case
    for branch in find_branches(model, inputs):
        smaller, wanted = without_branch(model, inputs, branch), zeroed(model, zeros(branch.end))
        gone = sum(count(model.get_submodule(name)) for name in (branch.end, *branch.others))
        assert count(smaller) == count(model) - gone < count(model)
        assert operations(smaller, (inputs,)) < operations(model, (inputs,))
        assert all(type(module).__module__.startswith(("torch.", __name__)) for module in smaller.modules())
        for some in (inputs, inputs[:3]):
            assert_close(smaller(some), wanted(some), rtol=1e-4, atol=1e-5)
            with torch.no_grad():  # in which torch has ways of its own to evaluate transformers
                assert_close(deepcopy(smaller)(some), wanted(some), rtol=1e-4, atol=1e-5)
        assert_close(smaller.train()(inputs).shape, wanted(inputs).shape)


def test_a_branch_that_keeps_shapes_is_gone_for_data_of_any_size(generator):
    model = resnet().eval()
    smaller = without_branch(model, images(4, generator), Branch("1.bn2", ("1.conv1", "1.bn1", "1.conv2")))
    other = torch.randn(3, 1, 12, 10, generator=generator)
    assert_close(smaller(other), zeroed(model, ["1.bn2.weight", "1.bn2.bias"])(other))


class Concatenated(nn.Module):
    def __init__(self):
        super().__init__()
        self.more, self.last = nn.Sequential(nn.Linear(4, 3), nn.ReLU()), nn.Linear(7, 2)

    def forward(self, x):
        return self.last(torch.cat([x, self.more(x)], 1))


class Own(nn.Module):
    """Asks a part of its branch for its weight."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return x + self.last(self.first(x)) / (1 + self.first.weight.square().sum())


class Named(nn.Module):
    """Gives something else than tensors."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return {"hidden": self.layer(x)}


class Reading(nn.Module):
    def __init__(self):
        super().__init__()
        self.part, self.last = Named(), nn.Linear(4, 4)

    def forward(self, x):
        return x + self.last(self.part(x)["hidden"])


def test_what_gives_more_than_tensors_is_no_end_and_stays_in_its_branch(generator):
    model, inputs = Reading(), torch.randn(6, 4, generator=generator)
    (branch,) = find_branches(model, inputs)
    assert branch == Branch("last", ("part.layer",))
    smaller = without_branch(model, inputs, branch)
    assert count(smaller) == 0
    assert_close(smaller(inputs), inputs)


def test_what_data_do_not_flow_around_is_no_branch(generator):
    inputs = torch.randn(6, 4, generator=generator)
    assert find_branches(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), inputs) == []
    assert [branch.end for branch in find_branches(Concatenated(), inputs)] == ["more"]
    twice = nn.Linear(4, 4)
    assert find_branches(nn.Sequential(Own(), twice, nn.ReLU(), twice), inputs) == [Branch("0.last", ("0.first",))]


def costs(model, data, ends, zeros):
    """What the log-likelihood per datum falls by for each parameter, from models with zeros."""
    fit = lambda model: -float(nn.functional.cross_entropy(model.eval()(data[0]), data[1]).detach())  # noqa: E731
    return {
        end: (fit(model) - fit(zeroed(model, zeros(end)))) / sum(count(model.get_submodule(name)) for name in (end, *others))
        for end, others in ends.items()
    }


def test_what_costs_least_for_each_parameter_goes_first(case, generator):
    model, inputs, branches, zeros = case
    data = (inputs, torch.randint(3, (len(inputs),), generator=generator))
    cheapest = costs(model, data, branches, zeros)
    (first,) = pruned(model, data, 0.999, units="branches").layers
    assert first == min(cheapest, key=cheapest.__getitem__)
    every = pruned(model, data, 0.5, units="branches")
    assert next(iter(every.layers)) == first
    rest = zeroed(model, zeros(first))
    second = costs(rest, data, {end: others for end, others in branches.items() if end != first}, zeros)
    if first not in ("2.bn2", "2.downsample"):  # without one the other is no branch
        assert list(every.layers)[1] == min(second, key=second.__getitem__)
    assert count(every.model) <= count(model) / 2
    assert every.parameters == (count(model), count(every.model))
    assert "parameters of the branch" in str(every)


def test_branches_stay_whose_loss_would_be_too_much(generator):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = resnet().eval()
    data = (images(30, generator), torch.arange(30) % 3)
    with torch.no_grad():
        for parameter in (*model[1].bn2.parameters(), *model[3].bn2.parameters()):
            parameter.mul_(1e-4)
    found = pruned(model, data, 0.01, units="branches", lose=1e-3)
    assert {"1.bn2", "3.bn2"} <= set(found.layers)
    assert found.log_likelihood[0] - found.log_likelihood[1] <= 1e-3
    assert len(pruned(model, data, 0.01, units="branches", lose=100.0).layers) == 3  # a shortcut or what stands beside it
    assert pruned(model, data, 0.999, units="branches", lose=100.0).layers.keys() == {next(iter(found.layers))}


def test_one_way_around_is_left(generator):
    model, data = nn.Sequential(BasicBlock(1, 3), nn.Flatten(), nn.Linear(192, 3)), (images(9, generator), torch.arange(9) % 3)
    found = pruned(model, data, 0.01, units="branches", lose=1e3)
    assert len(found.layers) == 1  # the shortcut, or what stands beside it


def test_what_is_left_is_copied_exported_and_learned(case):
    model, inputs, _, _ = case
    data = (inputs, torch.arange(len(inputs)) % 3)
    smaller = sb.prune(model, data, 0.7, units="branches").eval()
    assert_close(deepcopy(smaller)(inputs), smaller(inputs))
    exported = torch.export.export(smaller, (inputs,), dynamic_shapes=({0: torch.export.Dim("n")},)).module()
    assert_close(exported(inputs[:3]), smaller(inputs[:3]), rtol=1e-4, atol=1e-5)
    result = sb.fit(smaller, data, epochs=1, progress=False)
    assert result.model(inputs).isfinite().all()


def test_what_is_left_is_loaded_without_the_library(generator, tmp_path):
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, norm_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    model, inputs = nn.Sequential(nn.Linear(5, 8), encoder, nn.Flatten(), nn.Linear(48, 3)), vectors(6, generator)
    smaller = sb.prune(model, (inputs, torch.arange(6) % 3), 0.3, units="branches").eval()
    assert_loads_alone(smaller, inputs, smaller(inputs), tmp_path)


def test_what_cannot_be_dropped_says_why(generator):
    data = (torch.randn(12, 4, generator=generator), torch.arange(12) % 4)
    with pytest.raises(ValueError, match=r"at least 40 parameters; got 20. '0.last' stays, since the model cannot be called"):
        sb.prune(nn.Sequential(Own()), data, 0.5, units="branches")
    found = pruned(nn.Sequential(Own()), data, 0.5, units="branches", lose=1.0)
    assert found.layers == {}
    assert "0.last: left as it is, since the model cannot be called without it" in str(found)


def test_a_branch_whose_parameters_stay_in_use_stays(generator):
    model, data = transformer(), (vectors(12, generator), torch.arange(12) % 3)
    model[1].norm2, model[1].mlp[0] = nn.Identity(), nn.Linear(8, 8)
    model[1].mlp[2] = model[1].mlp[0]
    model.insert(1, model[1].mlp[0])  # around which no data flow
    found = pruned(model, data, 0.8, units="branches")
    assert found.left["2.mlp"] == "its parameters are used elsewhere, too"
    assert "2.mlp" not in found.layers
    assert found.layers


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"units": "branches", "by": "magnitude"}, "by no magnitude or prior; got by='magnitude'. Leave it out"),
        ({"units": "branches", "prior": "one"}, "by no magnitude or prior; got a prior. Leave it out"),
        ({"units": "branches", "lose": -1.0}, "lose must be nats of log-likelihood per datum, at least 0; got -1.0"),
        ({"lose": 0.1}, "lose is for units='branches', whose cost is exact; got units='channels'. Leave it out"),
    ],
)
def test_what_is_not_for_branches_is_refused(settings, words, generator):
    model, data = transformer(), (vectors(4, generator), torch.arange(4) % 3)
    if "prior" in settings:
        settings = settings | {"prior": sb.ScalarPrior(model)}
    with pytest.raises(ValueError, match=words):
        sb.prune(model, data, 0.5, **settings)
