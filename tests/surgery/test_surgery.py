"""Surgery: a relaxed model computes what it did, a hardened one what was learned, and has nothing of the library."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import symbayes as sb
from symbayes.curvature import Diagonal, Ggn
from symbayes.data.source import as_source
from symbayes.layers.dense import DensePath
from symbayes.layers.factored import FactoredPath
from symbayes.layers.relaxed import RelaxedLayer
from symbayes.layout import Layout
from symbayes.surgery import hardened, pruned
from symbayes.surgery.calls import count
from tests.surgery.alone import assert_loads_alone


class Block(nn.Module):
    """With a residual, norms and a stride."""

    def __init__(self, c, d, stride=1):
        super().__init__()
        self.first, self.norm = nn.Conv2d(c, d, 3, stride, 1, bias=False), nn.BatchNorm2d(d)
        self.second = nn.Conv2d(d, d, 3, 1, 1)
        self.short = nn.Conv2d(c, d, 1, stride)

    def forward(self, inputs):
        return torch.relu(self.short(inputs) + self.second(torch.relu(self.norm(self.first(inputs)))))


def flat(*layers):
    return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(3))


NETWORKS = {
    "residual": (lambda: flat(nn.Conv2d(2, 4, 3, padding=1), Block(4, 6, 2)), (2, 8, 8)),
    "1-d": (lambda: flat(nn.Conv1d(2, 4, 5, padding=2, padding_mode="circular"), nn.ReLU()), (2, 9)),
    "3-d": (lambda: flat(nn.Conv3d(1, 3, 3, padding=1), nn.ReLU()), (1, 4, 4, 3)),
    "settings": (
        lambda: flat(nn.Conv2d(4, 6, (3, 2), (2, 1), (2, 1), (2, 1), 2, padding_mode="reflect"), nn.ReLU()),
        (4, 7, 6),
    ),
    "same": (lambda: flat(nn.Conv2d(2, 3, 3, padding="same"), nn.ReLU(), nn.Conv2d(3, 3, 3, padding="valid")), (2, 6, 6)),
}


@pytest.fixture(params=NETWORKS, ids=str)
def case(request, generator):
    build, shape = NETWORKS[request.param]
    inputs = torch.randn(6, *shape, generator=generator)
    model = build()
    model(inputs)
    return model, inputs


def used(model, names=None):
    """The same with paths that give something."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "paths." in name and ".conv." not in name and (names is None or any(part in name for part in names)):
                parameter.normal_(std=0.2)
    return model


@pytest.mark.parametrize("to", ["factored", "dense", ("factored", "dense")])
def test_a_relaxed_model_computes_what_it_did_and_the_model_is_left_alone(case, to):
    model, inputs = case
    before, kinds = {k: v.clone() for k, v in model.state_dict().items()}, [type(m) for m in model.modules()]
    relaxed = sb.relax(model, inputs, to)
    assert_close(relaxed.eval()(inputs), model.eval()(inputs), rtol=1e-5, atol=1e-6)
    layers = [module for module in relaxed.modules() if isinstance(module, RelaxedLayer)]
    assert all(set(layer.paths) == {"conv", *([to] if isinstance(to, str) else to)} for layer in layers)
    assert_close(model.state_dict(), before)
    assert [type(m) for m in model.modules()] == kinds


def test_layers_are_chosen_by_what_they_see_and_by_name_type_and_function(generator):
    model, inputs = (
        nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.Conv2d(4, 3, 8)
        ),
        torch.randn(2, 2, 8, 8, generator=generator),
    )  # the second and third see no neighbours or channels, the last gives one cell

    def relaxed(**given):
        found = sb.relax(model, inputs, **given)
        return [name for name, module in found.named_children() if isinstance(module, RelaxedLayer)]

    assert relaxed() == ["0"]
    assert relaxed(layers="[02]") == ["0", "2"]
    assert relaxed(layers=nn.Conv2d) == ["0", "1", "2", "3"]
    assert relaxed(layers=["1", "3"]) == ["1", "3"]
    assert relaxed(layers=lambda name, module: name == "2") == ["2"]


