"""Spreads against the dense matrices that they stand for."""

from dataclasses import replace

import pytest
import torch

from symbayes.posterior.posterior import CUBATURE_LIMIT, Members, Posterior
from symbayes.posterior.spread import DiagonalSpread, EigenSpread, FullSpread, MatrixSpread, Spread


def lower(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    raw = torch.randn(*shape, shape[-1], generator=generator, dtype=torch.float64)
    return raw.tril(-1) + torch.diag_embed(raw.diagonal(dim1=-2, dim2=-1).abs() + 0.3)


def orthogonal(*shape: int) -> torch.Tensor:
    return torch.linalg.qr(lower(*shape))[0]


SPREADS = {
    "diagonal": DiagonalSpread(torch.linspace(0.2, 2.0, 12, dtype=torch.float64)),
    "full": FullSpread(lower(12)),
    "matrix": MatrixSpread(lower(1, 3), lower(1, 4)),
    "matrices": MatrixSpread(lower(2, 3), lower(2, 2)),
    "eigen": EigenSpread(orthogonal(1, 3), orthogonal(1, 4), torch.linspace(0.1, 2, 12, dtype=torch.float64).view(1, 3, 4)),
    "eigen, shared": EigenSpread(
        orthogonal(1, 3), orthogonal(2, 2), torch.linspace(0.1, 2, 12, dtype=torch.float64).view(2, 3, 2)
    ),
}


@pytest.fixture(params=SPREADS)
def spread(request) -> Spread:
    return SPREADS[request.param]


def root_of(spread: Spread) -> torch.Tensor:
    return spread.root(torch.eye(12, dtype=torch.float64)).T


def test_covariance_is_that_of_the_root(spread):
    L = root_of(spread)
    torch.testing.assert_close(spread.variances(), (L @ L.T).diagonal())
    torch.testing.assert_close(spread.log_det(), torch.logdet(L @ L.T))
    torch.testing.assert_close(spread.root_transposed(torch.eye(12, dtype=torch.float64)).T, L.T)


def test_whitened_undoes_the_root(spread):
    noise = torch.randn(2, 5, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(spread.whitened(spread.root(noise)), noise)


def test_matrix_normal_is_a_kronecker_product():
    spread = SPREADS["matrix"]
    S, A = (factor[0] @ factor[0].T for factor in (spread.left, spread.right))
    L = root_of(spread)
    torch.testing.assert_close(L @ L.T, torch.kron(S, A))


def posterior_over(spread: Spread) -> Posterior:
    members = Members({"weight": (3, 3), "bias": (3,)}, (1, 3))
    mean = {"weight": torch.arange(9.0, dtype=torch.float64).view(3, 3), "bias": -torch.ones(3, dtype=torch.float64)}
    return Posterior(mean, ((members, spread),), "test")


def test_density_and_entropy_are_those_of_the_dense_normal(spread):
    posterior = posterior_over(spread)
    members = posterior.parts[0][0]
    L = root_of(spread)
    dense = torch.distributions.MultivariateNormal(members.join(posterior.mean), L @ L.T)
    weights = posterior.sample(4, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(posterior.log_prob(weights), dense.log_prob(members.join(weights)))
    torch.testing.assert_close(posterior.entropy(), dense.entropy())


def test_draws_have_the_moments(spread):
    posterior = posterior_over(spread)
    members = posterior.parts[0][0]
    L = root_of(spread)
    drawn = members.join(posterior.sample(20_000, generator=torch.Generator().manual_seed(0)))
    error = 5 * spread.variances().max() / 20_000**0.5
    assert (drawn.T.cov() - L @ L.T).abs().max() < 2 * error
    paired = posterior.sample(10, generator=torch.Generator().manual_seed(0), antithetic=True)
    torch.testing.assert_close(members.join(paired).mean(0), members.join(posterior.mean))


def test_cubature_is_refused_where_it_would_not_fit():
    p = CUBATURE_LIMIT + 1
    posterior = Posterior({"w": torch.zeros(p)}, ((Members({"w": (p,)}), DiagonalSpread(torch.ones(p))),), "any")
    with pytest.raises(ValueError, match=r"at most 8192 .* has 8193\. Draw some"):
        posterior.cubature()


def test_cubature_has_the_moments_exactly(spread):
    members = Members({"weight": (12,)})
    other = DiagonalSpread(torch.tensor([0.5, 2.0], dtype=torch.float64))
    mean = {"weight": torch.arange(12.0, dtype=torch.float64), "other": torch.ones(2, dtype=torch.float64)}
    posterior = Posterior(mean, ((members, spread), (Members({"other": (2,)}), other)), "test")
    points = posterior.cubature()
    rows = torch.cat([points["weight"], points["other"]], 1)
    L = torch.block_diag(root_of(spread), torch.diag(other.std))
    centre = torch.cat([mean["weight"], mean["other"]])
    torch.testing.assert_close(rows.mean(0), centre)
    torch.testing.assert_close((rows - centre).T @ (rows - centre) / len(rows), L @ L.T)


def test_covariance_of_linear_functions(spread):
    posterior = posterior_over(spread)
    J = {name: torch.randn(5, 2, *value.shape, dtype=torch.float64) for name, value in posterior.mean.items()}
    rows = posterior.parts[0][0].join(J)
    L = root_of(spread)
    torch.testing.assert_close(posterior.covariance(J), rows @ L @ L.T @ rows.mT)


def test_what_no_part_is_over_is_known_for_sure():
    posterior = posterior_over(SPREADS["diagonal"])
    known = replace(posterior, mean={**posterior.mean, "known": torch.ones(2, dtype=torch.float64)})
    assert (known.sample(3)["known"] == 1).all()
    assert (known.variances()["known"] == 0).all()


@pytest.mark.parametrize("column", [None, (2, 3)])
def test_members_split_what_they_join(column):
    members = Members({"weight": (6, 4), "bias": (6,)}, column)
    tensors = {"weight": torch.randn(7, 6, 4), "bias": torch.randn(7, 6)}
    split = members.split(members.join(tensors))
    assert all(torch.equal(split[name], tensors[name]) for name in tensors)


def test_a_bias_is_the_last_column():
    members = Members({"weight": (2, 3), "bias": (2,)}, (1, 2))
    joined = members.join({"weight": torch.zeros(2, 3), "bias": torch.tensor([5.0, 6.0])})
    assert joined.tolist() == [0, 0, 0, 5, 0, 0, 0, 6]


@pytest.mark.parametrize(("count", "antithetic"), [(0, False), (3, True)])
def test_refuses_odd_numbers_of_draws(count, antithetic):
    with pytest.raises(ValueError, match="count must be at least 1, and even"):
        posterior_over(SPREADS["full"]).sample(count, antithetic=antithetic)


def test_some_tensors_may_be_uncertain_alone():
    both = Posterior(
        {"a.weight": torch.zeros(2), "b.weight": torch.ones(3)},
        (
            (Members({"a.weight": (2,)}), DiagonalSpread(torch.ones(2))),
            (Members({"b.weight": (3,)}), DiagonalSpread(torch.ones(3))),
        ),
        "test",
    )
    found = both.only(["b*"])
    assert (found.sample(3)["a.weight"] == 0).all()
    assert (found.variances()["b.weight"] == 1).all()
    assert found.kind == "test, of b* alone"
    with pytest.raises(ValueError, match=r"'c\*' matches none of a.weight, b.weight"):
        both.only(["b*", "c*"])
    with pytest.raises(ValueError, match="must be chosen together"):
        posterior_over(SPREADS["diagonal"]).only(["weight"])
