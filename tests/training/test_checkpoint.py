"""Training that is interrupted goes on to the same numbers, bit for bit; what does not belong together is refused by name."""

import json
import os
import shutil
import signal
import tracemalloc
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import symbayes as sb
from symbayes.data.folders import locked
from symbayes.data.source import as_source
from symbayes.data.transform import FlipCrop
from symbayes.errors import BusyError
from symbayes.report.runs import make_page
from symbayes.training import checkpoint as checkpoint_module
from symbayes.training.by_curvature import CurvatureTrainer
from symbayes.training.checkpoint import PROBLEM, RECORDS, Checkpoint, asked_to_stop, describe
from symbayes.training.deterministic import deterministic_algorithms
from symbayes.training.elbo import ElboTrainer
from symbayes.training.fit import learn
from symbayes.training.optimiser import Optimiser
from symbayes.training.scale import ScaleSearch
from symbayes.training.trainer import TENSORS, Problem
from tests.damage import reseal

GENERATOR = torch.Generator().manual_seed(0)
IMAGES = torch.randn(40, 1, 8, 8, generator=GENERATOR)
CLASSES = (IMAGES.mean((1, 2, 3)) > 0).long() + (IMAGES[:, 0, 0, 0] > 0).long()
DATA = IMAGES, CLASSES
VALUES = IMAGES, IMAGES.flatten(1)[:, :2]
SEARCH = sb.Laplace(symmetric_start=True, search=ScaleSearch(tries=3, share=0.2, steps=3))


def network(outputs=3):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        conv = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Tanh(), nn.Dropout(0.2), nn.Flatten())
        return nn.Sequential(*conv, nn.Linear(108, outputs))


def relaxed():
    return sb.relax(network(), IMAGES[:4])


#: Networks, data and settings, with everything that a state may have.
CASES = {
    "search": (relaxed, DATA, {"objective": SEARCH, "optimiser": Optimiser(2, 3, eigenbasis=2)}),
    "map": (network, DATA, {"objective": sb.Map(), "augment": FlipCrop(1)}),
    "elbo": (network, DATA, {"objective": sb.Elbo(samples=2, final_samples=4)}),
    "noise": (lambda: network(2), VALUES, {"likelihood": lambda: sb.Gaussian(0.5, 2)}),
    "loader": (
        network,
        lambda: DataLoader(TensorDataset(*DATA), 8, shuffle=True, generator=torch.Generator().manual_seed(5)),
        {"objective": sb.Laplace()},
    ),
}
EPOCHS = 10


def fitted(case, **options):
    """Everything anew, as in another process."""
    build, data, settings = CASES[case]
    torch.manual_seed(4)
    made = {name: value() if name == "likelihood" else value for name, value in settings.items()}
    return sb.fit(
        build(),
        data() if callable(data) else data,
        epochs=EPOCHS,
        seed=3,
        progress=False,
        checkpoint_every=0.0,
        **made,
        **options,
    )


class GoneError(Exception):
    """A process that ends."""


def killed_after(monkeypatch, epochs):
    """Let training end without a word before its epoch of this number is done."""

    def dying(real):
        def step(self, state):
            if state.epoch == epochs:
                real(self, state)  # it does its work, which is lost
                raise GoneError
            return real(self, state)

        return step

    for kind in (CurvatureTrainer, ElboTrainer):
        monkeypatch.setattr(kind, "epoch", dying(kind.epoch))


def assert_same(ours, theirs):
    assert [replace(record, seconds=0.0) for record in ours.history] == [replace(r, seconds=0.0) for r in theirs.history]
    for part in ("model", "prior", "likelihood"):
        left, right = getattr(ours, part).state_dict(), getattr(theirs, part).state_dict()
        assert left.keys() == right.keys()
        for name, value in left.items():
            assert torch.equal(value, right[name]), (part, name)
    for name, value in theirs.posterior.mean.items():
        assert torch.equal(ours.posterior.mean[name], value)
    variances = theirs.posterior.variances()
    for name, value in ours.posterior.variances().items():
        assert torch.equal(variances[name], value), name


@pytest.mark.parametrize("case", CASES)
def test_training_that_is_killed_goes_on_to_the_same_numbers(case, tmp_path):
    straight = fitted(case)
    for epochs in (0, 3, 8) if case == "search" else (4,):  # one after the other, in one folder
        with pytest.MonkeyPatch.context() as patch:
            killed_after(patch, epochs)
            with pytest.raises(GoneError):
                fitted(case, checkpoint=tmp_path, resume=True)
    resumed = fitted(case, checkpoint=tmp_path, resume=True)
    assert_same(resumed, straight)
    assert not resumed.is_partial