def test_device_precision_mode_hooks_and_frozen_weights_are_kept(generator):
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Flatten()).double().eval()
    calls = []
    model[0].register_forward_hook(lambda *given: calls.append(1))
    model[0].weight.requires_grad_(False)
    relaxed = sb.relax(model, torch.randn(2, 1, 4, 4, generator=generator, dtype=torch.float64))
    calls.clear()
    relaxed(torch.zeros(1, 1, 4, 4, dtype=torch.float64))
    assert calls == [1]
    assert not relaxed.training
    assert all(parameter.dtype == torch.float64 for parameter in relaxed.parameters())
    assert "0.paths.conv.module.weight" not in Layout.of(relaxed).tensors


def test_new_paths_break_the_symmetry_of_the_convolution_whatever_its_border(generator):
    for mode, words in (("zeros", "translation up to the border"), ("circular", "translation")):
        model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, padding_mode=mode))
        tensors = Layout.of(sb.relax(model, torch.randn(2, 1, 4, 4, generator=generator))).tensors
        assert {t.relaxes for t in tensors.values() if t.path == "factored"} == {True}
        assert {(t.relaxes, t.symmetry) for t in tensors.values() if t.path == "conv"} == {(False, words)}


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 3, padding=1)

    def forward(self, inputs):
        return self.conv(self.conv(inputs))


class Asks(Twice):
    def forward(self, inputs):
        return self.conv(inputs) * self.conv.weight.sum()


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 1, 3, padding=1), nn.Conv2d(1, 1, 3, padding=1)
        self.b.weight = self.a.weight

    def forward(self, inputs):
        return self.b(self.a(inputs))


class Own(nn.Conv2d):
    def forward(self, inputs):
        return 2 * super().forward(inputs)


@pytest.mark.parametrize(
    ("model", "given", "message"),
    [
        (Twice(), {}, "'conv' is called 2 times"),
        (Asks(), {}, "asks a layer that was relaxed for what a RelaxedLayer does not have"),
        (Shared(), {}, "'a.weight' and 'b.weight' are the same tensor"),
        (nn.Sequential(nn.Flatten(), nn.Linear(16, 2)), {}, "There is no layer to relax to factored"),
        (
            nn.Sequential(nn.Flatten(), nn.Linear(16, 2)),
            {"layers": "1"},
            "'1' cannot be relaxed: a linear layer takes conv",
        ),
        (nn.Sequential(nn.Flatten(), nn.Linear(16, 2)), {"layers": "0"}, "'0' is a Flatten"),
        (nn.Sequential(nn.Flatten(), nn.Linear(16, 2)), {"to": "conv"}, r"grid=\(28, 28\)"),
        (
            nn.Sequential(nn.Flatten(), nn.Linear(16, 2)),
            {"to": "conv", "grid": (4, 4), "layers": "1"},
            r"'1' cannot be relaxed: its 16 and 2 features must be channels of a grid \(4, 4\) of 16 cells",
        ),
        (nn.Sequential(nn.Flatten(), nn.Linear(16, 2)), {"to": sb.groups.cyclic(5), "layers": "1"}, "the 5 points that cyclic"),
        (Twice(), {"to": sb.groups.Translation()}, "to must name some of factored, dense, conv, or be a SpaceGroup"),
        (
            nn.Conv2d(1, 1, (3, 1)),
            {"to": sb.groups.p4(), "layers": ""},
            "filters that turn by p4 have 2 axes of one odd",
        ),
        (Twice(), {"layers": "head*"}, r"'head\*' matches none"),
        (nn.Sequential(Own(1, 1, 3, padding=1)), {"layers": lambda name, _: name == "0"}, "'0' is a Own"),
        (
            Twice(),
            {"to": "gconv"},
            "to must name some of factored, dense, conv, or be a SpaceGroup or Permutations; got 'gconv'",
        ),
        (nn.Sequential(nn.Conv2d(1, 1, 3, padding=1), nn.Dropout2d()), {"to": ()}, "to must name some of"),
    ],
)
def test_what_cannot_be_relaxed_is_named(model, given, message, generator):
    with pytest.raises(ValueError, match=message):
        sb.relax(model, torch.randn(2, 1, 4, 4, generator=generator), **given)


