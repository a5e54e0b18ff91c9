"""The layout of a model: which maps and tensors it has, and which tensors break which symmetries of the paths beside them."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from symbayes.curvature.kfac import Kfac
from symbayes.data.source import TensorSource
from symbayes.groups.grids import p4
from symbayes.groups.lie import affine2d
from symbayes.groups.permutation import symmetric
from symbayes.invariance.filters import FilterBank
from symbayes.invariance.orbit_average import OrbitAverage
from symbayes.layers.conv import ConvPath
from symbayes.layers.dense import DensePath
from symbayes.layers.factored import FactoredPath
from symbayes.layers.group_conv import GroupConvPath
from symbayes.layers.orbit import OrbitPath
from symbayes.layers.path import Averaging
from symbayes.layers.relaxed import RelaxedLayer
from symbayes.layers.smooth import SparseConvPath
from symbayes.layout import Layout
from symbayes.likelihoods.classes import Categorical
from symbayes.training.symmetries import symmetries

SHAPES = (1, 4, 4), (4, 4, 4)


def broken(**paths):
    found = Layout.of(RelaxedLayer(paths)).tensors.values()
    return {tensor.name.removeprefix("paths."): tensor.breaks for tensor in found if tensor.breaks}


def test_every_tensor_of_a_path_without_a_symmetry_breaks_it():
    paths = {"factored": FactoredPath(*SHAPES), "conv": ConvPath(1, 4)}
    names = [f"factored.{side}.{kind}" for side in ("gather", "scatter") for kind in ("weight", "bias")]
    assert broken(**paths) == dict.fromkeys(names, ("translation",))


def test_a_larger_group_has_the_symmetry_of_a_smaller_one():
    found = broken(dense=DensePath(*SHAPES, bias=False), conv=ConvPath(1, 4), gconv=GroupConvPath(1, 1, p4(), lifting=True))
    assert found == {"dense.weight": ("translation", "p4"), "conv.weight": ("p4",), "conv.bias": ("p4",)}


def test_two_paths_of_the_same_symmetry_break_nothing():
    assert broken(small=ConvPath(1, 4), large=ConvPath(1, 4, (5, 5))) == {}


def test_a_bias_breaks_nothing_where_there_is_one_position():
    pooled = OrbitPath(2, 3, symmetric(4).pooled())
    assert list(broken(dense=DensePath((2, 4), (3, 1)), orbit=pooled)) == ["dense.weight"]
    last = {"factored": FactoredPath((2, 2, 2), (3, 1, 1)), "conv": ConvPath(2, 3, stride=2)}
    assert list(Layout.of(RelaxedLayer(last, stride=2)).tensors.values())[1].breaks == ()
    turned = {"dense": DensePath((1, 1, 1), (4, 1, 1)), "gconv": GroupConvPath(1, 1, p4(), lifting=True)}
    assert list(broken(**turned)) == ["dense.weight", "dense.bias"]  # a bias of their own for turns


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate"])
def test_convolutions_that_are_not_circular_keep_translation_up_to_the_border(mode):
    """They have no exact group, relax nothing, and are relaxed by paths that have not even that."""
    paths = {"factored": FactoredPath(*SHAPES, bias=False), "conv": ConvPath(1, 4, padding_mode=mode)}
    tensors = Layout.of(RelaxedLayer(paths)).tensors
    assert [name for name, tensor in tensors.items() if not tensor.relaxes] == ["paths.conv.weight", "paths.conv.bias"]
    assert paths["conv"].group is None
    gammas = {name: 5.0 if name == "paths.conv.weight" else 0.1 for name in tensors}
    (words,) = symmetries(tensors, dict.fromkeys(tensors, 1.0), gammas).words()
    assert words.startswith("the model keeps translation up to the border (conv 99 % of γ per weight, γ 5.1; ")
    loud = gammas | {"paths.factored.scatter.weight": 3.0}
    (words,) = symmetries(tensors, dict.fromkeys(tensors, 1.0), loud).words()
    assert words.endswith(": factored.scatter.weight (γ 3.0) breaks it")


def test_circular_convolutions_keep_translation_up_to_the_border_too():
    found = broken(zero=ConvPath(1, 4, padding_mode="zeros"), circular=ConvPath(1, 4), dense=DensePath(*SHAPES, bias=False))
    both = ("translation up to the border", "translation")
    assert found == {"zero.weight": ("translation",), "zero.bias": ("translation",), "dense.weight": both}


def test_modules_of_torch_have_no_symmetry_to_keep():
    model = nn.Sequential(RelaxedLayer({"conv": ConvPath(1, 2), "torch": nn.Conv2d(1, 2, 3, padding=1)}))
    assert Layout.of(model).tensors["0.paths.torch.weight"].breaks == ("translation",)
    assert model(torch.zeros(1, 1, 4, 4)).shape == (1, 2, 4, 4)


class Sentence(nn.Module):
    """Maps of all kinds: embedding, attention, norm, linear; and a tensor that belongs to none."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 4, padding_idx=0)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 3)
        self.gain = nn.Parameter(torch.ones(4))


