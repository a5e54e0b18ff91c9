"""What a posterior gains when hidden units need no order: against enumeration, densities by hand, and known limits."""

from collections import Counter
from itertools import pairwise, permutations
from math import comb, factorial, log

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal

from symbayes.posterior.families import FullCovariance, MatrixNormal, MeanField
from symbayes.posterior.posterior import Members, Posterior
from symbayes.posterior.spread import DiagonalSpread, FullSpread, MatrixSpread
from symbayes.posterior.units import (
    HiddenUnits,
    all_orders,
    exact_mutual_information,
    hidden_units,
    information_under,
    mutual_information,
    random_orders,
)

#: As wide as their means are apart, so that some units are confused with others.
FAMILIES = [family(biases, 1.0) for family in (MeanField, MatrixNormal, FullCovariance) for biases in ("column", "separate")]
FAMILIES.append(MatrixNormal(std=1.0, diagonal=True))
names = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: f"{family.name}, {family.biases}")


def perceptron(*widths: int) -> nn.Sequential:
    layers = [nn.Linear(widths[0], widths[1])]
    for d_in, d_out in pairwise(widths[1:]):
        layers += [nn.Tanh(), nn.Linear(d_in, d_out)]
    return nn.Sequential(*layers).double()


def stirred(family, model):
    """A posterior to be learned whose means and spreads have nothing regular."""
    learned = family.over(model)
    with torch.no_grad():
        for parameter in (*model.parameters(), *learned.parameters()):
            parameter.add_(0.2 * torch.randn_like(parameter))
    return learned


def scalars(means, stds=None) -> tuple[Posterior, list[HiddenUnits]]:
    """Units that are one number each."""
    mean = torch.as_tensor(means, dtype=torch.float64)
    spread = DiagonalSpread(torch.ones_like(mean) if stds is None else torch.as_tensor(stds, dtype=torch.float64))
    return Posterior({"u": mean}, ((Members({"u": tuple(mean.shape)}), spread),), "by hand"), [
        HiddenUnits("u", len(mean), {"u": -1})
    ]


@names
@pytest.mark.parametrize("widths", [(2, 4, 2), (2, 3, 2, 1)])
def test_the_whole_group_gives_what_enumeration_gives(family, widths, generator):
    model = perceptron(*widths)
    posterior, units = stirred(family, model)().detached(), hidden_units(model)
    weights = posterior.sample(5, generator=generator)
    orders = all_orders(units)
    exact = exact_mutual_information(posterior, weights, units)
    assert 0.01 < float(exact) < log(len(orders[0])) - 0.01  # at neither limit
    torch.testing.assert_close(information_under(posterior, weights, units, [order[1:] for order in orders]), exact)


@names
def test_enumeration_gives_what_densities_by_hand_give(family, generator):
    model = perceptron(2, 4, 3)
    posterior = stirred(family, model)().detached()
    weights = posterior.sample(3, generator=generator)
    normals = []
    for members, spread in posterior.parts:
        root = spread.root(torch.eye(members.size, dtype=torch.float64)).T  # the columns are L e
        mean = _joined(members, posterior.mean)
        normals.append((members, MultivariateNormal(mean, root @ root.T)))

    def density(w):
        return sum(normal.log_prob(_joined(members, w)) for members, normal in normals)

    values = []
    for index in range(3):
        w = {name: value[index] for name, value in weights.items()}
        logs = []
        for order in permutations(range(4)):
            P = torch.eye(4, dtype=torch.float64)[list(order)]
            moved = {"0.weight": P @ w["0.weight"], "0.bias": P @ w["0.bias"], "2.weight": w["2.weight"] @ P.T}
            logs.append(density({**w, **moved}))
        values.append(density(w) - torch.stack(logs).logsumexp(0) + log(24))
    torch.testing.assert_close(exact_mutual_information(posterior, weights, hidden_units(model)), torch.stack(values).mean())


def _joined(members, tensors):
    """[W b] by rows, or a tensor flattened; independent of `Members.join`."""
    values = [tensors[name] for name in members.shapes]
    return values[0].flatten() if len(values) == 1 else torch.hstack([values[0], values[1][:, None]]).flatten()