class Attends(nn.Module):
    """With a linear layer that is not called as a module, and one that is called twice."""

    def __init__(self):
        super().__init__()
        self.conv, self.attention = nn.Conv2d(1, 8, 3, padding=1), nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 8)

    def forward(self, inputs):
        tokens = self.conv(inputs).flatten(2).mT
        return self.head(self.head(self.attention(tokens, tokens, tokens)[0].mean(1)))


def test_layers_that_paths_are_not_for_are_left_alone(generator):
    relaxed = sb.relax(Attends(), torch.randn(4, 1, 6, 6, generator=generator))
    assert [name for name, module in relaxed.named_modules() if isinstance(module, RelaxedLayer)] == ["conv"]


@pytest.mark.parametrize("std", [1e-3, 0.0])
def test_layers_that_give_little_are_relaxed(std, generator):
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Flatten())
    nn.init.normal_(model[0].weight, std=std)
    nn.init.zeros_(model[0].bias)
    assert isinstance(sb.relax(model, torch.randn(4, 1, 6, 6, generator=generator))[0], RelaxedLayer)


class Many(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs), inputs


class BatchSecond(nn.Module):
    def __init__(self):
        super().__init__()
        self.map = nn.Linear(4, 4)

    def forward(self, inputs):
        return self.map(inputs[:, 0].transpose(0, 1)).mean(0)


class ByName(Twice):
    def forward(self, inputs):
        return self.conv(input=inputs)


@pytest.mark.parametrize(
    ("model", "given", "message"),
    [
        (nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), Many(4, 2)), {}, "must give a tensor, got a tuple"),
        (ByName(), {}, "'conv' is called otherwise"),
        (BatchSecond(), {"to": "conv", "grid": 4}, "'map' sees .* for each of 2, and"),
        (nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.LazyLinear(2)), {}, "'1.weight' has none yet"),
        (nn.Sequential(nn.Flatten(), nn.Linear(16, 16)), {"to": "conv", "grid": (0, 3)}, r"got \(0, 3\)"),
        (nn.Sequential(nn.Flatten(), nn.Linear(16, 16)), {"to": "conv", "grid": (1, 1, 4, 4)}, "one to three axes"),
        (nn.Sequential(nn.Conv2d(1, 1, 3, padding=(1, 2))), {"to": sb.p4m(), "layers": "0"}, None),
        (nn.Sequential(nn.Flatten(), nn.Linear(16, 5)), {"to": "conv", "grid": 16}, "'1': its 16 and 5 features must be"),
    ],
)
def test_what_is_asked_for_wrongly_is_said(model, given, message, generator):
    inputs = torch.randn(2, 1, 4, 4, generator=generator)
    if message is None:
        sb.relax(model, inputs, **given)
        return
    with pytest.raises(ValueError, match=message):
        sb.relax(model, inputs, **given)


def test_maps_that_do_not_turn_into_themselves_are_refused(generator):
    with pytest.raises(ValueError, match="'0' cannot be relaxed"):
        sb.relax(nn.Sequential(nn.Conv2d(1, 2, 3, padding=1)), torch.randn(2, 1, 4, 6, generator=generator), sb.p4m(), "0")


def test_parts_of_relaxed_layers_are_not_relaxed_again(generator):
    inputs = torch.randn(2, 1, 4, 4, generator=generator)
    once = sb.relax(nn.Sequential(nn.Conv2d(1, 2, 3, padding=1)), inputs)
    with pytest.raises(ValueError, match="is a RelaxedLayer"):
        sb.relax(once, inputs, "dense", layers="0*")
    with pytest.raises(ValueError, match="matches none"):
        sb.relax(once, inputs, "dense", layers=nn.Conv2d)