def test_every_tensor_has_one_site_or_is_free():
    model = Sentence()
    model.head.weight.requires_grad_(False)
    layout = Layout.of(model)
    assert list(layout.sites) == ["embedding", "attention.in_proj", "attention.out_proj", "norm", "head"]
    assert layout.free == ("gain",)
    owned = [tensor for site in layout.sites.values() for tensor in (site.weight, site.bias) if tensor]
    assert sorted([*owned, *layout.free]) == sorted(layout.tensors)
    assert {name: site.form.structure for name, site in layout.sites.items() if site.form.structure != "dense"} == {
        "embedding": "one-hot",
        "norm": "diagonal",
    }
    assert {name: site.matrix for name, site in layout.sites.items()} == {
        "embedding": (1, 5, 4),
        "attention.in_proj": (1, 12, 4),
        "attention.out_proj": (1, 4, 4),
        "norm": None,
        "head": None,
    }
    attention = layout.sites["attention.in_proj"]
    assert (attention.module, attention.part, attention.source) == ("attention", "in_proj", "attention.in_proj")
    assert layout.padding == {"embedding": 0}


def test_a_shape_shares_the_source_of_its_map():
    sites = Layout.of(nn.Sequential(SparseConvPath(1, 2, learn_lengthscale=True))).sites
    assert {name: site.source for name, site in sites.items()} == {"0": "0", "0.basis.omega": "0"}


def test_copies_multiply_where_averages_are_nested():
    bank = FilterBank((1, 4, 4), 2, affine2d("rotation"), 5)
    inner = OrbitAverage(nn.Sequential(bank, nn.Linear(2, 2)), affine2d("scale"), 3)
    layout = Layout.of(nn.Sequential(OrbitAverage(inner, affine2d("rotation"), 2), nn.Linear(2, 3)))
    assert {name: site.copies for name, site in layout.sites.items()} == {"0.net.net.0.filters": 6, "0.net.net.1": 6, "1": 1}
    filters = layout.sites["0.net.net.0.filters"]
    assert filters.rows(torch.randn(12, 1, 4, 4)).copies == 30
    assert layout.hyperparameters == ("0.net.net.0.filters.orbit.value", "0.net.orbit.value", "0.orbit.value")


def test_names_of_shared_tensors_lead_to_the_one_they_are_known_by():
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    layout = Layout.of(nn.Sequential(first, nn.Tanh(), second))
    assert layout.shared == {"2.weight": "0.weight"}
    assert layout.unshared == {"0.bias", "2.bias"}


class Mirrored(nn.Module, Averaging):
    """An average of somebody's own: over an input and its mirror image."""

    def __init__(self, inside):
        super().__init__()
        self.inside = inside

    @property
    def copies_inside(self):
        return {"inside": 2}

    def forward(self, inputs):
        both = torch.stack([inputs, inputs.flip(-1)], 1).flatten(0, 1)
        return self.inside(both).unflatten(0, (len(inputs), 2)).mean(1)


class FoldedByHand(nn.Module):
    """The same for a linear network: it may be given the mean of both at once."""

    def __init__(self, inside):
        super().__init__()
        self.inside = inside

    def forward(self, inputs):
        return self.inside((inputs + inputs.flip(-1)) / 2)


def test_a_module_from_outside_declares_its_copies(generator):
    """Of a linear network, the curvature of an average is that of the averaged input."""
    net = nn.Linear(4, 3).double()
    inputs = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    data = TensorSource(inputs, torch.arange(6) % 3, torch.device("cpu"))
    found, wanted = (Kfac().curvature(kind(net), data, Categorical()).blocks for kind in (Mirrored, FoldedByHand))
    for name, block in wanted.items():
        assert_close(found[name].dense(), block.dense())


SITES = {
    "linear": (lambda: nn.Linear(4, 3), lambda g: torch.randn(12, 2, 4, generator=g)),
    "conv": (lambda: nn.Conv2d(2, 4, 3, padding=1, groups=2), lambda g: torch.randn(12, 2, 4, 3, generator=g)),
    "group conv": (lambda: GroupConvPath(1, 2, p4(), lifting=True), lambda g: torch.randn(12, 1, 3, 3, generator=g)),
    "smooth conv": (lambda: SparseConvPath(2, 3), lambda g: torch.randn(12, 2, 4, 3, generator=g)),
    "filters": (lambda: FilterBank((1, 3, 3), 2, affine2d(), 4).filters, lambda g: torch.randn(12, 1, 3, 3, generator=g)),
    "embedding": (lambda: nn.Embedding(5, 3), lambda g: torch.randint(0, 5, (12, 4), generator=g)),
}