@names
def test_densities_take_batches_of_any_form(family, generator):
    posterior = stirred(family, perceptron(2, 3, 2))().detached()
    weights = posterior.sample(6, generator=generator)
    each = torch.stack([posterior.log_prob({name: value[index] for name, value in weights.items()}) for index in range(6)])
    together = posterior.log_prob({name: value.unflatten(0, (2, 3)) for name, value in weights.items()})
    torch.testing.assert_close(together, each.reshape(2, 3))


def test_matrices_side_by_side_take_batches_of_any_form(generator):
    left, right = (0.3 * torch.randn(2, d, d, generator=generator, dtype=torch.float64).tril(-1) for d in (3, 4))
    spread = MatrixSpread(left + 2 * torch.eye(3), right + 0.5 * torch.eye(4))
    noise = torch.randn(5, 2, 24, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(spread.whitened(spread.root(noise)), noise)
    torch.testing.assert_close(spread.whitened(spread.root(noise[0, 0])), noise[0, 0])


def test_random_permutations_give_a_bound_that_gets_close(generator):
    model = perceptron(2, 4, 2)
    posterior, units = stirred(MatrixNormal(std=1.0), model)().detached(), hidden_units(model)
    weights = posterior.sample(1000, generator=generator)
    exact = float(exact_mutual_information(posterior, weights, units))
    bounds = {
        count: float(mutual_information(posterior, weights, units, count, generator=generator)) for count in (1, 3, 7, 23, 700)
    }
    assert sorted(bounds.values()) == list(bounds.values())
    assert all(value < min(exact, log(count + 1)) for count, value in bounds.items())
    assert exact - bounds[1] > 0.5 > 0.02 > exact - bounds[700]


def test_no_draw_exceeds_the_logarithm_of_what_it_is_compared_with(generator):
    posterior, units = scalars([0.0, 3.0, 6.0, 9.0])
    weights = posterior.sample(200, generator=generator)
    for each in weights["u"]:
        assert mutual_information(posterior, {"u": each[None]}, units, 7, generator=generator) <= log(8) + 1e-12


@pytest.mark.parametrize("count", [3, 4, 5, 6])
def test_units_far_apart_are_worth_the_logarithm_of_all_orders(count, generator):
    posterior, units = scalars([20.0 * unit for unit in range(count)])
    weights = posterior.sample(3, generator=generator)
    assert float(exact_mutual_information(posterior, weights, units)) == pytest.approx(log(factorial(count)), abs=1e-12)


def test_random_permutations_of_units_far_apart_miss_only_repeats_of_the_identity(generator):
    posterior, units = scalars([0.0, 20.0, 40.0, 60.0])
    found = float(mutual_information(posterior, posterior.sample(20_000, generator=generator), units, 7, generator=generator))
    chances = [comb(7, hits) * (1 / 24) ** hits * (23 / 24) ** (7 - hits) for hits in range(8)]
    wanted = log(8) - sum(chance * log(1 + hits) for hits, chance in enumerate(chances))  # 1.888; log 8 is 2.079
    assert found == pytest.approx(wanted, abs=0.01)  # five standard errors


def test_it_grows_from_zero_as_units_separate(generator):
    values = []
    for gap in (0.0, 0.5, 1.0, 2.0, 4.0):
        posterior, units = scalars([gap * unit for unit in range(4)])
        values.append(float(exact_mutual_information(posterior, posterior.sample(2000, generator=generator), units)))
    assert abs(values[0]) < 1e-12
    assert all(low + 0.1 < high for low, high in pairwise(values))
    assert values[-1] < log(24)


@pytest.mark.parametrize("mean", [0.0, 0.5, 1.0, 2.0, 4.0])
def test_two_units_are_a_mixture_of_two_on_a_line(mean):
    """Along (1, −1)/√2 they are N(μ, 1) and, exchanged, N(−μ, 1); across it they are alike."""
    nodes, masses = np.polynomial.hermite_e.hermegauss(200)
    wanted = float(masses @ (log(2) - np.logaddexp(0, -2 * mean * (mean + nodes))) / masses.sum())  # 0, .111, .337, .633, .693
    posterior, units = scalars([mean / 2**0.5, -mean / 2**0.5])
    levels = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    along = mean + torch.special.ndtri(levels)
    weights = {"u": along[:, None] * torch.tensor([1.0, -1.0], dtype=torch.float64) / 2**0.5}
    assert float(exact_mutual_information(posterior, weights, units)) == pytest.approx(wanted, abs=5e-5)


def test_units_that_are_alike_gain_nothing(generator):
    posterior, units = alike(0.4)
    weights = posterior.sample(10, generator=generator)
    assert abs(float(exact_mutual_information(posterior, weights, units))) < 1e-12
    assert abs(float(mutual_information(posterior, weights, units, 20, generator=generator))) < 1e-12


def test_units_that_differ_only_in_spread_are_told_apart(generator):
    posterior, units = scalars([0.0, 0.0, 0.0], [0.1, 1.0, 10.0])
    assert float(exact_mutual_information(posterior, posterior.sample(500, generator=generator), units)) > 0.5


def alike(correlation):
    """Units whose means agree and whose covariances with each other do: rows of a matrix-normal, columns of a full spread."""
    d = {"dtype": torch.float64}
    between = torch.eye(4, **d) * (1 - correlation) + correlation
    inner = torch.tensor([[1.0, 0.0, 0.0], [0.3, 0.8, 0.0], [-0.2, 0.1, 0.5]], **d)
    outer = torch.tensor([[1.0, 0.4], [0.4, 2.0]], **d)
    root = torch.linalg.cholesky(torch.kron(outer, between))
    mean = {"in.weight": torch.tensor([0.5, -1.0], **d).expand(4, 2), "in.bias": torch.ones(4, **d),
            "out.weight": torch.tensor([[0.3], [2.0]], **d).expand(2, 4)}  # fmt: skip
    parts = (
        (
            Members({"in.weight": (4, 2), "in.bias": (4,)}, (1, 4)),
            MatrixSpread(torch.linalg.cholesky(between)[None], inner[None]),
        ),
        (Members({"out.weight": (2, 4)}), FullSpread(root)),
    )
    return Posterior(mean, parts, "by hand"), [HiddenUnits("in", 4, {"in.weight": -2, "in.bias": -1, "out.weight": -1})]


@names
def test_gradients_are_those_of_finite_differences(family):
    model = perceptron(2, 3, 2)
    learned, units = stirred(family, model), hidden_units(model)
    parameters = [*model.parameters(), *learned.parameters()]

    def value():
        posterior = learned()
        weights = posterior.sample(4, generator=torch.Generator().manual_seed(1))
        return mutual_information(posterior, weights, units, 5, generator=torch.Generator().manual_seed(2))

    gradients = torch.autograd.grad(value(), parameters, allow_unused=True, materialize_grads=True)
    for index, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
        direction = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(index), dtype=torch.float64)
        slopes = []
        with torch.no_grad():
            for step in (1e-5, -1e-5):
                parameter.add_(step * direction)
                slopes.append(float(value()) / (2 * step))
                parameter.sub_(step * direction)
        assert float((gradient * direction).sum()) == pytest.approx(sum(slopes), rel=1e-6, abs=1e-8)
    apart = [
        spread for (members, _), spread in zip(learned.members, learned.spreads, strict=True) if [*members.shapes] == ["2.bias"]
    ]
    without_units = {id(each) for module in apart for each in module.parameters()} | {id(model[2].bias)}
    for parameter, gradient in zip(parameters, gradients, strict=True):
        assert (float(gradient.abs().max()) < 1e-12) == (id(parameter) in without_units)