def test_a_group_may_have_any_name(generator):
    inputs = torch.randn(5, 6, generator=generator)
    for name in ("linear", "my.group"):
        group = sb.groups.Permutations({"r": [1, 2, 3, 4, 5, 0]}, name=name)
        relaxed = sb.relax(nn.Sequential(nn.Linear(6, 6)), inputs, group)
        assert len(relaxed[0].layer.paths) == 2


def test_a_linear_layer_that_is_left_alone_is_itself(generator):
    inputs = torch.randn(20, 6, generator=generator)
    model = nn.Sequential(nn.Linear(6, 6, bias=False), nn.ReLU(), nn.Linear(6, 6)).requires_grad_(False)
    calls = []
    model[0].register_forward_hook(lambda *given: calls.append(1))
    plain = sb.harden(sb.relax(model, inputs, sb.groups.cyclic(6)), inputs)
    assert_close(plain.state_dict(), model.state_dict(), rtol=0, atol=0)
    assert not any(parameter.requires_grad for parameter in plain.parameters())
    calls.clear()
    plain(inputs)
    assert calls == [1]


def test_hooks_that_are_not_linear_are_no_plain_layers(generator):
    inputs = torch.randn(20, 6, generator=generator)
    model = nn.Sequential(nn.Linear(6, 6))
    model[0].register_forward_pre_hook(lambda _, args: (args[0].tanh(),))
    relaxed = sb.relax(model, inputs, sb.groups.cyclic(6))
    with torch.no_grad():
        for parameter in relaxed[0].layer.paths["cyclic_shift"].parameters():
            parameter.normal_(generator=generator)
    with pytest.raises(ValueError, match="Remove hooks that change what relaxed layers see or give"):
        sb.harden(relaxed, inputs)


def test_modes_of_modules_stay_as_they_are(generator):
    inputs = torch.randn(4, 1, 4, 4, generator=generator)
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2)).train()
    model[1].eval()
    plain = sb.harden(sb.relax(model, inputs), inputs)
    assert [module.training for module in plain] == [True, False]


def test_hardening_is_in_the_precision_of_weights(generator):
    inputs = torch.randn(20, 6, generator=generator)
    relaxed = sb.relax(nn.Sequential(nn.Linear(6, 6)), inputs, sb.groups.cyclic(6))
    with torch.no_grad():
        for parameter in relaxed[0].layer.paths["cyclic_shift"].parameters():
            parameter.normal_(generator=generator)
    with torch.autocast("cpu", torch.bfloat16):
        plain = sb.harden(relaxed, inputs)
    assert_close(plain(inputs), relaxed(inputs))


@pytest.mark.parametrize("to", ["factored", "dense"])
def test_a_hardened_model_computes_what_was_learned_by_plain_layers(case, to):
    model, inputs = case
    relaxed = used(sb.relax(model, inputs, to)).eval()
    plain = sb.harden(relaxed, inputs, off=0.0)
    assert not any(type(module).__module__.startswith("symbayes") for module in plain.modules())
    assert_close(plain(inputs), relaxed(inputs), rtol=1e-4, atol=1e-5)


def test_paths_that_change_nothing_are_removed_and_the_network_is_the_one_it_was(case):
    model, inputs = case
    relaxed = sb.relax(model, inputs)
    found = hardened(relaxed, inputs)
    assert str(found.model) == str(model)
    assert_close(found.model.eval()(inputs), model.eval()(inputs))
    assert all(removed == ("factored",) for removed, _ in found.layers.values())
    assert found.parameters[1] == sum(parameter.numel() for parameter in model.parameters()) < found.parameters[0]
    assert found.operations[1] < found.operations[0]
    assert "conv (removed: factored)" in str(found)


