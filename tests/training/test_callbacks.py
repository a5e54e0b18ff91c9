"""Callbacks and loggers are given every record, and data that are watched change nothing."""

import sys
from types import ModuleType

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import symbayes as sb
from symbayes.data.source import source_for
from symbayes.loggers import scalars
from symbayes.training.fit import Watched
from symbayes.training.trainer import Problem
from tests.small import load_few


@pytest.fixture(scope="module")
def task():
    return load_few("upright-digits")


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(256, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 10))


def test_callbacks_are_given_every_record_and_closed(task):
    class Kept:
        def __init__(self):
            self.records, self.closed = [], 0

        def __call__(self, record):
            self.records.append(record)

        def close(self):
            self.closed += 1

    kept, plain = Kept(), []
    result = sb.fit(network(), task.train, epochs=2, callbacks=[kept, plain.append], progress=False)
    assert tuple(kept.records) == tuple(plain) == result.history
    assert kept.closed == 1

    def fail(record):
        raise RuntimeError("disk is full")

    with pytest.raises(RuntimeError, match="disk is full"):
        sb.fit(network(), task.train, epochs=2, callbacks=[fail, kept], progress=False)
    assert kept.closed == 2


def test_one_callback_needs_no_list(task):
    found = []
    result = sb.fit(network(), task.train, epochs=1, objective=sb.Map(), callbacks=found.append, progress=False)
    assert tuple(found) == result.history
    with pytest.raises(TypeError, match="Callbacks must be functions that take a record; got str"):
        sb.fit(network(), task.train, epochs=1, callbacks=[found.append, "log"], progress=False)


@pytest.mark.parametrize("kind", ["pair", "loader"])
def test_data_that_are_watched_are_evaluated_and_change_nothing(task, kind):
    watched = task.test if kind == "pair" else DataLoader(TensorDataset(*task.test), batch_size=30, shuffle=True)
    models = network(), network()
    torch.manual_seed(1)
    alone = sb.fit(models[0], task.train, epochs=3, progress=False)
    torch.manual_seed(1)
    beside = sb.fit(models[1], task.train, epochs=3, progress=False, validation=watched)
    for name, value in models[0].state_dict().items():
        assert torch.equal(value, models[1].state_dict()[name]), name
    assert alone.log_evidence == beside.log_evidence
    assert [record.validation for record in alone.history] == [{}] * 3
    assert len({record.validation["nll"] for record in beside.history}) == 3
    # The last epoch of a preset may be of a network that a search gave up; by MAP it is of the result.
    by_map = sb.fit(network(), task.train, epochs=2, objective=sb.Map(), progress=False, validation=watched)
    assert by_map.history[-1].validation == pytest.approx(by_map.evaluate(task.test, by="plug-in"), abs=1e-6)


def test_tensorboard_holds_evidence_and_gamma(task, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = sb.fit(
        network(), task.train, epochs=3, callbacks=[sb.loggers.TensorBoard(tmp_path)], validation=task.test, progress=False
    )
    events = EventAccumulator(str(tmp_path)).Reload()
    written = {name: {one.step: one.value for one in events.Scalars(name)} for name in events.Tags()["scalars"]}
    for name in ("loss", "validation/accuracy", "validation/nll"):
        assert list(written[name]) == [1, 2, 3]
    evidence = result.evidence
    assert written["evidence/total"][3] == pytest.approx(evidence.total)
    for tensor, value in evidence.effective.items():
        assert written[f"gamma/{tensor}"][3] == pytest.approx(value)
        assert written[f"precision/{tensor}"][3] == pytest.approx(evidence.precision[tensor])


def test_other_loggers_are_given_the_same_numbers(task, monkeypatch):
    logged = []
    mlflow = ModuleType("mlflow")
    mlflow.log_metrics = lambda values, step: logged.append((step, values))
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)

    class Run:
        def log(self, values, step):
            logged.append((step, values))

    callbacks = [sb.loggers.MLflow(), sb.loggers.WandB(Run())]
    result = sb.fit(network(), task.train, epochs=1, callbacks=callbacks, progress=False)
    assert logged == [(1, scalars(result.history[0]))] * 2


@pytest.mark.parametrize(
    ("package", "make"),
    [("mlflow", sb.loggers.MLflow), ("wandb", sb.loggers.WandB), ("tensorboard", lambda: sb.loggers.TensorBoard("x"))],
)
def test_a_package_that_is_not_there_is_asked_for(package, make, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"pip install 'symbayes\[{package}\]'"):
        make()


def test_callbacks_may_change_their_record_and_nothing_else(task, tmp_path):
    def spoil(record):
        record.extents["angle"] = 1.0
        if record.evidence is not None:
            record.evidence.precision.clear()

    result = sb.fit(network(), task.train, epochs=2, callbacks=[spoil], progress=False)
    assert all(not record.extents for record in result.history)
    assert len(result.evidence.precision) > 0
    result.save(tmp_path)


def test_data_that_cannot_be_watched_are_refused_before_training(task):
    inputs, targets = task.test
    begun = []
    for watched, kind, message in (
        ((inputs[..., 1:], targets), ValueError, "Validation data must be of the shape"),
        ((inputs.clone().fill_(torch.nan), targets), sb.NotFiniteError, "nll on them is nan"),
        ((inputs, targets + 10), ValueError, "targets must lie in"),
    ):
        with pytest.raises(kind, match=message):
            sb.fit(network(), task.train, epochs=2, callbacks=[begun.append], validation=watched, progress=False)
    assert not begun


def test_what_is_not_finite_while_watching_is_left_out(task, tmp_path):
    model = network()
    problem = Problem(model, source_for(model, task.train), sb.Categorical(), sb.ScalarPrior(model))
    watched = Watched(problem, source_for(model, task.test))
    with torch.no_grad():
        model[-1].weight.fill_(torch.inf)
    assert "nll" not in watched.metrics()
    assert "accuracy" in watched.metrics()
