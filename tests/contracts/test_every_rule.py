"""The contract of every curvature rule: one scale, two batches equal one, γ the derivative of the log-determinant."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from symbayes.curvature.diagonal import Diagonal
from symbayes.curvature.ggn import Ggn
from symbayes.curvature.kernel import Subsets, TangentKernel
from symbayes.curvature.kfac import Ekfac, Kfac
from symbayes.curvature.lanczos import Lanczos, Preconditioned
from symbayes.curvature.rule import EmpiricalFisher, MonteCarloFisher, Rule
from symbayes.data.source import TensorSource
from symbayes.layers.conv import ConvPath
from symbayes.layers.factored import FactoredPath
from symbayes.layers.relaxed import RelaxedLayer
from symbayes.layers.smooth import SparseConvPath, SparseFactoredPath
from symbayes.likelihoods.classes import Categorical
from symbayes.likelihoods.values import Gaussian
from symbayes.priors import TensorwisePrior
from tests.oracles import dense_ggn, joined, softmax_hessian

#: The same rule with all data in one batch, and in several.
RULES = {
    "kfac": lambda size: Kfac(batch_size=size),
    "kfac, empirical": lambda size: Kfac(EmpiricalFisher(), batch_size=size),
    "kfac, pooled": lambda size: Kfac(pool_blocks=True, batch_size=size),
    "kfac, reduce": lambda size: Kfac(sharing="reduce", batch_size=size),
    "kfac, mixed": lambda size: Kfac(diagonal=("3.*",), batch_size=size),
    "ekfac": lambda size: Ekfac(batch_size=size),
    "diagonal": lambda size: Diagonal(batch_size=size),
    "ggn": lambda size: Ggn(batch_size=size),
    "ggn by tensor": lambda size: Ggn(joint=False, batch_size=size),
    "kernel": lambda size: TangentKernel(subset=12, batch_size=size),
    "subsets": lambda size: Subsets(Kfac(batch_size=size), size=12),
    "lanczos": lambda size: Lanczos(probes=2, steps=5, batch_size=size),
    "preconditioned": lambda size: Preconditioned(Kfac(batch_size=size), steps=4, batch_size=size),
}
CPU = torch.device("cpu")


#: Of one layer: weights as they are, or smooth, with their shape fixed or learned.
PATHS = {
    "dense": lambda: {"conv": ConvPath(1, 2, (3, 3), stride=2), "factored": FactoredPath((1, 4, 4), (2, 2, 2))},
    "sparse": lambda: sparse(),
    "sparse, lengthscale": lambda: sparse(learn_lengthscale=True),
    "sparse, lengthscale and locations": lambda: sparse(learn_lengthscale=True, learn_locations=True),
}


def sparse(**learned):
    return {
        "conv": SparseConvPath(1, 2, (3, 3), stride=2, **learned),
        "factored": SparseFactoredPath((1, 4, 4), (2, 2, 2), anchors=0.25, **learned),
    }


@pytest.fixture(params=["dense", "sparse, lengthscale"])
def problem(request, generator):
    return problem_of(request.param, generator)


def problem_of(paths, generator):
    paths = PATHS[paths]()
    model = nn.Sequential(RelaxedLayer(paths, stride=2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3)).double()
    inputs = torch.randn(12, 1, 4, 4, generator=generator, dtype=torch.float64)
    return model, inputs


def curvature_of(rule, model, inputs, likelihood, targets):
    seed = torch.Generator().manual_seed(1)
    return rule.curvature(model, TensorSource(inputs, targets, CPU), likelihood, generator=seed)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("kind", ["categorical", "gaussian", "gaussian by output"])
def test_two_batches_equal_one(name, kind, problem, generator):
    model, inputs = problem
    likelihood, targets = {
        "categorical": (Categorical(), torch.arange(12) % 3),
        "gaussian": (Gaussian(0.5).double(), torch.randn(12, 3, generator=generator, dtype=torch.float64)),
        "gaussian by output": (Gaussian(0.5, 3).double(), torch.randn(12, 3, generator=generator, dtype=torch.float64)),
    }[kind]
    likelihood.requires_grad_(False)
    precisions = {n: p.detach() for n, p in TensorwisePrior(model, 2.0).precisions().items()}
    whole = curvature_of(RULES[name](12), model, inputs, likelihood, targets)
    parts = curvature_of(RULES[name](5), model, inputs, likelihood, targets)
    assert_close(parts.log_likelihood, whole.log_likelihood)
    assert_close(parts.log_det(precisions), whole.log_det(precisions))
    assert_close(parts.effective(precisions), whole.effective(precisions))


@pytest.mark.parametrize("name", RULES)
def test_effective_parameters_are_minus_the_derivative_in_log_precision(name, problem):
    model, inputs = problem
    prior = TensorwisePrior(model, 2.0)
    curvature = curvature_of(RULES[name](12), model, inputs, Categorical(), torch.arange(12) % 3)
    (slope,) = torch.autograd.grad(curvature.log_det(prior.precisions()), prior.log_precision)
    gamma = curvature.effective({n: p.detach() for n, p in prior.precisions().items()})
    assert list(gamma) != []
    assert_close(torch.stack([gamma[group] for group in prior.groups]), -slope)


@pytest.mark.parametrize("name", [name for name in RULES if name not in ("lanczos", "preconditioned")])
@pytest.mark.parametrize("outputs", [None, 3])
def test_the_log_determinant_is_differentiable_in_the_noise(name, outputs, problem, generator):
    model, inputs = problem
    targets = torch.randn(12, 3, generator=generator, dtype=torch.float64)
    likelihood = Gaussian(0.5, outputs).double()
    precisions = {n: p.detach() for n, p in TensorwisePrior(model, 2.0).precisions().items()}

    def log_det(log_noise):
        with torch.no_grad():
            likelihood.log_noise.copy_(log_noise)
        return curvature_of(RULES[name](12), model, inputs, likelihood, targets).log_det(precisions)

    start = likelihood.log_noise.detach().clone()
    (found,) = torch.autograd.grad(log_det(start), likelihood.log_noise)
    for index in range(len(start)):
        step = torch.zeros_like(start)
        step[index] = 1e-5
        wanted = (log_det(start + step) - log_det(start - step)).detach() / 2e-5
        if name == "ekfac" and outputs is not None:
            continue  # its basis turns with the noise of single outputs; the derivative holds it fixed
        assert_close(found[index], wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("rule", [Lanczos(2, 100), Preconditioned(Kfac(), 8)], ids=["lanczos", "preconditioned"])
def test_by_products_it_is_differentiable_in_a_shared_noise_and_says_so_of_others(rule, problem, generator):
    model, inputs = problem
    targets = torch.randn(12, 3, generator=generator, dtype=torch.float64)
    precisions = {n: p.detach() for n, p in TensorwisePrior(model, 2.0).precisions().items()}
    shared = Gaussian(0.5).double()
    curvature = curvature_of(rule, model, inputs, shared, targets)
    (found,) = torch.autograd.grad(curvature.log_det(precisions), shared.log_noise)
    assert_close(found[0], -2 * sum(curvature.effective(precisions).values()))
    with pytest.raises(ValueError, match="not in one for each output"):
        curvature_of(rule, model, inputs, Gaussian(0.5, 3).double(), targets).log_det(precisions)


@pytest.mark.parametrize("paths", PATHS)
def test_blocks_are_those_of_the_exact_ggn(paths, generator):
    model, inputs = problem_of(paths, generator)
    targets = torch.arange(12) % 3
    blocks = dense_ggn(model, inputs, softmax_hessian)
    for rule in (Kfac(), Kfac(sharing="reduce"), Ekfac(), Diagonal()):
        found = curvature_of(rule, model, inputs, Categorical(), targets).blocks
        assert found.keys() == dict(model.named_parameters()).keys()
        for name, block in found.items():
            if name.endswith(("omega", "locations")):
                assert_close(block.dense(), blocks[name, name].diagonal().diag())
            elif isinstance(rule, Ekfac | Diagonal):
                assert_close(block.trace(), blocks[name, name].trace())
    prior = TensorwisePrior(model, 2.0)
    precisions = {name: precision.detach() for name, precision in prior.precisions().items()}
    H = joined(blocks, list(precisions))
    wanted = torch.linalg.slogdet(torch.eye(len(H), dtype=H.dtype) + H / 2)[1]
    for rule in (Ggn(), TangentKernel(subset=12)):
        assert_close(curvature_of(rule, model, inputs, Categorical(), targets).log_det(precisions), wanted)
    vector = torch.randn(len(H), generator=generator, dtype=H.dtype)
    product = curvature_of(Lanczos(), model, inputs, Categorical(), targets).products.product
    assert_close(product(vector), H @ vector)


def test_monte_carlo_agrees_with_exact_on_average(problem):
    model, inputs = problem
    targets = torch.arange(12) % 3
    exact = curvature_of(Kfac(), model, inputs, Categorical(), targets)
    sampled = curvature_of(Kfac(MonteCarloFisher(3000)), model, inputs, Categorical(), targets)
    for name, block in exact.blocks.items():
        assert_close(sampled.blocks[name].trace(), block.trace(), rtol=0.05, atol=0)


def test_no_rule_is_missing():
    package = {kind for kind in Rule.__subclasses__() if kind.__module__.startswith("symbayes.")}
    assert {type(build(1)) for build in RULES.values()} == package