class Twice(nn.Module, Averaging):
    """Only says how many copies there are."""

    copies_inside = {"net": 3}  # noqa: RUF012

    def __init__(self, net):
        super().__init__()
        self.net = net


def inside(average, name, generator):
    """A map in an average, what it sees, and its site."""
    build, draw = SITES[name]
    module, inputs = build().double(), draw(generator)
    return module, inputs.double() if inputs.is_floating_point() else inputs, Layout.of(average(module)).sites["net"]


@pytest.mark.parametrize("distinct", [False, True])
@pytest.mark.parametrize("name", SITES)
def test_rows_averaged_by_the_shortcut_are_the_mean_of_rows(name, distinct, generator):
    """In chunks of a datum or more, and by averaging what a map sees, where its rows are linear in that."""
    module, inputs, site = inside(Twice, name, generator)
    wanted = site.form.rows(inputs, distinct=distinct).fold(3).mean_over_copies()
    for budget in (1, 10**6):
        found = list(site.mean_rows(inputs, budget, distinct=distinct))
        assert len(found) == (4 if budget == 1 else 1)
        assert_close(torch.cat([rows.values for rows in found]), wanted.values)
        assert {(rows.copies, rows.structure) for rows in found} == {(1, "dense")}
    outputs = module(inputs)
    gradients = torch.randn(2, *outputs.shape, generator=generator, dtype=outputs.dtype)
    by_copy = site.gradient_rows(gradients)
    summed = by_copy.unflatten(2, (3 * site.form.copies, -1)).sum(2).flatten(0, 1)
    assert_close(site.summed_gradient_rows(gradients), summed)


class Unequal(Twice):
    """The same, with copies that count differently."""

    def copy_weights(self):
        return torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)


@pytest.mark.parametrize("distinct", [False, True])
@pytest.mark.parametrize("name", SITES)
def test_rows_are_averaged_by_what_their_copies_count(name, distinct, generator):
    _, inputs, site = inside(Unequal, name, generator)
    rows = site.form.rows(inputs, distinct=distinct).fold(3)
    inner = rows.copies // 3  # copies that a map makes itself, which count the same
    each = rows.values.unflatten(1, (rows.copies, -1))
    wanted = sum((0.6, 0.3, 0.1)[copy // inner] / inner * each[:, copy].double() for copy in range(rows.copies))
    for budget in (1, 10**6):
        found = torch.cat([rows.values.double() for rows in site.mean_rows(inputs, budget, distinct=distinct)])
        assert_close(found, wanted, rtol=1e-6, atol=1e-7)


def test_what_meets_a_datum_once_is_said_by_the_class_that_has_the_forward_pass():
    class Louder(DensePath):
        def forward(self, inputs):
            return 2 * super().forward(inputs)

    class Renamed(DensePath):
        pass

    class LouderAndSure(Louder):
        def meets_once(self, inputs):
            return True

    patched = DensePath((2,), (2,))
    patched.forward = lambda inputs: inputs
    kinds = {kind: kind((2,), (2,)) for kind in (DensePath, Renamed, Louder, LouderAndSure)}
    found = {kind: Layout.of(path).sites[""].may_meet_once for kind, path in kinds.items()}
    assert found == {DensePath: True, Renamed: True, Louder: False, LouderAndSure: True}
    assert not Layout.of(patched).sites[""].may_meet_once
    assert not any(site.may_meet_once for site in Layout.of(nn.MultiheadAttention(4, 2)).sites.values())
    linear = Layout.of(nn.Linear(2, 2)).sites[""]
    assert linear.form.meets_once(torch.zeros(3, 2))
    assert not linear.form.meets_once(torch.zeros(3, 1, 2))


@pytest.mark.parametrize(
    ("build", "kind", "message"),
    [
        (lambda: nn.DataParallel(nn.Linear(2, 2)), TypeError, "it has a DataParallel"),
        (lambda: nn.LazyLinear(2), ValueError, "has no shape yet"),
        (lambda: nn.Linear(2, 2).half(), ValueError, "must be in single or double precision"),
        (lambda: nn.ReLU(), ValueError, "no trainable parameter"),
    ],
)
def test_models_without_a_layout_are_refused(build, kind, message):
    with pytest.raises(kind, match=message):
        Layout.of(build())
