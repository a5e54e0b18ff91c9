"""What is to be learned: a model, data, a likelihood and a prior, checked once before time is spent."""

from dataclasses import dataclass

import torch
from torch import nn

from symbayes.curvature.capture import Capture
from symbayes.curvature.sweep import checked
from symbayes.data.source import DataSource, check_finite
from symbayes.likelihoods import Likelihood
from symbayes.priors import Prior


@dataclass(frozen=True)
class Problem:
    """A model and everything that defines its evidence."""

    model: nn.Module
    data: DataSource
    likelihood: Likelihood
    prior: Prior

    def check(self, batch_size: int) -> None:
        """Refuse what cannot work, before training: shapes, labels, NaN, modules whose curvature cannot be captured."""
        with Capture(self.model) as capture, torch.no_grad():
            seen = 0
            for inputs, targets in self.data.batches(batch_size):
                check_finite(inputs, seen)
                outputs = capture.forward(inputs)
                self.likelihood.check(outputs, targets)
                checked(self.likelihood.log_prob(outputs, targets))
                seen += len(inputs)
