"""The contract of every prior: a normalised density, with every trainable tensor in one group."""

import pytest
import torch
from torch import nn
from torch.distributions import Normal
from torch.testing import assert_close

from symbayes.layers.conv import ConvPath
from symbayes.layers.factored import FactoredPath
from symbayes.layers.relaxed import RelaxedLayer
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


def test_no_prior_is_missing():
    assert set(KINDS) == {kind for kind in Prior.__subclasses__() if kind.__module__.startswith("symbayes.")}
