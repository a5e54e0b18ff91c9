"""A group, a path, a curvature rule and a prior from outside the package: nothing in it has to know of them.

Likelihoods have `test_likelihood_from_outside.py`, objectives and optimisers the end of `test_every_objective.py`.
"""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import symbayes as sb
from symbayes.curvature.blocks import DiagonalBlock
from symbayes.curvature.rule import BlockCurvature, Rule
from symbayes.data.source import as_source
from symbayes.groups.group import Group
from symbayes.layers.path import Path
from symbayes.priors import Prior
from symbayes.report.runs import make_page
from tests.contracts import test_every_group, test_every_path
from tests.oracles import dense_ggn, softmax_hessian


class Reversal(Group):
    """A sequence, and the same from its end."""

    name = "reversal"

    def elements(self, grid):
        return iter([(0,), (1,)])

    def identity(self, grid):
        return (0,)

    def product(self, first, second, grid):
        return ((first[0] + second[0]) % 2,)

    def act(self, element, features):
        return features.flip(-1) if element[0] else features


class ReversedPath(Path):
    """y_t = W x_t + V x_{T−t}, equivariant under reversal: a position for each t, whose row is both."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(out_channels, 2 * in_channels) / (2 * in_channels) ** 0.5)
        self.bias = nn.Parameter(torch.zeros(out_channels))

    @property
    def group(self) -> Group:
        return Reversal()

    def forward(self, inputs: Tensor) -> Tensor:
        both = torch.cat([inputs, inputs.flip(-1)], 1)
        return torch.einsum("oi,nit->not", self.weight, both) + self.bias[:, None]

    def input_rows(self, inputs: Tensor) -> Tensor:
        return torch.cat([inputs, inputs.flip(-1)], 1).mT[:, :, None]

    def output_rows(self, outputs: Tensor) -> Tensor:
        return outputs.mT[:, :, None]

    def weight_rows(self) -> Tensor:
        return self.weight[None]

    def bias_rows(self) -> Tensor:
        return self.bias[None]


@dataclass(frozen=True)
class Isotropic(Rule):
    """Of every tensor the mean of the exact diagonal, for all its entries."""

    batch_size: int = 250

    def curvature(self, model, data, likelihood, *, generator=None):
        exact = sb.curvature.Diagonal(batch_size=self.batch_size).curvature(model, data, likelihood)
        blocks = {name: DiagonalBlock(torch.full_like(b.diagonal, b.diagonal.mean())) for name, b in exact.blocks.items()}
        return BlockCurvature(blocks, exact.log_likelihood, str(self), None)

    def __str__(self) -> str:
        return "isotropic"


class KindPrior(Prior):
    """One precision for all weights, and one for all biases."""

    @staticmethod
    def group_name(tensor) -> str:
        return tensor.kind


@pytest.fixture
def data(generator):
    inputs = torch.randn(60, 1, 8, generator=generator)
    return inputs, (inputs.square().sum((1, 2)) > 8).long()


def network() -> nn.Module:
    torch.manual_seed(0)
    paths = {"dense": sb.layers.DensePath((1, 8), (4, 8), scale=0.1), "reversed": ReversedPath(1, 4)}
    return nn.Sequential(sb.RelaxedLayer(paths), nn.Tanh(), nn.Flatten(), nn.Linear(32, 2))


def test_the_contracts_hold_for_them(generator):
    test_every_group.test_elements_act_as_a_group(Reversal(), (4,))
    path, inputs = ReversedPath(2, 3).double(), torch.randn(5, 2, 4, generator=generator, dtype=torch.float64)
    test_every_path.test_forward_equals_the_row_form((path, inputs), generator)
    test_every_path.test_rows_give_the_gradients_of_each_datum((path, inputs), generator)
    for element in Reversal().elements((4,)):
        assert_close(path(Reversal().act(element, inputs)), Reversal().act(element, path(inputs)))


def test_the_curvature_of_a_path_from_outside_is_that_of_jacobians(data):
    model, inputs = network().double(), data[0].double()
    found = sb.curvature.Diagonal().curvature(model, as_source((inputs, data[1]), torch.device("cpu")), sb.Categorical())
    wanted = dense_ggn(model, inputs, softmax_hessian)
    for name, block in found.blocks.items():
        assert_close(block.diagonal, wanted[name, name].diagonal(), rtol=1e-9, atol=1e-12)


def test_they_learn_together(data):
    model = network()
    result = sb.fit(model, data, objective=sb.Laplace(Isotropic()), prior=KindPrior(model), epochs=8, progress=False)
    assert result.evidence.estimator == "isotropic"
    rows = {(row.layer, row.path): row for row in result.symmetries.rows}
    assert rows["0", "reversed"].symmetry == "reversal"
    assert len({row.precision for row in result.symmetries.rows if row.path == "dense"}) == 1
    assert any("reversal" in words for words in result.symmetries.words())
    assert result.predict(data[0][:3]).mean.shape == (3, 2)


def test_a_path_and_a_rule_from_outside_are_saved_and_shown(data, tmp_path):
    result = sb.fit(network(), data, objective=sb.Laplace(Isotropic()), epochs=4, progress=False)
    result.save(tmp_path)
    assert_close(sb.load_result(tmp_path, model=network()).evaluate(data), result.evaluate(data))
    assert "reversal" in make_page(tmp_path)
