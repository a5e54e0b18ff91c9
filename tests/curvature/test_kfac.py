"""KFAC against the exact GGN where theory says it is exact, and the blocks it keeps apart."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from symbayes.curvature.blocks import DenseBlock, DiagonalBlock, Factor, KroneckerBlock, SecondMoment
from symbayes.curvature.decompositions import decompose
from symbayes.curvature.ggn import Ggn
from symbayes.curvature.kfac import _BYTES, Ekfac, Kfac, data_at_once
from symbayes.data.source import TensorSource
from symbayes.layers.conv import ConvPath
from symbayes.layers.dense import DensePath
from symbayes.layers.factored import FactoredPath
from symbayes.layers.patches import pays
from symbayes.layers.relaxed import RelaxedLayer
from symbayes.layout import Hyperparameter
from symbayes.likelihoods.classes import Bernoulli, Categorical
from symbayes.likelihoods.values import Gaussian
from tests.oracles import dense_ggn, softmax_hessian

CPU = torch.device("cpu")


def curvature_of(rule, model, inputs, likelihood=None, targets=None):
    likelihood = likelihood or Categorical()
    targets = torch.zeros(len(inputs), dtype=torch.long) if targets is None else targets
    return rule.curvature(model, TensorSource(inputs, targets, CPU), likelihood)


def test_it_is_exact_for_a_single_datum(generator):
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    inputs = torch.randn(1, 4, generator=generator, dtype=torch.float64)
    wanted = dense_ggn(model, inputs, softmax_hessian)
    found = curvature_of(Kfac(), model, inputs)
    for name, block in found.blocks.items():
        assert_close(block.dense(), wanted[name, name])


@pytest.mark.parametrize("outputs", [None, 3])
def test_it_is_exact_for_linear_networks(outputs, generator):
    model = nn.Sequential(nn.Linear(4, 5, bias=False), nn.Linear(5, 3, bias=False)).double()
    inputs = torch.randn(7, 4, generator=generator, dtype=torch.float64)
    likelihood = Gaussian(0.3, outputs).double()
    if outputs:
        with torch.no_grad():
            likelihood.log_noise.copy_(torch.tensor([-1.0, 0.0, 0.5]))
    wanted = dense_ggn(model, inputs, lambda f: torch.diag(likelihood.scales().detach().expand(3)))
    found = curvature_of(Kfac(), model, inputs, likelihood, torch.zeros(7, 3, dtype=torch.float64))
    for name, block in found.blocks.items():
        assert_close(block.dense().detach(), wanted[name, name])


def test_reduce_is_exact_for_a_linear_map_that_is_averaged_over_positions(generator):
    class Averaged(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, inputs):
            return self.linear(inputs).mean(1)

    model = Averaged().double()
    inputs = torch.randn(6, 5, 3, generator=generator, dtype=torch.float64)
    targets = torch.zeros(6, 2, dtype=torch.float64)
    likelihood = Gaussian().double().requires_grad_(False)
    wanted = dense_ggn(model, inputs, lambda f: torch.eye(2, dtype=f.dtype))
    for name, block in curvature_of(Kfac(sharing="reduce"), model, inputs, likelihood, targets).blocks.items():
        assert_close(block.dense(), wanted[name, name])


def test_reduce_is_exact_for_filters_whose_patches_are_many(generator):
    # So many that without `reduce` their moment is taken without forming them.
    model = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten()).double()
    inputs = torch.randn(6, 2, 16, 16, generator=generator, dtype=torch.float64)
    assert pays(inputs)
    likelihood = Gaussian().double().requires_grad_(False)
    wanted = dense_ggn(model, inputs, lambda f: torch.eye(2, dtype=f.dtype))
    found = curvature_of(Kfac(sharing="reduce"), model, inputs, likelihood, torch.zeros(6, 2, dtype=torch.float64))
    for name, block in found.blocks.items():
        assert_close(block.dense(), wanted[name, name])


def relaxed_network():
    paths = {"factored": FactoredPath((2, 4, 4), (3, 2, 2)), "conv": ConvPath(2, 3, (3, 3), stride=2)}
    deeper = {"dense": DensePath((3, 2, 2), (4, 1, 1)), "conv": ConvPath(3, 4, (3, 3), stride=2)}
    layers = (
        RelaxedLayer(paths, stride=2),
        nn.ReLU(),
        RelaxedLayer(deeper, stride=2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(4, 3),
    )
    return nn.Sequential(*layers).double()


def test_the_trace_of_ekfac_is_that_of_the_exact_block(generator):
    model = relaxed_network()
    inputs = torch.randn(9, 2, 4, 4, generator=generator, dtype=torch.float64)
    wanted = curvature_of(Ggn(joint=False), model, inputs).trace()
    found = curvature_of(Ekfac(), model, inputs).trace()
    assert found.keys() == wanted.keys()
    for name in wanted:
        assert_close(found[name], wanted[name])


def test_biases_have_their_exact_blocks(generator):
    model = relaxed_network()
    inputs = torch.randn(9, 2, 4, 4, generator=generator, dtype=torch.float64)
    wanted = dense_ggn(model, inputs, softmax_hessian)
    for name, block in curvature_of(Kfac(), model, inputs).blocks.items():
        if name.endswith("bias"):
            assert_close(block.dense(), wanted[name, name])


def test_the_trace_is_within_a_factor_of_two_of_the_exact_one_on_a_relaxed_network(generator):
    model = relaxed_network()
    inputs = torch.randn(60, 2, 4, 4, generator=generator, dtype=torch.float64)
    exact = sum(curvature_of(Ggn(joint=False), model, inputs).trace().values())
    for rule in (Kfac(), Kfac(pool_blocks=True)):
        assert 0.5 < sum(curvature_of(rule, model, inputs).trace().values()) / exact < 2


def test_blocks_kept_apart_are_closer_to_the_exact_curvature_than_pooled_ones(generator):
    model = nn.Sequential(FactoredPath((3, 4, 4), (4, 2, 2)), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3)).double()
    inputs = torch.randn(40, 3, 4, 4, generator=generator, dtype=torch.float64) * torch.tensor([0.3, 1, 3]).view(3, 1, 1)
    delta = torch.tensor(1.0, dtype=torch.float64)
    for name in ("0.gather.weight", "0.scatter.weight"):
        exact, apart, pooled = (
            curvature_of(rule, model, inputs).blocks[name].log_det(delta)
            for rule in (Ggn(joint=False), Kfac(), Kfac(pool_blocks=True))
        )
        assert (apart - exact).abs() <= (pooled - exact).abs()


def test_pooled_factors_share_the_mean_of_g(generator):
    model = nn.Sequential(FactoredPath((3, 4, 4), (4, 2, 2)), nn.Flatten(), nn.Linear(16, 3)).double()
    inputs = torch.randn(8, 3, 4, 4, generator=generator, dtype=torch.float64)
    apart = curvature_of(Kfac(), model, inputs).blocks["0.gather.weight"]
    pooled = curvature_of(Kfac(pool_blocks=True), model, inputs).blocks["0.gather.weight"]
    assert pooled.G.matrices.shape[0] == 1
    assert_close(pooled.G.matrices[0], apart.G.matrices.mean(0))
    assert_close(pooled.A.matrices, apart.A.matrices)


def test_a_mixture_of_kronecker_and_diagonal_blocks_makes_one_posterior(generator):
    model = nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 3)).double()
    inputs = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    blocks = curvature_of(Kfac(diagonal=("2.*",)), model, inputs).blocks
    kinds = {name: type(block) for name, block in blocks.items()}
    assert kinds["0.weight"] is KroneckerBlock
    assert kinds["1.weight"] is kinds["1.bias"] is kinds["2.weight"] is DiagonalBlock
    assert blocks.keys() == dict(model.named_parameters()).keys()


@pytest.mark.parametrize("mode", ["circular", "reflect", "replicate", "zeros"])
def test_padding_enters_the_factors_as_it_enters_the_forward_pass(mode, generator):
    # One output position: expand is exact for a single datum, so a wrong padding would show.
    conv = nn.Conv2d(2, 3, 3, padding=1, stride=4, padding_mode=mode)
    model = nn.Sequential(conv, nn.Flatten()).double()
    inputs = torch.randn(1, 2, 4, 4, generator=generator, dtype=torch.float64)
    assert model(inputs).shape == (1, 3)
    wanted = dense_ggn(model, inputs, softmax_hessian)
    for name, block in curvature_of(Kfac(), model, inputs).blocks.items():
        assert_close(block.dense(), wanted[name, name])


def test_multi_label_curvature_is_exact_for_a_single_datum(generator):
    model = nn.Linear(4, 3).double()
    inputs = torch.randn(1, 4, generator=generator, dtype=torch.float64)
    wanted = dense_ggn(model, inputs, lambda f: torch.diag(f.sigmoid() * (1 - f.sigmoid())))
    found = curvature_of(Kfac(), model, inputs, Bernoulli(), torch.zeros(1, 3))
    assert_close(found.blocks["weight"].dense(), wanted["weight", "weight"])


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.integers(0, 1000))
def test_the_log_determinant_of_a_kronecker_block_is_that_of_its_dense_matrix(blocks, d_out, d_in, seed):
    generator = torch.Generator().manual_seed(seed)

    def factor(size):
        root = torch.randn(blocks, size, size, generator=generator, dtype=torch.float64)
        return Factor(root @ root.transpose(1, 2), False, "test")

    block = KroneckerBlock(factor(d_out), factor(d_in))
    delta = torch.tensor(0.7, dtype=torch.float64)
    H = block.dense()
    identity = torch.eye(len(H), dtype=H.dtype)
    assert_close(block.log_det(delta), torch.logdet(identity + H / delta))
    assert_close(block.effective(delta), torch.trace(H @ torch.linalg.inv(H + delta * identity)))
    assert_close(block.trace(), H.trace())


@given(st.integers(1, 3), st.integers(1, 150), st.integers(0, 1000))
def test_second_moments_add_up_over_batches(blocks, width, seed):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(5, 2, blocks, width, generator=generator, dtype=torch.float64)
    moment = SecondMoment()
    moment.add(rows[:2])
    moment.add(rows[2:])
    assert_close(moment.sum, torch.einsum("nsbi,nsbj->bij", rows, rows))


@pytest.mark.parametrize("vectors", [False, True])
def test_factors_of_one_size_are_decomposed_together_whatever_their_scale(generator, vectors):
    """Also where a path is off: zeros, and squares of gradients that single precision hardly holds."""
    rows = torch.randn(4, 6, 12, generator=generator)
    matrices = rows @ rows.mT * torch.tensor([1.0, 1e-30, 0.0, 1e20])[:, None, None]
    factors = [Factor(matrices[:1], False, "first"), Factor(matrices[1:], False, "others")]
    decompose([DenseBlock(factor) for factor in factors], vectors=vectors)
    found = torch.cat([factor.eigenvalues for factor in factors])
    assert_close(found, torch.linalg.eigvalsh(matrices.double()).float(), rtol=1e-4, atol=0)
    if vectors:
        U = torch.cat([vars(factor)["eigenvectors"] for factor in factors])
        assert_close(U.mT @ U, torch.eye(6).expand(4, 6, 6), rtol=0, atol=1e-5)
        sizes = matrices.abs().amax((1, 2), keepdim=True).clamp(min=1e-35)
        assert_close((U * found[:, None]) @ U.mT / sizes, matrices / sizes, rtol=0, atol=1e-5)
    else:
        assert "eigenvectors" not in vars(factors[0])


def test_batches_suit_the_device(generator):
    """A few on a CPU; elsewhere many, but not more than memory holds. Nothing is computed on the device of this test."""
    inputs, targets = torch.randn(2, 3, 32, 32, generator=generator), torch.zeros(2, dtype=torch.long)
    small, large = (nn.Sequential(nn.Conv2d(3, c, 3, padding=1), nn.Flatten(), nn.Linear(1024 * c, 2)) for c in (8, 512))
    few = data_at_once(small, TensorSource(inputs, targets, CPU))
    assert few < 1000
    device = torch.device("meta")
    elsewhere = TensorSource(inputs, targets, device)
    assert data_at_once(small.to(device), elsewhere) == 5000
    assert _BYTES / 2 < data_at_once(large.to(device), elsewhere) * 512 * 1024 * 4 <= _BYTES
    with device:
        learns_more = nn.Sequential(Scaled(), nn.Flatten(), nn.Linear(3072, 2))
    with torch.no_grad():
        assert data_at_once(learns_more, elsewhere) == few  # the pass may be made again with a graph


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = Hyperparameter(torch.ones(()))

    def forward(self, x):
        return x * self.scale


class Powers(nn.Module):
    """A parameter without rows."""

    def __init__(self, features):
        super().__init__()
        self.power = nn.Parameter(torch.linspace(1, 2, features))

    def forward(self, x):
        return x.sigmoid() ** self.power


@pytest.mark.parametrize(("rule", "last", "most"), [
    (Kfac(), nn.Linear(6, 2), 20),
    (Kfac(diagonal=("0.*",)), nn.Linear(6, 2), 10),
    (Kfac(), Powers(6), 10),
    (Kfac(), nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 2)), 20),
    (Kfac(batch_size=12), nn.Linear(6, 2), 12),
])  # fmt: skip
def test_where_gradients_of_single_data_are_held_batches_are_small(rule, last, most, generator, monkeypatch):
    monkeypatch.setattr("symbayes.curvature.kfac.data_at_once", lambda model, data: 20)
    monkeypatch.setattr("symbayes.curvature.kfac._DATA", 10)
    seen = []
    model = nn.Sequential(nn.Linear(4, 6), last)
    model.register_forward_hook(lambda module, inputs, outputs: seen.append(len(outputs)))
    curvature_of(rule, model, torch.randn(40, 4, generator=generator))
    assert max(seen) == most


def test_the_size_of_batches_does_not_matter(generator):
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    inputs = torch.randn(300, 4, generator=generator, dtype=torch.float64)
    some, one = (curvature_of(Kfac(batch_size=size), model, inputs) for size in (None, 300))
    for name, block in some.blocks.items():
        assert_close(block.dense(), one.blocks[name].dense())
