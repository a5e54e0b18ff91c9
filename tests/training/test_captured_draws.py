"""What must not be captured: steps that draw random numbers on the CPU, which a graph would repeat."""

import random

import torch

from symbayes.data.source import TensorSource
from symbayes.training.steps import CapturedSteps


def captured(draw, monkeypatch):
    """Which kinds of work would be captured in an epoch of steps that draw so."""
    source = TensorSource(torch.zeros(40, 2), torch.zeros(40), torch.device("cpu"))
    steps = CapturedSteps(source, 4, lambda batch: torch.zeros(()) * draw(), None, lambda: True, [])
    found = []
    monkeypatch.setattr(steps, "_capture", lambda work: found.append(work.__name__))
    steps.epoch(torch.Generator().manual_seed(0))
    return found


def test_steps_that_draw_on_the_host_are_not_captured(monkeypatch, caplog):
    assert set(captured(lambda: 1.0, monkeypatch)) == {"_step"}
    assert not caplog.records
    for draw in (random.random, lambda: float(torch.rand(()))):
        caplog.clear()
        assert captured(draw, monkeypatch) == []
        assert [record.message for record in caplog.records] == [
            "The model draws random numbers on the CPU, which a CUDA graph would repeat: no step is captured."
        ]
