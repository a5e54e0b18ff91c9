"""The full GGN three ways: by Jacobians, in function space, and by products; and how the bound bounds."""

from dataclasses import replace
from math import isnan

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

from symbayes.curvature.ggn import Ggn, Linearised, ggn_product
from symbayes.curvature.kernel import TangentKernel
from symbayes.curvature.kfac import Kfac
from symbayes.curvature.lanczos import Lanczos, Preconditioned
from symbayes.data.source import LoaderSource, Taking, TensorSource, source_for
from symbayes.evidence.evidence import laplace_evidence
from symbayes.layers.conv import ConvPath
from symbayes.likelihoods.classes import Categorical
from symbayes.likelihoods.values import Gaussian
from symbayes.priors import TensorwisePrior
from tests.oracles import dense_ggn, joined, softmax_hessian


@pytest.fixture
def problem(generator):
    model = nn.Sequential(ConvPath(1, 2, (3, 3)), nn.Tanh(), nn.Flatten(), nn.Linear(18, 3)).double()
    inputs = torch.randn(20, 1, 3, 3, generator=generator, dtype=torch.float64)
    data = TensorSource(inputs, torch.arange(20) % 3, torch.device("cpu"))
    prior = TensorwisePrior(model, 0.5)
    with torch.no_grad():
        prior.log_precision.copy_(torch.tensor([0.0, 1.0, -1.0, 0.5], dtype=torch.float64))
    return model, data, {name: p.detach() for name, p in prior.precisions().items()}


def test_jacobians_give_the_ggn_of_the_oracle(problem):
    model, data, _ = problem
    wanted = joined(dense_ggn(model, data.inputs, softmax_hessian), [name for name, _ in model.named_parameters()])
    assert_close(Ggn(batch_size=7).curvature(model, data, Categorical()).H, wanted)


def test_function_space_with_all_data_is_the_full_ggn(problem):
    model, data, precisions = problem
    full = Ggn().curvature(model, data, Categorical())
    kernel = TangentKernel(subset=20).curvature(model, data, Categorical())
    assert_close(kernel.log_det(precisions), full.log_det(precisions))
    assert_close(kernel.effective(precisions), full.effective(precisions))


def test_function_space_does_not_depend_on_the_batches_of_a_loader(problem):
    model, data, precisions = problem
    loader = LoaderSource(DataLoader(TensorDataset(data.inputs, data.targets), 8), Taking(torch.device("cpu")))
    for size, subsets in ((20, 1), (7, None)):
        found = TangentKernel(size, subsets).curvature(model, loader, Categorical())
        assert sum(len(gram.row_scale) for gram in found.grams) == 40
        assert len(found.grams) == -(-20 // size)
    full = Ggn().curvature(model, data, Categorical())
    assert_close(TangentKernel(20).curvature(model, loader, Categorical()).log_det(precisions), full.log_det(precisions))


def test_function_space_on_subsets_charges_more_and_less_so_for_larger_ones(problem):
    model, data, precisions = problem
    charges = [TangentKernel(size, None).curvature(model, data, Categorical()).log_det(precisions) for size in (2, 5, 10, 20)]
    assert charges == sorted(charges, reverse=True)


def test_products_are_those_of_the_dense_matrix(problem, generator):
    model, data, _ = problem
    H = Ggn().curvature(model, data, Categorical()).H
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    vector = torch.randn(len(H), generator=generator, dtype=H.dtype)
    weights = {name: p.detach() for name, p in model.named_parameters()}
    assert_close(ggn_product(Linearised(model, weights, sizes), data, Categorical(), vector, 7), H @ vector)


def test_products_follow_the_noise_of_each_output(problem, generator):
    model, data, _ = problem
    likelihood = Gaussian(0.5, 3).double()
    with torch.no_grad():
        likelihood.log_noise.copy_(torch.tensor([-1.0, 0.0, 1.0]))
    data = TensorSource(data.inputs, torch.zeros(20, 3, dtype=torch.float64), torch.device("cpu"))
    H = Ggn().curvature(model, data, likelihood).H.detach()
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    vector = torch.randn(len(H), generator=generator, dtype=H.dtype)
    weights = {name: p.detach() for name, p in model.named_parameters()}
    assert_close(ggn_product(Linearised(model, weights, sizes), data, likelihood, vector, 20), H @ vector)


@pytest.mark.parametrize("rule", [Lanczos(probes=3, steps=6), Preconditioned(Kfac(), steps=6, probes=3)])
def test_an_evidence_says_how_far_it_may_be_off(rule, generator):
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    inputs = torch.randn(30, 3, generator=generator, dtype=torch.float64)
    data, prior = (inputs, inputs.argmax(1) % 2), TensorwisePrior(model)
    settings = {"likelihood": Categorical(), "prior": prior}
    generator.manual_seed(1)
    found = laplace_evidence(model, data, rule=rule, generator=generator, **settings)
    assert found.slack > 0
    assert found.standard_error > 0
    with torch.no_grad():  # the evidence has half of the log-determinant
        curvature = rule.curvature(model, source_for(model, data), Categorical(), generator=generator.manual_seed(1))
        assert found.slack == pytest.approx(float(curvature.slack(prior.precisions())) / 2)
        probes = curvature.log_dets(prior.precisions())
    assert 2 * found.standard_error > float(probes.std()) / 3**0.5  # and what steps leave out, as far as can be told
    generator.manual_seed(1)
    whole = laplace_evidence(model, data, rule=replace(rule, steps=30), generator=generator, **settings)
    assert whole.slack == pytest.approx(0, abs=1e-6)
    assert 0 < abs(float(found.total.detach() - whole.total.detach())) <= found.slack + 1e-9
    exact = laplace_evidence(model, data, rule=Ggn(), **settings)
    assert (exact.standard_error, exact.slack) == (0, 0)
    assert isnan(laplace_evidence(model, data, **settings).standard_error)


def test_lanczos_estimates_the_full_log_determinant_within_its_error(problem):
    model, data, precisions = problem
    data = TensorSource(data.inputs[:10], data.targets[:10], torch.device("cpu"))  # of rank 20
    full = Ggn().curvature(model, data, Categorical())
    rule = Lanczos(probes=60, steps=21)
    sampled = rule.curvature(model, data, Categorical(), generator=torch.Generator().manual_seed(3))
    error = sampled.standard_error(precisions)
    assert error < 0.05 * float(full.log_det(precisions))
    assert abs(float(sampled.log_det(precisions) - full.log_det(precisions))) < 4 * error
    two = Lanczos(probes=2, steps=21).curvature(model, data, Categorical(), generator=torch.Generator().manual_seed(3))
    first, second = two.log_dets(precisions)
    assert two.standard_error(precisions) == pytest.approx(abs(float(first - second)) / 2)
    found = sampled.effective(precisions)
    for name, gamma in full.effective(precisions).items():
        assert abs(float(found[name] - gamma)) < 1.0


def test_tensors_without_axes_are_in_the_matrix(generator):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.linear = nn.Parameter(torch.tensor(1.5)), nn.Linear(3, 2)

        def forward(self, inputs):
            return self.scale * self.linear(inputs).tanh()

    model = Scaled().double()
    inputs = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    found = Ggn().curvature(model, TensorSource(inputs, torch.arange(5) % 2, torch.device("cpu")), Categorical())
    assert_close(found.H, joined(dense_ggn(model, inputs, softmax_hessian), list(found.sizes)))