def test_biases_over_positions_become_a_map(generator):
    model, inputs = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1)), torch.randn(8, 1, 4, 4, generator=generator)
    relaxed = used(sb.relax(model, inputs), ["scatter.bias"])
    found = hardened(relaxed, inputs)
    assert found.layers["0"] == ((), "biases of factored + conv")
    assert dict(found.model.named_parameters())["0.position_bias"].shape == (2, 4, 4)
    assert_close(found.model(inputs), relaxed(inputs), rtol=1e-4, atol=1e-5)


def test_what_outputs_may_lose_is_bounded_all_together(generator):
    model, inputs = (
        nn.Sequential(*(nn.Conv2d(1, 1, 3, padding=1) for _ in range(3))),
        torch.randn(64, 1, 6, 6, generator=generator),
    )
    relaxed = used(sb.relax(model, inputs))
    with torch.no_grad():
        outputs = relaxed(inputs)
        for off in (1e-3, 1e-1, 0.5):
            change = (sb.harden(relaxed, inputs, off=off)(inputs) - outputs).square().sum()
            assert change <= off * (outputs - outputs.mean(0)).square().sum()


@pytest.mark.parametrize(
    "paths", [("conv",), ("sparse_conv",), ("gconv",), ("sparse_gconv",), ("factored", "conv"), ("dense",)]
)
def test_networks_of_the_library_are_hardened_where_strides_are_plain(paths, generator):
    task = sb.load("placed-digits")
    model = sb.allconv(task, paths, 1, equivariant_stride=False, relaxation=1.0, generator=generator).double()
    inputs = task.train[0][:5].double()
    plain = sb.harden(model, inputs, off=0.0)
    assert type(plain) is nn.Sequential
    assert_close(plain(inputs), model(inputs))


MLP = nn.Sequential(nn.Flatten(), nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 12), nn.ReLU(), nn.Linear(12, 5))


class Mixer(nn.Module):
    """Tokens are mixed by one linear layer, the same for all channels, and channels by another, the same for all tokens."""

    def __init__(self):
        super().__init__()
        self.embed, self.tokens, self.channels = nn.Linear(2, 3), nn.Linear(12, 24), nn.Linear(3, 3)
        self.head = nn.Linear(3, 5)

    def forward(self, inputs):
        features = torch.tanh(self.embed(inputs.mT)).mT  # [n, 3, 12]
        features = torch.tanh(self.tokens(features)).mT  # [n, 24, 3]
        return self.head(self.channels(features).tanh().mean(1))


#: Networks that may gain a symmetry: with what they may become, the layers that are relaxed, and the shape of a datum.
GAINS = {
    "conv": (MLP, {"to": "conv", "grid": (3, 4)}, ["1", "3"], (1, 3, 4)),
    "conv 1-d": (MLP, {"to": "conv", "grid": (12,)}, ["1", "3"], (12,)),
    "cyclic": (MLP, {"to": sb.groups.cyclic(12)}, ["1", "3", "5"], (12,)),
    "sets": (MLP, {"to": sb.groups.symmetric(6)}, ["1", "3", "5"], (2, 6)),
    "mixer": (Mixer(), {"to": "conv", "grid": (4, 3)}, ["tokens"], (2, 12)),
    "mixer, cyclic": (Mixer(), {"to": sb.groups.cyclic(12), "layers": "tokens"}, ["tokens"], (2, 12)),
    "turns": (
        nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 5, padding="same", groups=2), nn.Flatten()),
        {"to": sb.groups.p4m()},
        ["0", "2"],
        (2, 6, 6),
    ),
    "turns and position": (
        nn.Sequential(nn.Conv1d(2, 3, 3, padding=1, padding_mode="circular"), nn.Flatten()),
        {"to": (sb.groups.flips(1), "factored")},
        ["0"],
        (2, 7),
    ),
}


@pytest.fixture(params=GAINS, ids=str)
def gain(request, generator):
    model, given, names, shape = GAINS[request.param]
    inputs = torch.randn(40, *shape, generator=generator, dtype=torch.float64)
    model = deepcopy(model).double()
    return model, sb.relax(model, inputs, **given, generator=generator), names, inputs