@pytest.mark.parametrize("case", ["map", "elbo"])
def test_what_is_drawn_after_training_is_the_same(case, tmp_path):
    """As by rows of tables, whose figures are drawn from the generator of training."""
    build, data, settings = CASES[case]

    def drawn(checkpoint=None):
        torch.manual_seed(4)
        model = build()
        problem = Problem(model, as_source(data, torch.device("cpu")), sb.Categorical(), sb.TensorwisePrior(model))
        generator = torch.Generator().manual_seed(2)
        learn(settings["objective"].trainer(problem, sb.Schedule(4, 8)), generator=generator, checkpoint=checkpoint)
        return torch.randn(3, generator=generator)

    straight = drawn()
    with pytest.MonkeyPatch.context() as patch:
        killed_after(patch, 2)
        with pytest.raises(GoneError):
            drawn(Checkpoint(tmp_path, 0.0))
    assert torch.equal(drawn(Checkpoint(tmp_path, 0.0, resume=True)), straight)


def test_a_discovery_goes_on_to_the_same_numbers(tmp_path):
    data = sb.dynamics.simulate("oscillator", trajectories=4, steps=5)

    def found(**options):
        search = sb.dynamics.Search(updates=6, width=2)
        return sb.discover(data, search=search, held_out=0.5, progress=False, checkpoint_every=0.0, **options)

    straight = found()
    with pytest.MonkeyPatch.context() as patch:
        killed_after(patch, 3)
        with pytest.raises(GoneError):
            found(checkpoint=tmp_path)
    resumed = found(checkpoint=tmp_path, resume=True)
    assert_same(resumed.result, straight.result)
    assert resumed.history == straight.history
    assert len(resumed.history) == 6


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patch:
        killed_after(patch, 5)
        with pytest.raises(GoneError):
            fitted("map", checkpoint=folder)
    return folder


@pytest.fixture
def begun(kept, tmp_path):
    """A folder with a checkpoint of five epochs."""
    return shutil.copytree(kept, tmp_path / "begun")


