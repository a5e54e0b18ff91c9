"""Steps that tests train with: from the CPU, or replayed as graphs are on a GPU."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from symbayes.training.steps import CapturedSteps, Steps

on_a_card = pytest.mark.skipif(not torch.cuda.is_available(), reason="steps are captured on a CUDA device")


def from_cpu(data, batch_size, step, callback, settled, generators, model):
    return Steps(data, batch_size, step, callback)


def captured_into(kept):
    """Captured steps, which are kept so that one can see whether there are graphs."""

    def make(*given):
        kept.append(CapturedSteps(*given))
        return kept[-1]

    return make


def replayed(data, batch_size, step, callback, settled, generators, model):
    """Captured steps whose graphs do the work again: all they read must be where they look for it."""
    steps = CapturedSteps(data, batch_size, step, callback, settled, generators, model)

    def replay(work):
        with steps._reading():
            work()

    steps._record = lambda work: SimpleNamespace(replay=partial(replay, work))
    return steps