def relaxed_layers(model):
    named = {name: module for name, module in model.named_modules() if isinstance(module, RelaxedLayer)}
    return {name.removesuffix(".layer"): module for name, module in named.items()}


def test_layers_that_may_gain_a_symmetry_compute_what_they_did(gain):
    model, relaxed, names, inputs = gain
    assert_close(relaxed(inputs), model(inputs), rtol=1e-5, atol=1e-6)
    assert list(relaxed_layers(relaxed)) == names


def test_what_they_are_breaks_the_symmetry_of_what_they_may_become(gain):
    _, relaxed, _, _ = gain
    tensors = Layout.of(relaxed).tensors
    for name, layer in relaxed_layers(relaxed).items():
        own = list(layer.paths)[0 if "linear" in layer.paths else -1]
        of_layer = {
            path: {t.relaxes for t in tensors.values() if t.layer.startswith(name) and t.path == path} for path in layer.paths
        }
        gained = next(path for path in layer.paths if path not in (own, "factored"))
        assert of_layer[own] == {True}
        assert of_layer[gained] == {False}


def test_their_curvature_is_that_of_the_exact_ggn(gain, generator):
    _, relaxed, _, inputs = gain
    with torch.no_grad():
        for parameter in relaxed.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype) / 3)
    outputs = relaxed(inputs[:4])
    data = as_source((inputs[:4], torch.zeros_like(outputs).detach()), torch.device("cpu"))
    found = Diagonal(batch_size=3).curvature(relaxed, data, sb.Gaussian()).blocks
    wanted = Ggn(joint=False).curvature(relaxed, data, sb.Gaussian()).blocks
    for name, block in wanted.items():
        trace = found[name].eigenvalues.sum()
        assert_close(trace, block.eigenvalues.sum(), rtol=1e-8, atol=1e-12, msg=name)


@pytest.mark.parametrize("kept", ["what it was", "what it may become", "both"])
def test_what_they_became_is_plain_layers(gain, kept, generator):
    model, relaxed, _, inputs = gain
    with torch.no_grad():
        for layer in relaxed_layers(relaxed).values():
            for path, module in layer.paths.items():
                is_old = path == ("linear" if "linear" in layer.paths else "conv")
                for parameter in module.parameters():
                    if kept == "both" or is_old == (kept == "what it was"):
                        parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype) / 3)
                    else:
                        parameter.zero_()
    plain = sb.harden(relaxed, inputs, off=0.0)
    assert_close(plain(inputs), relaxed(inputs))
    if kept == "what it was":
        assert [type(module) for module in plain.children()] == [type(module) for module in model.children()]
    if kept == "both":
        exported = torch.export.export(plain.eval(), (inputs,))
        assert_close(exported.module()(inputs), relaxed(inputs))


def test_a_layer_that_became_a_convolution_is_one(generator):
    inputs = torch.randn(4, 1, 3, 4, generator=generator)
    relaxed = sb.relax(MLP, inputs, "conv", grid=(3, 4), generator=generator)
    with torch.no_grad():
        for layer in relaxed_layers(relaxed).values():
            for parameter in layer.paths["linear"].parameters():
                parameter.zero_()
            layer.paths["conv"].weight.normal_(generator=generator)
    found = hardened(relaxed, inputs)
    assert [type(module) for module in found.model[1]] == [nn.Unflatten, nn.Conv2d, nn.Flatten]
    assert found.parameters[1] < found.parameters[0] / 3