def test_permutations_are_uniform_and_fresh_for_every_draw(generator):
    units = [HiddenUnits("a", 3, {"a": -1}), HiddenUnits("b", 2, {"b": -1})]
    first, second = random_orders(units, 1500, 4, generator)
    assert first.shape == (1500, 4, 3)
    assert second.shape == (1500, 4, 2)
    together = Counter(map(tuple, torch.cat([first, second], -1).flatten(0, 1).tolist()))
    assert len(together) == 12
    assert all(abs(seen - 500) < 5 * 500**0.5 for seen in together.values())
    assert len(first.flatten(1).unique(dim=0)) > 500  # of 6⁴ = 1296


def test_batches_of_orders_act_on_batches_of_weights(generator):
    units = HiddenUnits("u", 3, {"rows": -2, "runs": -1}, {"runs": 2})
    weights = {"rows": torch.randn(5, 1, 3, 4, generator=generator), "runs": torch.randn(5, 1, 2, 6, generator=generator)}
    weights["other"] = torch.randn(7, generator=generator)
    order = random_orders([units], 5, 8, generator)[0]
    moved = units.permute(weights, order)
    assert moved["other"] is weights["other"]
    for draw, number in ((0, 0), (3, 7), (4, 2)):
        a, b, c = order[draw, number].tolist()
        assert torch.equal(moved["rows"][draw, number], weights["rows"][draw, 0][[a, b, c]])
        entries = [2 * a, 2 * a + 1, 2 * b, 2 * b + 1, 2 * c, 2 * c + 1]
        assert torch.equal(moved["runs"][draw, number], weights["runs"][draw, 0][:, entries])


