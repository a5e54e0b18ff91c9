"""What every variational family owes: every weight in one part, the divergence of dense normals, draws, gradients."""

import pytest
import torch
from torch import nn

import symbayes as sb
from symbayes.posterior.families import Family

FAMILIES = {
    "mean-field": sb.MeanField(),
    "matrix-normal": sb.MatrixNormal(),
    "matrix-normal, diagonal factors": sb.MatrixNormal(diagonal=True),
    "full covariance": sb.posterior.FullCovariance(),
    "biases by themselves": sb.MatrixNormal(biases="separate"),
    "biases for sure": sb.MeanField(biases="deterministic"),
}


@pytest.fixture(params=FAMILIES)
def family(request) -> Family:
    return FAMILIES[request.param]


def network() -> nn.Module:
    torch.manual_seed(0)
    factored = sb.layers.FactoredPath((2, 4), (2, 4))
    relaxed = sb.RelaxedLayer({"conv": sb.layers.ConvPath(2, 2, (3,)), "factored": factored})
    return nn.Sequential(relaxed, nn.GroupNorm(1, 2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 2)).double()


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(6, 2, 4, generator=generator, dtype=torch.float64), torch.arange(6) % 2


def moved(variational: nn.Module) -> nn.Module:
    """With parameters that are no longer alike."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in variational.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return variational


def test_no_family_is_missing():
    def kinds(cls: type) -> set[type]:
        return {cls, *(kind for sub in cls.__subclasses__() for kind in kinds(sub))}

    assert kinds(Family) - {Family} == {type(family) for family in FAMILIES.values()}


def test_every_weight_is_in_one_part_or_known_for_sure(family):
    model = network()
    variational = family.over(model)
    names = [name for members, _ in variational.members for name in members.shapes]
    assert sorted([*names, *variational.deterministic]) == sorted(name for name, _ in model.named_parameters())


def test_the_divergence_is_that_of_dense_normals(family):
    model = network()
    prior = sb.TensorwisePrior(model)
    with torch.no_grad():
        prior.log_precision.copy_(torch.linspace(-1, 2, len(prior.groups)))
    variational = moved(family.over(model))
    found = sb.Elbo(family, collapsed=False).evidence(model, variational, data(), sb.Categorical(), prior)
    divergence = torch.zeros((), dtype=torch.float64)
    precisions, values = prior.precisions(), dict(model.named_parameters())
    for members, spread in variational().parts:
        L = spread.root(torch.eye(members.size, dtype=torch.float64)).T
        delta = members.join({name: precisions[name].expand(shape) for name, shape in members.shapes.items()})
        q = torch.distributions.MultivariateNormal(members.join(values), L @ L.T)
        p = torch.distributions.MultivariateNormal(torch.zeros_like(delta), torch.diag(1 / delta))
        divergence = divergence + torch.distributions.kl_divergence(q, p)
    torch.testing.assert_close(-(found.log_prior + found.log_volume), divergence, rtol=1e-9, atol=1e-9)


def test_draws_have_the_variances(family):
    posterior = moved(family.over(network()))()
    with torch.no_grad():
        drawn = posterior.sample(4000, generator=torch.Generator().manual_seed(0))
    for name, variance in posterior.variances().items():
        torch.testing.assert_close(drawn[name].var(0), variance, rtol=0.15, atol=1e-12)


def test_everything_that_is_learned_has_a_gradient(family):
    model = network()
    variational = moved(family.over(model))
    sb.Elbo(family).evidence(model, variational, data(), sb.Categorical(), sb.TensorwisePrior(model)).total.backward()
    for parameter in [*model.parameters(), *variational.parameters()]:
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()


def test_its_state_survives(family):
    model = network()
    variational, other = moved(family.over(model)), family.over(model)
    other.load_state_dict(variational.state_dict())
    for name, variance in variational().variances().items():
        assert torch.equal(other().variances()[name], variance)