def test_filters_of_a_group_turn_with_the_map(generator):
    path = sb.layers.SymmetricConvPath(2, 3, sb.groups.p4m(), 3, generator=generator).double()
    filters = path.filters()
    assert path.weight.shape[2] == 3  # the centre, edges and corners
    assert_close(filters, filters.rot90(dims=(2, 3)))
    assert_close(filters, filters.flip(2))


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (lambda: nn.Linear(6, 4), (6,)),
        (lambda: nn.Conv1d(2, 3, 3, padding=1), (2, 5)),
        (lambda: nn.Conv2d(2, 3, 3, 2), (2, 5, 5)),
        (lambda: nn.Conv3d(1, 2, 2), (1, 3, 3, 3)),
    ],
)
def test_paths_that_are_layers_of_torch_stay_as_they_are(build, shape, generator):
    inputs = torch.randn(4, *shape, generator=generator)
    layer = RelaxedLayer({"a": build(), "b": build()})
    plain = sb.harden(layer, inputs, off=0.0)
    assert_close(plain(inputs), layer(inputs))
    assert {type(module) for module in plain.children()} == {type(build())}
    alone = RelaxedLayer({"a": build()})
    assert type(sb.harden(alone, inputs, off=0.0)) is type(build())


def test_what_cannot_be_hardened_is_named(generator):
    task = sb.load("placed-digits")
    inputs = task.train[0][:5]
    with pytest.raises(ValueError, match=r"'block2' has one. Build the network with equivariant_stride=False"):
        sb.harden(sb.allconv(task, ("conv",), 1), inputs)
    with pytest.raises(ValueError, match="no relaxed layer to harden, and no average"):
        sb.harden(nn.Linear(2, 2), torch.zeros(1, 2))
    with pytest.raises(ValueError, match=r"'the model' is a DiscreteAverage, which has no plain form"):
        sb.harden(sb.DiscreteAverage(nn.Flatten(), [sb.groups.mirror("x")]), inputs)
    with pytest.raises(ValueError, match="off must be a share"):
        sb.harden(RelaxedLayer({"a": nn.Linear(2, 2)}), torch.zeros(1, 2), off=1.0)
    layer = RelaxedLayer({"factored": FactoredPath((1, 4, 4), (2, 4, 4))})
    inside = nn.Sequential(layer, nn.Flatten(), DensePath((32,), (3,)))
    with pytest.raises(ValueError, match=r"'2' is a DensePath, which has no plain form. Harden the parts"):
        sb.harden(inside, torch.randn(2, 1, 4, 4, generator=generator))
    parts = (torch.randn(3, 1, 4, 4, generator=generator), torch.randn(3, 1, 4, 4, generator=generator))
    several = sb.Packed(Sum(layer), parts)
    with pytest.raises(ValueError, match=r"'the model' is a Packed, .*of sb.Packed its network, with a tuple of inputs"):
        sb.harden(several, several.pack(parts))
    assert_close(sb.harden(several.network, parts)(*parts), several(several.pack(parts)))


class Sum(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, first, second):
        return self.layer(first + second).flatten(1)


def test_what_is_at_positions_gives_its_grid_again(generator):
    inputs = torch.randn(5, 1, 4, 4, generator=generator)
    relaxed = used(sb.relax(sb.AtPositions(nn.Sequential(nn.Conv2d(1, 2, 3, padding=1))), inputs))
    plain = sb.harden(relaxed, inputs, off=0.0)
    assert plain(inputs).shape == (5, 2, 4, 4)
    assert_close(plain(inputs).movedim(1, -1).flatten(1), relaxed(inputs), rtol=1e-4, atol=1e-5)


def test_a_hardened_model_is_exported_and_loaded_without_the_library(generator, tmp_path):
    inputs = torch.randn(4, 1, 6, 6, generator=generator)
    relaxed = used(sb.relax(nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Flatten()), inputs))
    plain = sb.harden(relaxed, inputs, off=0.0).eval()
    exported = torch.export.export(plain, (inputs,))
    assert_close(exported.module()(inputs), relaxed(inputs), rtol=1e-4, atol=1e-5)
    assert_loads_alone(plain, inputs, plain(inputs), tmp_path)


def test_a_network_of_a_user_is_relaxed_learned_and_hardened():
    task = sb.load("quadrant-digits").subset(200)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.LazyLinear(40)
    )
    model(task.train[0][:2])
    result = sb.fit(sb.relax(model, task.train[0][:2]), task.train, epochs=2, progress=False)
    rows = {(row.layer, row.path): row for row in result.symmetries.rows}
    assert rows["0", "factored"].relaxes
    assert rows["0", "conv"].error is not None
    assert rows["0", "conv"].energy > 0.9
    assert len(result.symmetries.words()) == 2
    found = hardened(result.model, task.train[0])
    assert found.change < 0.2