def test_units_in_weights_without_uncertainty_are_refused(generator):
    model = perceptron(2, 3, 1)
    posterior, units = MeanField("deterministic").over(model)(), hidden_units(model)
    weights = posterior.sample(2, generator=generator)
    with pytest.raises(ValueError, match=r"no spread for 0\.bias\. Use biases='column'"):
        mutual_information(posterior, weights, units, 3)
    with pytest.raises(ValueError, match=r"no spread for 0\.bias\. Use biases='column'"):
        exact_mutual_information(posterior, weights, units)


def test_what_is_no_permutation_is_refused(generator):
    posterior, units = scalars([0.0, 1.0, 2.0])
    weights = posterior.sample(4, generator=generator)
    with pytest.raises(ValueError, match=r"some entries stand twice"):
        information_under(posterior, weights, units, [torch.tensor([[0, 0, 1]])])
    with pytest.raises(ValueError, match=r"with m = 4 and one K for all layers; got shape \(3, 1, 3\)"):
        information_under(posterior, weights, units, [torch.tensor([[[0, 2, 1]]]).expand(3, 1, 3)])
    with pytest.raises(ValueError, match=r"must have 3 entries, got shape \(2,\)"):
        units[0].permute(weights, torch.tensor([1, 0]))


def test_settings_are_checked(generator):
    posterior, units = scalars([0.0, 1.0, 2.0])
    weights = posterior.sample(2, generator=generator)
    with pytest.raises(ValueError, match=r"count must be at least 1, the permutations beside the identity; got 0"):
        mutual_information(posterior, weights, units, 0)
    with pytest.raises(ValueError, match=r"must be units to permute, got none"):
        mutual_information(posterior, weights, [], 3)
    with pytest.raises(ValueError, match=r"must be m draws from the posterior, 'u' of shape \[m, \*\(3,\)\]; got \(3,\)"):
        mutual_information(posterior, {"u": weights["u"][0]}, units, 3)
    with pytest.raises(ValueError, match=r"up to 720 of them; these units have 5040"):
        all_orders([HiddenUnits("u", 7, {"u": -1})])


def test_units_are_described_rightly():
    with pytest.raises(ValueError, match=r"'u' must be at least one, and stand in at least one tensor; got 0 in 1"):
        HiddenUnits("u", 0, {"a": -1})
    with pytest.raises(ValueError, match=r"'a' must have one below zero, -1 for the last; got 0"):
        HiddenUnits("u", 3, {"a": 0})
    with pytest.raises(ValueError, match=r"repeats must be 1 or more, for tensors in axes \(a\); got 2 for 'b'"):
        HiddenUnits("u", 3, {"a": -1}, {"b": 2})
    units = HiddenUnits("u", 3, {"a": -1})
    with pytest.raises(ValueError, match=r"stand in 'a', which is not among the weights b"):
        units.permute({"b": torch.zeros(3)}, torch.arange(3))
    with pytest.raises(ValueError, match=r"Axis -1 of 'a' must have 3 units of 1 entries each.* got shape \(4,\)"):
        units.permute({"a": torch.zeros(4)}, torch.arange(3))
