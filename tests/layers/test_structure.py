"""Which tensors break which symmetries of the paths beside them."""

import pytest
import torch
from torch import nn

from symbayes.groups.grids import p4
from symbayes.groups.permutation import symmetric
from symbayes.layers.conv import ConvPath
from symbayes.layers.dense import DensePath
from symbayes.layers.factored import FactoredPath
from symbayes.layers.group_conv import GroupConvPath
from symbayes.layers.orbit import OrbitPath
from symbayes.layers.relaxed import RelaxedLayer
from symbayes.layers.structure import weight_tensors
from symbayes.training.symmetries import symmetries

SHAPES = (1, 4, 4), (4, 4, 4)


def broken(**paths):
    found = weight_tensors(RelaxedLayer(paths)).values()
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
    assert list(weight_tensors(RelaxedLayer(last, stride=2)).values())[1].breaks == ()
    turned = {"dense": DensePath((1, 1, 1), (4, 1, 1)), "gconv": GroupConvPath(1, 1, p4(), lifting=True)}
    assert list(broken(**turned)) == ["dense.weight", "dense.bias"]  # a bias of their own for turns


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate"])
def test_convolutions_that_are_not_circular_keep_translation_up_to_the_border(mode):
    """In words alone: they have no group, relax nothing, and nothing relaxes them."""
    paths = {"factored": FactoredPath(*SHAPES, bias=False), "conv": ConvPath(1, 4, padding_mode=mode)}
    tensors = weight_tensors(RelaxedLayer(paths))
    assert not any(tensor.relaxes for tensor in tensors.values())
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
    assert weight_tensors(model)["0.paths.torch.weight"].breaks == ("translation",)
    assert model(torch.zeros(1, 1, 4, 4)).shape == (1, 2, 4, 4)