def again(folder, model=None, data=DATA, epochs=EPOCHS, seed=3, resume=True, **options):
    settings = {"objective": sb.Map(), "augment": FlipCrop(1)} | options
    return sb.fit(
        model or network(), data, epochs=epochs, seed=seed, progress=False, checkpoint=folder, resume=resume, **settings
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": network(4)}, r"must go on with the model it began with, Sequential .*; got Sequential "),
        ({"data": (IMAGES + 1, CLASSES)}, r"must go on with the data it began with, 40 data .*; got 40 data"),
        ({"seed": 4}, r"must go on with the seed it began with, 3; got 4. Give the same, or name another folder"),
        ({"augment": None}, r"must go on with the augmentation it began with, FlipCrop.*; got none"),
        ({"likelihood": sb.Gaussian(0.5, 3), "data": (IMAGES, torch.randn(40, 3))}, r"must go on with the (data|likelihood)"),
        ({"objective": sb.Laplace()}, r"must go on with the objective it began with, Map.*; got Laplace"),
        ({"epochs": 11}, r"must go on with the schedule it began with, Schedule\(epochs=10"),
        ({"prior": sb.ScalarPrior(network())}, r"must go on with the prior it began with, TensorwisePrior.*; got ScalarPrior"),
        ({"prior": sb.TensorwisePrior(network(), 9.0)}, r"the prior it began with, .* precision 1, .*; got .* precision 9, "),
        ({"resume": False}, r"holds the checkpoint of a training.*Go on from it by resume=True \(--resume\)"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused_by_name(change, message, begun):
    with pytest.raises(ValueError, match=message):
        again(begun, **change)


def test_other_epochs_are_named_where_usual_settings_follow_from_them(tmp_path):
    def usual(epochs):
        return again(tmp_path, epochs=epochs, objective=None, augment=None, checkpoint_every=0.0)

    usual(4)
    with pytest.raises(ValueError, match=r"the schedule it began with, Schedule\(epochs=4.*; got .*name another folder"):
        usual(8)


class Counting(nn.Module):
    """What it keeps is no tensor."""

    count = 0

    def get_extra_state(self):
        return {"count": self.count}

    def set_extra_state(self, state):
        self.count = state["count"]

    def forward(self, inputs):
        self.count += 1
        return inputs


def test_a_model_may_keep_what_is_no_tensor(tmp_path):
    models = [nn.Sequential(*network(), Counting()) for _ in range(2)]
    for model in models:  # the second goes on from the last checkpoint of the first
        again(tmp_path, model, checkpoint_every=0.0)
    assert models[1][-1].count > 0.8 * models[0][-1].count


def test_a_fixed_noise_must_be_the_same(tmp_path):
    def regression(noise, **options):
        likelihood = sb.Gaussian(noise, 2).requires_grad_(False)
        return again(tmp_path, network(2), VALUES, 3, likelihood=likelihood, augment=None, checkpoint_every=0.0, **options)

    regression(0.5)
    with pytest.raises(ValueError, match=r"the likelihood it began with, .* of noise 0\.5 0\.5; got .* of noise 2 2"):
        regression(2.0)
    assert regression(0.5).evidence.noise == [0.5, 0.5]


def test_data_are_compared_without_a_copy():
    model = nn.Linear(2**10, 2)
    large = as_source((torch.zeros(2**11, 2**10), torch.zeros(2**11, dtype=torch.long)), torch.device("cpu"))
    tracemalloc.start()
    try:
        describe(Problem(model, large, sb.Categorical(), sb.TensorwisePrior(model)), 0)
        assert tracemalloc.get_traced_memory()[1] < 2**21  # of 2²³ bytes
    finally:
        tracemalloc.stop()


def test_a_checkpoint_and_a_result_can_lie_in_one_folder(begun):
    result = again(begun)
    result.save(begun)
    assert_same(again(begun, checkpoint_every=0.0), result)  # it has not replaced the checkpoint, nor others it
    assert sb.load_result(begun, network()).history == result.history


def test_a_checkpoint_of_another_version_or_damaged_is_refused(begun, monkeypatch):
    whole = {name: (begun / name).read_bytes() for name in (PROBLEM, RECORDS, TENSORS)}
    for name, content, message in (
        (PROBLEM, whole[PROBLEM].replace(b'"format": 1', b'"format": 8'), r"it has format 8; this version reads format 1"),
        (RECORDS, b"", r"its records are not those of its state"),
        (TENSORS, whole[TENSORS][:500], r"is damaged \(SafetensorError"),
    ):
        (begun / name).write_bytes(content)
        with pytest.raises(ValueError, match=rf"{name} is not the file that was saved with seal.json"):
            again(begun)
        reseal(begun)
        with pytest.raises(ValueError, match=message):
            again(begun)
        (begun / name).write_bytes(whole[name])
        reseal(begun)
    monkeypatch.setattr(torch, "__version__", "1.0")
    with pytest.raises(ValueError, match=r"must go on with the version of torch it began with, 2.*; got 1\.0"):
        again(begun)


def test_other_threads_are_warned_of(begun):
    raw = json.loads((begun / PROBLEM).read_text())
    (begun / PROBLEM).write_text(json.dumps(raw | {"threads": 64}))
    reseal(begun)
    with pytest.warns(UserWarning, match=r"began with 64 threads of torch and goes on with 1, .*torch\.set_num_threads\(64\)"):
        again(begun)


def test_what_cannot_be_kept_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"To resume, training must be kept somewhere: give checkpoint=folder"):
        again(None)
    with pytest.raises(ValueError, match=r"Seconds between checkpoints must be 0 or more, got -1"):
        Checkpoint(tmp_path, -1.0)


def test_checkpoints_are_written_when_it_is_time(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("symbayes.training.checkpoint.time.monotonic", lambda: now[0])
    seen = []
    monkeypatch.setattr("symbayes.training.checkpoint.write_folder", lambda folder, files: seen.append(now[0]))
    epoch = CurvatureTrainer.epoch

    def slow(self, state):
        now[0] += 25
        return epoch(self, state)

    monkeypatch.setattr(CurvatureTrainer, "epoch", slow)
    again(tmp_path, resume=False)
    assert seen == [75.0, 150.0, 225.0]  # not at the end, which is the result's to keep


def test_two_do_not_train_in_one_folder(tmp_path):
    with (
        locked(tmp_path / ".running"),
        pytest.raises(BusyError, match=r"Another process is training in .* Wait until it ends, or name another folder"),
    ):
        again(tmp_path)
    assert len(again(tmp_path).history) == EPOCHS


def interrupted_at(monkeypatch, epoch, times=1):
    """Let Ctrl-C come in the middle of an epoch."""
    move = CurvatureTrainer.move_weights

    def moving(self, state):
        found = move(self, state)
        if state.epoch + 1 == epoch:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
        return found

    monkeypatch.setattr(CurvatureTrainer, "move_weights", moving)


@pytest.mark.parametrize("case", ["map", "search"])
def test_ctrl_c_ends_the_epoch_and_gives_a_partial_result(case, tmp_path, capfd):
    straight = fitted(case)
    with pytest.MonkeyPatch.context() as patch:
        interrupted_at(patch, 6 if case == "search" else 4)  # a try is under way there
        with pytest.warns(UserWarning, match=r"stopped after \d of 10 epochs: the result is partial"):
            result = fitted(case, checkpoint=tmp_path / "kept")
    assert "Training stops after this epoch" in capfd.readouterr().err
    assert result.is_partial
    assert "stopped after" in repr(result)
    assert torch.tensor(result.log_evidence).isfinite()
    assert result.posterior.mean.keys() == result.evidence.effective.keys()
    result.save(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "result.json").read_text())["is_partial"]
    assert "Partial: training was stopped after" in make_page(tmp_path / "saved")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert_same(fitted(case, checkpoint=tmp_path / "kept", resume=True), straight)


def test_what_is_kept_as_the_best_is_known_before_the_first_hyper_step(monkeypatch):
    interrupted_at(monkeypatch, 1)
    with pytest.warns(UserWarning, match=r"stopped after 1 of 10 epochs"):
        result = again(None, resume=False, objective=sb.Laplace(burn_in=0.5, keep_best=True))
    assert torch.tensor(result.log_evidence).isfinite()


def test_training_goes_on_where_a_checkpoint_cannot_be_saved(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint_module, "write_folder", full)
    with pytest.warns(UserWarning, match=r"could not be replaced after epoch \d+ .*No space left"):
        result = again(tmp_path, checkpoint_every=0.0)
    assert not result.is_partial
    assert result.history[-1].epoch == result.history[-1].epochs


def test_ctrl_c_where_nobody_can_be_told(monkeypatch):
    def closed(*_):
        raise OSError(9, "Bad file descriptor")

    monkeypatch.setattr(os, "write", closed)
    with asked_to_stop("Stopping.") as stops:
        signal.raise_signal(signal.SIGINT)
        assert stops()


def test_a_partial_bound_has_an_evidence():
    real = ElboTrainer.epoch

    def interrupted(self, state):
        if state.epoch == 2:
            signal.raise_signal(signal.SIGINT)
        return real(self, state)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ElboTrainer, "epoch", interrupted)
        with pytest.warns(UserWarning, match=r"stopped after 3 of 10 epochs"):
            result = fitted("elbo")
    assert result.is_partial
    assert "4 draws" in result.evidence.estimator


