"""KFAC factors and their eigenvalues, ours and those of curvlinops, in gradients of the same network and data."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from curvlinops import KFACLinearOperator
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.networks import Network, data_for
from symbayes.curvature.blocks import DenseBlock, Factor, KroneckerBlock
from symbayes.curvature.kfac import Kfac
from symbayes.curvature.rule import BlockCurvature, EmpiricalFisher, ExactFisher, Fisher, MonteCarloFisher
from symbayes.data.source import TensorSource
from symbayes.likelihoods.classes import Categorical

#: By the name used in tables: our Fisher, and the name curvlinops has for it.
FISHERS: Mapping[str, tuple[Fisher, str]] = {
    "exact": (ExactFisher(), "type-2"),
    "Monte-Carlo": (MonteCarloFisher(1), "mc"),
    "empirical": (EmpiricalFisher(), "empirical"),
}


class Workload:
    """A network with data, and what is measured on it."""

    def __init__(self, network: Network, size: int, batch_size: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.model = network.build()
        for weight in self.model.parameters():
            if weight.ndim > 1:
                nn.init.kaiming_uniform_(weight, nonlinearity="relu", generator=generator)
            else:
                nn.init.zeros_(weight)
        self.batch_size, self.size = batch_size, size
        self.inputs, self.targets = data_for(network, size, generator)
        self.source = TensorSource(self.inputs, self.targets, torch.device("cpu"))
        self.batches = list(self.source.batches(batch_size))
        self.weights = list(self.model.parameters())

    def gradient(self) -> None:
        """The unit: forward and backward passes for the gradient of the weights."""
        for inputs, targets in self.batches:
            torch.autograd.grad(functional.cross_entropy(self.model(inputs), targets), self.weights)

    def ours(self, fisher: str) -> BlockCurvature:
        """Our factors; eigenvalues are not computed until they are asked for."""
        rule = Kfac(FISHERS[fisher][0], batch_size=self.batch_size)
        return rule.curvature(self.model, self.source, Categorical(), generator=torch.Generator().manual_seed(0))

    def theirs(self, fisher: str) -> KFACLinearOperator:
        """Factors of curvlinops, told all that it would else find out by passes over the data."""
        operator = KFACLinearOperator(
            self.model,
            nn.CrossEntropyLoss(reduction="sum"),
            self.weights,
            self.batches,
            check_deterministic=False,
            fisher_type=FISHERS[fisher][1],
            separate_weight_and_bias=True,
            num_per_example_loss_terms=1,
            num_data=self.size,
        )
        operator.compute_kronecker_factors()
        return operator

    def eigenvalues(self) -> Callable[[], None]:
        """The eigenvalues of all exact factors, each decomposed once."""
        factors: dict[int, Factor] = {}
        for block in self.ours("exact").blocks.values():
            match block:
                case KroneckerBlock():
                    factors |= {id(factor): factor for factor in (block.G, block.A)}
                case DenseBlock():
                    factors[id(block.H)] = block.H

        def run() -> None:
            for factor in factors.values():
                _ = Factor(factor.matrices, factor.diagonal, factor.name).eigenvalues

        return run

    def difference(self, fisher: str) -> dict[str, float]:
        """The largest relative difference of our factors from those of curvlinops, in Frobenius norm."""
        blocks, state = self.ours(fisher).blocks, self.theirs(fisher).state_dict()
        found = {"A": 0.0, "G": 0.0}
        for name, block in blocks.items():
            if isinstance(block, KroneckerBlock):
                module = name.removesuffix(".weight")
                found["A"] = max(found["A"], _relative(block.A.matrices[0], state["input_covariances"][module]))
                found["G"] = max(found["G"], _relative(block.G.matrices[0], state["gradient_covariances"][module]))
        return found

    def cases(self, peer: bool) -> dict[str, Callable[[], Any]]:
        """What is timed, by name; the unit first."""
        cases: dict[str, Callable[[], Any]] = {"gradient": self.gradient}
        for fisher in FISHERS:
            cases[f"ours {fisher}"] = partial(self.ours, fisher)
            if peer:
                cases[f"curvlinops {fisher}"] = partial(self.theirs, fisher)
        return cases


def _relative(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())
