"""Tasks made small, and a likelihood and a network that are none of the known ones, for tests of what is done with them."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from symbayes.data.load import load
from symbayes.data.task import Task
from symbayes.likelihoods.likelihood import Likelihood


def load_few(name: str, load: Callable[[str], Task] = load) -> Task:
    """A task with its first hundred data."""
    task = load(name)
    few = [(inputs[:100], targets[:100]) for inputs, targets in (task.train, task.test)]
    return replace(task, train=few[0], test=few[1])


class Recurrent(nn.Module):
    """Which torch cannot differentiate datum by datum, and which is not unrolled, since its states are projected."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.LSTM(2, 4, batch_first=True, proj_size=3), nn.Linear(3, 2)

    def forward(self, inputs):
        return self.head(self.inner(inputs)[0][:, -1])


class Arrivals(Likelihood):
    """Counts, whose mean is exp f: a likelihood of somebody's own."""

    def log_prob(self, outputs, targets):
        return torch.distributions.Poisson(outputs.exp()).log_prob(targets).sum(1)

    def fisher_columns(self, outputs):
        return torch.diag_embed((outputs / 2).exp()).permute(1, 0, 2)[None]

    def sampled_columns(self, outputs, samples, *, generator=None):
        return self.fisher_columns(outputs)

    def score(self, outputs, targets):
        return targets - outputs.exp()

    def sample(self, outputs, *, generator=None):
        return torch.poisson(outputs.exp(), generator=generator)

    def check(self, outputs, targets):
        assert outputs.shape == targets.shape

    def metrics(self, outputs, targets):
        return {"squared error": (outputs.exp() - targets).square().mean(1)}

    def moments(self, outputs):
        return outputs.exp(), outputs.exp()

    def link(self, mean):
        return mean.log()