def test_a_second_ctrl_c_stops_at_once(tmp_path, monkeypatch):
    interrupted_at(monkeypatch, 3, times=2)
    with pytest.raises(KeyboardInterrupt):
        fitted("map", checkpoint=tmp_path)
    assert len((tmp_path / RECORDS).read_text().splitlines()) == 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_program_with_its_own_way_keeps_it(monkeypatch):
    seen = []
    before = signal.signal(signal.SIGINT, lambda *_: seen.append("theirs"))
    try:
        interrupted_at(monkeypatch, 3)
        result = fitted("map")
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == ["theirs"]
    assert not result.is_partial


@pytest.mark.parametrize("warns", [False, True])
def test_algorithms_are_deterministic_within_a_fit_and_as_before_afterwards(warns, monkeypatch):
    seen = []
    epoch = CurvatureTrainer.epoch

    def noting(self, state):
        seen.append((torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()))
        return epoch(self, state)

    monkeypatch.setattr(CurvatureTrainer, "epoch", noting)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    torch.use_deterministic_algorithms(warns, warn_only=warns)
    try:
        first, usual = fitted("map", deterministic=True), fitted("map")
        state = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
    assert seen[:EPOCHS] == [(True, False)] * EPOCHS
    assert set(seen[EPOCHS:]) == {(warns, warns)}
    assert state == (warns, warns)
    assert torch.backends.cudnn.benchmark
    assert_same(first, usual)  # as it is on a CPU anyway


def test_a_gpu_must_be_told_before_python_starts(monkeypatch):
    monkeypatch.delitem(os.environ, "CUBLAS_WORKSPACE_CONFIG", raising=False)
    with (
        pytest.raises(ValueError, match=r"must have CUBLAS_WORKSPACE_CONFIG=:4096:8 .* before Python starts"),
        deterministic_algorithms(torch.device("cuda")),
    ):
        pass
    monkeypatch.setitem(os.environ, "CUBLAS_WORKSPACE_CONFIG", ":16:8")
    with deterministic_algorithms(torch.device("cuda")):
        assert torch.are_deterministic_algorithms_enabled()
    assert not torch.are_deterministic_algorithms_enabled()