@pytest.fixture
def learned(generator):
    """A relaxed model whose second paths give nothing, and data."""
    inputs, targets = torch.randn(40, 1, 6, 6, generator=generator), torch.arange(40) % 3
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(288, 3))
    return sb.relax(model, inputs), (inputs, targets)


def test_a_model_is_hardened_and_pruned_in_one_call(learned):
    model, data = learned
    found = hardened(model, data[0], prune=0.5, data=data)
    plain = hardened(model, data[0])
    wanted = pruned(plain.model, data, 0.5)
    assert_close(found.model(data[0]), wanted.model(data[0]))
    assert count(found.model) <= count(plain.model) / 2
    assert (found.layers, found.parameters) == (plain.layers, plain.parameters)
    assert str(found).endswith(f"then pruned:\n{wanted}")
    assert "then pruned" not in str(plain)
    assert found.pruned is not None
    assert count(sb.harden(model, data[0], prune=0.5, data=data)) == found.pruned.parameters[1]


def test_an_average_is_pruned_with_its_network(learned):
    model, data = learned
    average = sb.OrbitAverage(model, sb.affine2d("rotation").starting(0.5), 4).eval()
    found = hardened(average, data[0], off=0.0, prune=0.5, data=data)
    assert found.pruned.layers["net.0.conv"] == (8, len(found.model.net[0].conv.weight))
    assert len(found.model.net[0].conv.weight) < 8


@pytest.mark.parametrize("channels_last", [False, True])
def test_a_network_at_positions_is_hardened_and_pruned(channels_last, generator):
    layers = [nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 1)]
    network = nn.Sequential(*layers, *([Last()] if channels_last else []))
    inputs = torch.randn(20, 1, 5, 6, generator=generator)
    data, likelihood = (inputs, (inputs[:, 0] > 0.3).long()), sb.PerPosition(sb.Categorical(), 2)
    model = sb.relax(sb.AtPositions(network, channels_last=channels_last), inputs)
    found = hardened(model, inputs, prune=0.6, data=data, likelihood=likelihood)
    assert not any(isinstance(module, sb.AtPositions) for module in found.model.modules())
    assert found.model(inputs).shape == ((20, 5, 6, 2) if channels_last else (20, 2, 5, 6))
    assert found.pruned.model is found.model
    assert found.pruned.layers == {"0": (8, len(found.model[0].weight))}
    assert count(found.model) == found.pruned.parameters[1] <= 0.6 * found.parameters[1]


class Last(nn.Module):
    """Channels."""

    def forward(self, x):
        return x.movedim(1, -1)


def test_what_a_model_is_pruned_by_is_asked_for(learned):
    model, (inputs, targets) = learned
    with pytest.raises(ValueError, match=r"prune and data go together: .* got prune=0.5 and no data. Give both"):
        sb.harden(model, inputs, prune=0.5)
    with pytest.raises(ValueError, match=r"got prune=None and data. Give both, or neither"):
        sb.harden(model, inputs, data=(inputs, targets))
    with pytest.raises(ValueError, match=r"prune must be the share of parameters to keep, .* got 1.5"):
        sb.harden(model, inputs, prune=1.5, data=(inputs, targets))
    with pytest.raises(ValueError, match=r"likelihood is for prune, .* got a Gaussian and no prune. Leave it out"):
        sb.harden(model, inputs, likelihood=sb.Gaussian())


def test_the_likelihood_of_targets_is_that_given(learned):
    model, (inputs, _) = learned
    values = torch.zeros(40, 3)
    found = hardened(model, inputs, prune=0.5, data=(inputs, values), likelihood=sb.Gaussian())
    assert found.pruned.parameters[1] < found.parameters[1]
