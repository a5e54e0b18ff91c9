"""Steps of an epoch: what is looked at and when, and captured steps that are those from the host."""

import gc

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

from symbayes.data.source import as_source
from symbayes.data.transform import FlipCrop
from symbayes.training.optimiser import PATIENCE, ProximalAdam
from symbayes.training.steps import Callback, CapturedSteps, Steps, _nothing_collected, steps_for
from tests.replays import on_a_card

CPU = torch.device("cpu")


def images(n):
    return torch.arange(n * 16.0).view(n, 1, 4, 4) + 1, torch.arange(n)


def looks(data, batch_size, every, epochs, augment=None):
    """The numbers of steps after which was looked, and what was seen."""
    taken, seen = [], []

    def step(batch):
        taken.append(len(batch[0]))
        return torch.tensor(float(len(batch[0])))

    callback = Callback(lambda batch: seen.append((len(taken), batch)), every)
    steps = Steps(as_source(data, CPU, augment), batch_size, step, callback)
    for epoch in range(epochs):
        total = steps.epoch(torch.Generator().manual_seed(epoch))
        assert total == len(data[0]) if isinstance(data, tuple) else total > 0
    return taken, seen


def test_looks_are_at_every_so_many_th_step_over_epochs():
    taken, seen = looks(images(20), 5, 3, 3)
    assert taken == [5] * 12
    assert [at for at, _ in seen] == [3, 6, 9, 12]


def test_looks_are_at_whole_batches_only():
    taken, seen = looks(images(12), 5, 3, 3)  # of 5, 5 and 2
    assert taken == [5, 5, 2] * 3
    assert seen == []
    taken, seen = looks(images(12), 5, 2, 3)
    assert [at for at, _ in seen] == [2, 4, 8]
    taken, seen = looks(images(11), 5, 2, 2)  # the last takes in the one that is left
    assert taken == [5, 6] * 2
    assert seen == []


def test_few_data_and_loaders_have_batches_of_their_own_size():
    assert [len(batch[0]) for _, batch in looks(images(3), 5, 1, 2)[1]] == [3, 3]
    loader = DataLoader(TensorDataset(*images(10)), 4)
    assert [(at, len(batch[0])) for at, batch in looks(loader, 128, 1, 2)[1]] == [(1, 4), (2, 4), (4, 4), (5, 4)]


def test_what_is_looked_at_is_the_batch_of_the_step_without_augmentation():
    inputs, targets = images(20)
    steps = []
    source = as_source((inputs, targets), CPU, FlipCrop(2))
    seen = []
    run = Steps(source, 5, lambda batch: steps.append(batch) or torch.zeros(()), Callback(seen.append, 2))
    run.epoch(torch.Generator().manual_seed(0))
    assert len(seen) == 2
    for (x, y), (varied, same) in zip(seen, steps[1::2], strict=True):
        assert_close(y, same)
        assert_close(x, inputs[y], rtol=0, atol=0)
        assert not torch.equal(varied, x)


def test_steps_are_from_the_host_without_a_device():
    steps = steps_for(as_source(images(20), CPU), 2, lambda batch: torch.zeros(()), None, lambda: True, [])
    assert type(steps) is Steps


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_is_collected_before_a_capture_and_not_during_it(enabled):
    class Cycle:
        ends = 0

        def __init__(self):
            self.itself = self

        def __del__(self):
            Cycle.ends += 1

    was, thresholds = gc.isenabled(), gc.get_threshold()
    (gc.enable if enabled else gc.disable)()
    try:
        Cycle()
        with _nothing_collected():
            assert Cycle.ends == 1
            gc.set_threshold(1)
            Cycle()
            assert [[] for _ in range(1000)]
            assert Cycle.ends == 1
        assert gc.isenabled() == enabled
    finally:
        gc.set_threshold(*thresholds)
        (gc.enable if was else gc.disable)()


@on_a_card
@pytest.mark.parametrize("size", [200, 203, 201])
def test_captured_steps_are_those_from_the_host(size, monkeypatch):
    monkeypatch.setattr("random.getstate", lambda: 0)  # checks of types in tests draw which entries they look at
    device = torch.device("cuda")
    inputs = torch.randn(size, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    source = as_source((inputs, torch.arange(size) % 3), device, FlipCrop(1))

    def run(captured):
        with torch.random.fork_rng():
            torch.random.manual_seed(0)
            model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 3)).to(device)
        optimiser = ProximalAdam(list(model.parameters()))
        optimiser.set(0.01, [0.1] * 4)
        seen = torch.zeros(2, device=device, dtype=torch.float64)

        def step(batch):
            loss = nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")
            optimiser.step(torch.autograd.grad(loss / len(batch[0]), list(model.parameters())))
            return loss.detach()

        def look(batch):
            seen[0] += 1
            seen[1] += batch[0].double().sum()

        callback = Callback(look, 3)
        settled = lambda: optimiser.settled  # noqa: E731
        steps = CapturedSteps(source, 20, step, callback, settled, []) if captured else Steps(source, 20, step, callback)
        generator = torch.Generator().manual_seed(1)
        losses = torch.stack([steps.epoch(generator) for _ in range(4)])
        assert not captured or len(steps._graphs) == 2
        return losses, seen, [weight.detach() for weight in model.parameters()]

    assert 4 * size // 20 > 2 * PATIENCE
    for ours, theirs in zip(run(True), run(False), strict=True):
        assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def noisy_steps(kind, wait=False):
    """Steps on a card whose loss is drawn there; those that wait for it cannot be captured."""
    device = torch.device("cuda")
    draws = torch.Generator(device).manual_seed(0)

    def step(batch):
        loss = torch.randn(len(batch[0]), generator=draws, device=device).sum() + torch.rand((), device=device)
        if wait and torch.cuda.is_current_stream_capturing():
            loss.item()
        return loss

    torch.cuda.manual_seed(0)
    source = as_source(images(100), device)
    return kind(source, 20, step, None, lambda: True, [draws]) if kind is CapturedSteps else kind(source, 20, step)


@on_a_card
def test_the_end_of_an_earlier_training_does_not_break_off_a_capture(monkeypatch):
    """Garbage that holds a graph lies there as a capture begins, and would be collected at once."""
    monkeypatch.setattr("random.getstate", lambda: 0)
    thresholds = gc.get_threshold()
    gc.collect()
    gc.disable()
    try:
        earlier = [noisy_steps(CapturedSteps)]
        earlier[0].epoch(torch.Generator())
        later = noisy_steps(CapturedSteps)
        step = later.step

        def collecting(batch):
            earlier.clear()
            if torch.cuda.is_current_stream_capturing():
                gc.set_threshold(1)
                assert [[] for _ in range(1000)]
            return step(batch)

        later.step = collecting
        gc.set_threshold(10**6)
        gc.enable()
        later.epoch(torch.Generator())
        assert len(later._graphs) == 1
    finally:
        gc.set_threshold(*thresholds)
        gc.enable()


@on_a_card
def test_steps_that_cannot_be_captured_go_on_from_the_host(monkeypatch, caplog):
    monkeypatch.setattr("random.getstate", lambda: 0)
    before = torch.cuda.current_stream()
    found = []
    for kind in (CapturedSteps, Steps):
        steps = noisy_steps(kind, wait=True)
        found.append(torch.stack([steps.epoch(torch.Generator().manual_seed(0)) for _ in range(3)]))
    assert "could not be captured" in caplog.text
    assert torch.cuda.current_stream() == before
    assert_close(*found)
