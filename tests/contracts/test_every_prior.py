"""The contract of every prior: a normalised density, with every trainable tensor in one group."""

import pytest
import torch
from torch import nn
from torch.distributions import Normal
from torch.testing import assert_close

from symbayes.groups.grids import Translation, p4, p4m
from symbayes.layers.conv import ConvPath
from symbayes.layers.dense import DensePath
from symbayes.layers.factored import FactoredPath
from symbayes.layers.group_conv import GroupConvPath
from symbayes.layers.relaxed import RelaxedLayer
from symbayes.layers.smooth import SparseConvPath, SparseFactoredPath
from symbayes.layout import Layout
from symbayes.priors import LayerwisePrior, PathwisePrior, Prior, ScalarPrior, TensorwisePrior

KINDS = [ScalarPrior, LayerwisePrior, PathwisePrior, TensorwisePrior]


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_a_normal_density_over_all_trainable_tensors(kind, generator):
    paths = {"conv": ConvPath(1, 2, (3, 3)), "factored": FactoredPath((1, 3, 3), (2, 3, 3))}
    model = nn.Sequential(RelaxedLayer(paths), nn.Flatten(), nn.Linear(18, 3)).double()
    model[2].bias.requires_grad_(False)
    prior = kind(model)
    with torch.no_grad():
        prior.log_precision.normal_(generator=generator)
    weights = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    assert prior.group_of.keys() == weights.keys()
    wanted = sum(Normal(0, prior.precisions()[name].rsqrt()).log_prob(weight).sum() for name, weight in weights.items())
    assert_close(prior.log_prob(weights), wanted)


def sparse():
    learned = {"learn_lengthscale": True}
    paths = {"conv": SparseConvPath(1, 2, **learned), "sparse": SparseFactoredPath((1, 3, 3), (2, 3, 3), **learned)}
    return nn.Sequential(RelaxedLayer(paths), nn.Flatten(), nn.Linear(18, 3))


@pytest.mark.parametrize("kind", KINDS)
def test_a_lengthscale_shares_its_precision_with_nothing(kind):
    prior = kind(sparse())
    omegas = [name for name in prior.group_of if name.endswith("omega")]
    assert len(omegas) == 3
    for omega in omegas:
        assert [name for name, group in prior.group_of.items() if group == prior.group_of[omega]] == [omega]


@pytest.mark.parametrize("kind", KINDS)
def test_only_precisions_that_are_learned_get_gradients(kind):
    model = sparse().double()
    prior = kind(model, 3.0, learn=["*omega"])
    weights = {name: p.detach() for name, p in model.named_parameters()}
    assert_close(prior.log_prob(weights), kind(model, 3.0).log_prob(weights))
    (found,) = torch.autograd.grad(prior.log_prob(weights), prior.log_precision)
    everything = kind(model, 3.0)
    (wanted,) = torch.autograd.grad(everything.log_prob(weights), everything.log_precision)
    assert prior.learned.tolist() == [group.endswith("omega") for group in prior.groups]
    assert_close(found, torch.where(prior.learned, wanted, 0))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: TensorwisePrior(sparse(), learn=["*lengthscale"]), r"'\*lengthscale' matches none of 0\.paths\.conv\.weight"),
        (lambda: PathwisePrior(sparse(), learn=["*conv.weight"]), "'0.paths.conv.bias' is left out of the group '0/conv'"),
        (lambda: TensorwisePrior(sparse(), 0.0), "precision must be positive and finite, got 0.0"),
    ],
)
def test_what_cannot_be_is_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_no_prior_is_missing():
    assert set(KINDS) == {kind for kind in Prior.__subclasses__() if kind.__module__.startswith("symbayes.")}


def relaxed_to_nothing():
    paths = {"conv": ConvPath(1, 2, scale=0.1), "factored": FactoredPath((1, 4, 4), (2, 4, 4), scale=0.001)}
    return nn.Sequential(RelaxedLayer(paths), nn.Flatten(), nn.Linear(32, 3))


@pytest.mark.parametrize("kind", [PathwisePrior, TensorwisePrior])
def test_paths_that_break_a_symmetry_begin_at_a_precision_of_their_small_weights(kind):
    model = relaxed_to_nothing()
    prior = kind(model, precision=2.0, symmetric_start=True)
    precisions = {name: value.item() for name, value in prior.precisions().items()}
    factored = dict(model[0].paths["factored"].named_parameters())
    weights = [factored["gather.weight"], factored["scatter.weight"]]
    together = 1 / torch.cat([weight.flatten() for weight in weights]).square().mean().item()
    alone = 1 / weights[0].square().mean().item()
    wanted = together if kind is PathwisePrior else alone
    assert precisions.pop("0.paths.factored.gather.weight") == pytest.approx(wanted, rel=1e-4)
    assert precisions.pop("0.paths.factored.gather.bias") == pytest.approx(together, rel=1e-4)
    assert all(value > 30 for name, value in precisions.items() if "factored" in name)
    assert all(value == pytest.approx(2) for name, value in precisions.items() if "factored" not in name)


@pytest.mark.parametrize("kind", [ScalarPrior, LayerwisePrior])
def test_precisions_that_paths_share_cannot_begin_apart(kind):
    with pytest.raises(ValueError, match=f"path 'factored' of layer '0' would not begin switched off with {kind.__name__}"):
        kind(relaxed_to_nothing(), symmetric_start=True)


def test_paths_that_cannot_begin_switched_off_are_named():
    model = relaxed_to_nothing()
    with pytest.raises(ValueError, match="needs a RelaxedLayer in which one path keeps a symmetry that another breaks"):
        TensorwisePrior(model[2:], symmetric_start=True)
    with torch.no_grad():
        for weight in model[0].paths["factored"].parameters():
            weight.zero_()
    with pytest.raises(ValueError, match="path 'factored' of layer '0' would not begin switched off"):
        TensorwisePrior(model, symmetric_start=True)
    dense = RelaxedLayer({"conv": ConvPath(1, 2), "dense": DensePath((1, 2, 2), (2, 2, 2), scale=2.0)})
    with pytest.raises(ValueError, match="path 'dense' of layer ''"):
        TensorwisePrior(dense, symmetric_start=True)


def test_only_the_paths_that_are_named_begin_switched_off():
    conv, dense = ConvPath(4, 4, scale=0.1), DensePath((4, 3, 3), (4, 3, 3), scale=0.1)
    model = nn.Sequential(RelaxedLayer({"gconv": GroupConvPath(1, 1, p4()), "conv": conv, "dense": dense}))
    for named, off in ((["dense"], {"dense"}), (True, {"conv", "dense"}), ((), set())):
        precisions = TensorwisePrior(model, symmetric_start=named).precisions()
        assert {name.split(".")[2] for name, value in precisions.items() if value > 10} == off
    with pytest.raises(ValueError, match=r"must name paths that break a symmetry \(conv, dense\), got 'gconv'"):
        TensorwisePrior(model, symmetric_start=["conv", "gconv"])


def test_a_convolution_relaxes_a_group_convolution_and_not_the_other_way_round():
    paths = {"conv": ConvPath(4, 4), "gconv": GroupConvPath(1, 1, p4()), "dense": DensePath((4, 3, 3), (4, 3, 3))}
    tensors = Layout.of(nn.Sequential(RelaxedLayer(paths))).tensors
    assert {tensor.path: tensor.relaxes for tensor in tensors.values()} == {"conv": True, "gconv": False, "dense": True}
    assert p4m().extends(p4())
    assert not p4().extends(p4())
    assert not p4().extends(p4m())
    assert not Translation().extends(p4())
