"""Likelihoods whose Fisher information is diagonal, so that its root is a number for each output."""

from abc import abstractmethod

import torch
from torch import Generator

from symbayes.likelihoods import Columns, Likelihood, Outputs, random_signs


class Diagonal(Likelihood):
    """A likelihood that gives the root of its diagonal Fisher information, and has its columns from that."""

    @abstractmethod
    def fisher_root(self, outputs: Outputs) -> Outputs:
        """√(−E ∂² log p / ∂f²), output by output."""

    def fisher_columns(self, outputs: Outputs) -> Columns:
        return torch.diag_embed(self.fisher_root(outputs)).movedim(1, 0)[None]

    def sampled_columns(self, outputs: Outputs, samples: int, *, generator: Generator | None = None) -> Columns:
        signs = random_signs((samples, *outputs.shape), outputs, generator)
        return (signs * self.fisher_root(outputs) / samples**0.5)[None]

    def product(self, outputs: Outputs, vectors: Outputs) -> Outputs:
        root = self.fisher_root(outputs)
        return root * (root * vectors)
