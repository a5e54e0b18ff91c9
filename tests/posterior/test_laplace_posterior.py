"""Laplace's posterior against dense inverses of H + Δ, for every kind of block."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import symbayes as sb
from symbayes.curvature import Diagonal, Ekfac, Ggn, Lanczos, Subsets, TangentKernel
from symbayes.curvature.blocks import DenseBlock, DiagonalBlock, EigenBlock, Factor, KroneckerBlock
from symbayes.data.source import TensorSource
from symbayes.errors import NoPosteriorError
from symbayes.layers.conv import ConvPath
from symbayes.layers.factored import FactoredPath
from symbayes.layers.relaxed import RelaxedLayer
from symbayes.posterior.laplace import laplace_posterior
from symbayes.posterior.spread import DiagonalSpread, EigenSpread, FullSpread
from tests.oracles import dense_ggn, joined, softmax_hessian

CPU = torch.device("cpu")
EXACT = {"rtol": 0, "atol": 1e-8}


def relaxed():
    paths = {"factored": FactoredPath((2, 4, 4), (3, 2, 2)), "conv": ConvPath(2, 3, (3, 3), stride=2)}
    return nn.Sequential(RelaxedLayer(paths, stride=2), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3)).double()


def grouped():
    return nn.Sequential(nn.Conv2d(4, 6, 3, groups=2), nn.GroupNorm(2, 6), nn.Tanh(), nn.Flatten(), nn.Linear(24, 3)).double()


def embedded():
    return nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Tanh(), nn.Linear(12, 3)).double()


MODELS = {
    "relaxed": (relaxed, lambda g: torch.randn(9, 2, 4, 4, generator=g, dtype=torch.float64)),
    "groups": (grouped, lambda g: torch.randn(9, 4, 4, 4, generator=g, dtype=torch.float64)),
    "embedding": (embedded, lambda g: torch.randint(0, 7, (9, 3), generator=g)),
}
RULES = {
    "kfac": sb.Kfac(),
    "kfac, pooled": sb.Kfac(pool_blocks=True),
    "kfac, reduce": sb.Kfac(sharing="reduce"),
    "ekfac": Ekfac(),
    "diagonal": Diagonal(),
    "ggn by tensor": Ggn(joint=False),
}


def problem(name, generator):
    build, draw = MODELS[name]
    model = build()
    prior = sb.TensorwisePrior(model)
    with torch.no_grad():  # a precision of its own for every tensor
        prior.log_precision.copy_(torch.linspace(-1, 2, len(prior.groups)))
    return model, prior, draw(generator)


def curvature_of(rule, model, inputs, likelihood=None, targets=None):
    targets = torch.arange(len(inputs)) % 3 if targets is None else targets
    return rule.curvature(model, TensorSource(inputs, targets, CPU), likelihood or sb.Categorical())


def covariance(spread, size):
    rows = spread.root_transposed(torch.eye(size, dtype=torch.float64))
    return rows @ rows.T


def dense_inverse(block, precision):
    H = block.dense()
    return torch.linalg.inv(H + precision.detach() * torch.eye(len(H), dtype=H.dtype))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("model", MODELS)
def test_the_covariance_of_every_tensor_is_the_inverse_of_its_block_and_its_precision(model, rule, generator):
    model, prior, inputs = problem(model, generator)
    curvature = curvature_of(RULES[rule], model, inputs)
    posterior = laplace_posterior(curvature, model, prior)
    assert [list(members.shapes) for members, _ in posterior.parts] == [[name] for name, _ in model.named_parameters()]
    for members, spread in posterior.parts:
        (name,) = members.shapes
        wanted = dense_inverse(curvature.blocks[name], prior.precisions()[name])
        assert_close(covariance(spread, members.size), wanted, **EXACT)
        assert_close(spread.variances(), wanted.diagonal(), **EXACT)
        assert_close(spread.log_det(), torch.logdet(wanted), **EXACT)
    assert_close(posterior.mean, {name: parameter.detach() for name, parameter in model.named_parameters()})


def test_every_kind_of_block_is_met(generator):
    pairs = set()
    for name in MODELS:
        model, prior, inputs = problem(name, generator)
        for rule in RULES.values():
            curvature = curvature_of(rule, model, inputs)
            for members, spread in laplace_posterior(curvature, model, prior).parts:
                pairs.add((type(curvature.blocks[next(iter(members.shapes))]), type(spread)))
    assert pairs == {
        (KroneckerBlock, EigenSpread), (EigenBlock, EigenSpread), (DiagonalBlock, DiagonalSpread), (DenseBlock, FullSpread),
    }  # fmt: skip


@pytest.mark.parametrize("rule", ["kfac", "kfac, pooled", "ggn by tensor"])
@pytest.mark.parametrize("model", MODELS)
def test_of_tensors_that_are_off_the_diagonal_is_kept_within_its_bound(model, rule, generator):
    """Next to the limit of what is negligible: covariances to ‖H‖/δ, variances and log-determinant to its square."""
    model, prior, inputs = problem(model, generator)
    curvature = curvature_of(RULES[rule], model, inputs)
    limit = torch.finfo(torch.float64).eps ** 0.5
    off = {name: float(block.norm) / (0.9 * limit) for name, block in curvature.blocks.items() if any(factors_of(block))}
    with torch.no_grad():
        for name, precision in off.items():
            prior.log_precision[prior.groups.index(prior.group_of[name])] = torch.tensor(precision).log()
    precisions = {name: precision.detach().double() for name, precision in prior.precisions().items()}
    for members, spread in laplace_posterior(curvature, model, prior).parts:
        (name,) = members.shapes
        if name not in off:
            continue
        block, delta = curvature.blocks[name], precisions[name]
        assert isinstance(spread, DiagonalSpread)
        assert not any("eigenvalues" in vars(part) or "eigenvectors" in vars(part) for part in factors_of(block))
        ratio = float(block.norm / delta)
        wanted = delta * dense_inverse(block, delta)
        found = delta * covariance(spread, members.size)
        assert torch.linalg.matrix_norm(found - wanted, 2) <= ratio
        rounding = 1e-14
        assert_close(found.diagonal(), wanted.diagonal(), rtol=ratio**2 + rounding, atol=0)
        assert_close(delta * spread.variances() - 1, -block.diagonal_entries / delta, rtol=1e-4, atol=rounding)


def factors_of(block):
    """Those that would be decomposed."""
    return [part for part in vars(block).values() if isinstance(part, Factor) and not part.diagonal]


def test_all_factors_of_one_size_are_decomposed_at_once(generator, monkeypatch):
    model, prior, inputs = problem("relaxed", generator)
    curvature = curvature_of(sb.Kfac(), model, inputs)
    sizes, rightly = [], torch.linalg.eigh

    def counted(matrices):
        sizes.append(matrices.shape[-1])
        return rightly(matrices)

    monkeypatch.setattr(torch.linalg, "eigh", counted)
    laplace_posterior(curvature, model, prior)
    laplace_posterior(curvature, model, prior)
    assert len(sizes) == len(set(sizes)) > 1


@pytest.mark.parametrize("model", MODELS)
def test_the_full_matrix_gives_one_part_over_all_tensors(model, generator):
    model, prior, inputs = problem(model, generator)
    posterior = laplace_posterior(curvature_of(Ggn(), model, inputs), model, prior)
    ((members, spread),) = posterior.parts
    names = list(members.shapes)
    precision = torch.cat([prior.precisions()[name].detach().expand(model.get_parameter(name).numel()) for name in names])
    wanted = torch.linalg.inv(joined(dense_ggn(model, inputs, softmax_hessian), names) + torch.diag(precision))
    assert_close(covariance(spread, members.size), wanted, **EXACT)


def test_kronecker_blocks_of_a_single_datum_give_what_the_exact_blocks_give(generator):
    # KFAC is exact there, so the oracle is independent of blocks: with groups of channels, and a symbol for the embedding.
    conv = nn.Sequential(nn.Conv2d(4, 6, 3, groups=2), nn.Flatten(), nn.Tanh(), nn.Linear(6, 3)).double()
    symbols = nn.Sequential(nn.Embedding(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    for model, inputs in (
        (conv, torch.randn(1, 4, 3, 3, generator=generator, dtype=torch.float64)),
        (symbols, torch.tensor([2])),
    ):
        prior = sb.TensorwisePrior(model, 0.7)
        exact = dense_ggn(model, inputs, softmax_hessian)
        for members, spread in laplace_posterior(curvature_of(sb.Kfac(), model, inputs), model, prior).parts:
            (name,) = members.shapes
            blocks = 2 if name == "0.weight" and model is conv else 1
            size = members.size // blocks
            found = covariance(spread, members.size)
            for block in range(blocks):  # KFAC leaves out the correlations between groups
                part = slice(block * size, (block + 1) * size)
                H = exact[name, name][part, part]
                assert_close(found[part, part], torch.linalg.inv(H + 0.7 * torch.eye(size, dtype=H.dtype)), **EXACT)
            assert found.count_nonzero() <= blocks * size**2


def test_an_embedding_of_many_symbols_needs_no_matrix_over_symbols(generator):
    model = nn.Sequential(nn.Embedding(3000, 4), nn.Linear(4, 3))
    posterior = laplace_posterior(curvature_of(sb.Kfac(), model, torch.arange(9)), model, sb.TensorwisePrior(model))
    numbers = {name: value.numel() for name, value in vars(posterior.parts[0][1]).items()}
    assert numbers == {"left": 1, "right": 16, "std": 12000}


@pytest.mark.parametrize("rule", ["kfac", "ekfac", "diagonal", "full"])
def test_draws_have_the_covariance_that_is_asked_for(rule, generator):
    model, prior, inputs = problem("embedding", generator)
    curvature = curvature_of({**RULES, "full": Ggn()}[rule], model, inputs)
    posterior = laplace_posterior(curvature, model, prior)
    count = 40_000
    drawn = posterior.sample(count, generator=generator)
    errors = []
    for members, spread in posterior.parts:
        offsets = members.join(drawn) - members.join(posterior.mean)
        wanted = covariance(spread, members.size)
        found = offsets.T @ offsets / count
        variances = wanted.diagonal()
        standard = ((variances[:, None] * variances + wanted.square()) / count).sqrt()
        errors.append(((found - wanted) / standard)[torch.ones_like(wanted).tril().bool()])
    together = torch.cat(errors)  # more than a thousand, each with variance one
    assert together.abs().max() < 5
    assert float(together.square().mean()) == pytest.approx(1, abs=0.2)


def test_it_is_of_the_type_of_the_model_and_cut_off_from_autograd(generator):
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    inputs, targets = torch.randn(6, 3, generator=generator), torch.randn(6, 2, generator=generator)
    for rule in (sb.Kfac(), Ggn()):
        curvature = curvature_of(rule, model, inputs, sb.Gaussian(0.5), targets)
        posterior = laplace_posterior(curvature, model, sb.ScalarPrior(model))
        tensors = [*posterior.mean.values(), *(value for _, spread in posterior.parts for value in vars(spread).values())]
        assert {(tensor.dtype, tensor.requires_grad) for tensor in tensors} == {(torch.float32, False)}
        assert str(rule) in posterior.kind
        with torch.no_grad():
            model[0].weight.add_(1)  # what was found stays what it was
        assert not torch.equal(posterior.mean["0.weight"], model[0].weight)


def test_a_matrix_that_is_indefinite_by_rounding_is_taken_for_the_nearest_that_is_not():
    model = nn.Linear(3, 1, bias=False).double()
    vectors = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64)).Q
    H = (vectors * torch.tensor([1e9, 2.0, -3.0], dtype=torch.float64)) @ vectors.T
    assert torch.linalg.cholesky_ex(torch.eye(3) + H)[1] > 0
    curvature = curvature_of(Ggn(joint=False), model, torch.randn(2, 3).double(), sb.Gaussian(), torch.zeros(2, 1).double())
    curvature = replace(curvature, blocks={"weight": DenseBlock(Factor(H[None], False, "weight"))})
    ((_, spread),) = laplace_posterior(curvature, model, sb.ScalarPrior(model, 1.0)).parts
    wanted = (vectors / torch.tensor([1e9 + 1, 3.0, 1.0], dtype=torch.float64)) @ vectors.T
    assert_close(covariance(spread, 3), wanted, rtol=0, atol=1e-6)
    assert_close(spread.lower, spread.lower.tril())
    assert (spread.lower.diagonal() > 0).all()


@pytest.mark.parametrize("rule", [Lanczos(1, 2), TangentKernel(4), Subsets(size=4)])
def test_rules_without_a_matrix_are_refused_with_what_to_use(rule, generator):
    model, prior, inputs = problem("embedding", generator)
    with pytest.raises(NoPosteriorError, match=r"kept as a matrix.*Use Kfac\(\), Ekfac\(\) or Diagonal\(\), or Ggn\(\)"):
        laplace_posterior(curvature_of(rule, model, inputs), model, prior)


def test_what_does_not_fit_is_refused(generator):
    model, prior, inputs = problem("embedding", generator)
    curvature = curvature_of(sb.Kfac(), model, inputs)
    model[3].bias.requires_grad_(False)
    with pytest.raises(ValueError, match=r"same trainable tensors; unmatched=\['3.bias'\]"):
        laplace_posterior(curvature, model, prior)
    with pytest.raises(ValueError, match=r"curvature must be of the trainable tensors of the model; unmatched=\['3.bias'\]"):
        laplace_posterior(curvature, model, sb.TensorwisePrior(model))


@pytest.mark.parametrize("rule", RULES)
def test_curvature_that_is_no_number_is_refused(rule, generator):
    model, prior, inputs = problem("relaxed", generator)
    curvature = curvature_of(RULES[rule], model, inputs)
    block = curvature.blocks["3.weight"]
    broken = {
        KroneckerBlock: lambda: KroneckerBlock(block.G, Factor(block.A.matrices * torch.nan, False, "3.weight")),
        EigenBlock: lambda: EigenBlock(block.values * torch.nan, block.basis),
        DiagonalBlock: lambda: DiagonalBlock(block.diagonal * torch.inf),
        DenseBlock: lambda: DenseBlock(Factor(block.H.matrices * torch.nan, False, "3.weight")),
    }[type(block)]()
    curvature = replace(curvature, blocks={**curvature.blocks, "3.weight": broken})
    with pytest.raises(sb.NotFiniteError, match=r"The curvature of '3\.weight' must be finite"):
        laplace_posterior(curvature, model, prior)
