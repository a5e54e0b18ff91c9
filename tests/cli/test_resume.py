"""`--resume`: a command that was stopped goes on to the same numbers, and a folder is for one command at a time."""

import json
import signal
from functools import partial

import pytest

import symbayes as sb
from symbayes.cli import fit
from symbayes.cli.app import app
from symbayes.cli.watch import look
from symbayes.data.folders import locked
from symbayes.training.by_curvature import CurvatureTrainer
from symbayes.training.checkpoint import is_checkpoint
from symbayes.training.elbo import ElboTrainer
from tests.cli.refusals import say
from tests.small import load_few

invoke = partial(say, app)
FIT = ("fit", "upright-digits", "--width", "1", "--epochs", "3", "--by", "map", "--paths", "conv")
DISCOVER = ("discover", "oscillator", "--trajectories", "4", "--steps", "3", "--updates", "3", "--width", "2")
COMMANDS = {"fit": (FIT, "result.json"), "discover": (DISCOVER, "discovery.json")}


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(fit, "load", lambda name, data: load_few(name))
    monkeypatch.setattr(fit, "_show", lambda result, task: (None, None))  # it takes long


def stop_in(monkeypatch, epoch):
    """Let Ctrl-C come in an epoch."""
    for kind in (CurvatureTrainer, ElboTrainer):

        def stopped(self, state, real=kind.epoch):
            if state.epoch + 1 == epoch:
                signal.raise_signal(signal.SIGINT)
            return real(self, state)

        monkeypatch.setattr(kind, "epoch", stopped)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_was_stopped_goes_on(command, tmp_path):
    words, name = COMMANDS[command]
    assert invoke(*words, "--out", tmp_path / "straight")[0] == 0
    out = tmp_path / "stopped"
    with pytest.MonkeyPatch.context() as patch:
        stop_in(patch, 2)
        with pytest.warns(UserWarning, match="stopped after 2 of 3 epochs: the result is partial"):
            code, said = invoke(*words, "--out", out)
    assert code == 130
    assert f"The partial result is in {out}; the same command with --resume goes on." in said
    assert json.loads((out / name).read_text())["is_partial"]
    assert "Partial: training was stopped" in (out / "report.html").read_text()
    code, said = invoke(*words, "--out", out)
    assert code == 2
    assert "holds a training that was interrupted (checkpoint). Go on with it: --resume. Or begin anew: --overwrite." in said
    if command == "fit":
        code, said = invoke(*words, "--out", out, "--seed", "1", "--resume")
        assert code == 2
        assert "must go on with the seed it began with, 0; got 1" in said
    code, said = invoke(*words, "--out", out, "--resume")
    assert code == 0, said
    assert "Going on from its checkpoint." in said
    found, straight = (json.loads((folder / name).read_text()) for folder in (out, tmp_path / "straight"))
    for one in (found, straight):
        one.get("model", {}).pop("seconds", None)
    assert found == straight
    assert sorted(path.name for path in out.iterdir()) == sorted(path.name for path in (tmp_path / "straight").iterdir())


def test_a_search_that_was_stopped_in_its_first_part_goes_on(tmp_path):
    words = (
        "discover",
        "oscillator",
        "--trajectories",
        "100",
        "--steps",
        "5",
        "--symmetry",
        "quadratic",
        "--updates",
        "50",
        "--width",
        "2",
    )
    assert invoke(*words, "--out", tmp_path / "straight")[0] == 0
    out = tmp_path / "stopped"
    with pytest.MonkeyPatch.context() as patch:
        stop_in(patch, 2)
        with pytest.warns(UserWarning, match="stopped after 2 of 4 epochs: the result is partial"):
            assert invoke(*words, "--out", out)[0] == 130
    assert not is_checkpoint(out / "checkpoint")
    assert "Training was stopped, and goes on by --resume" in look(out).words
    code, said = invoke(*words, "--out", out)
    assert code == 2
    assert "holds a training that was interrupted" in said
    code, said = invoke(*words, "--out", out, "--resume")
    assert code == 0, said
    found, straight = (json.loads((folder / "discovery.json").read_text()) for folder in (out, tmp_path / "straight"))
    assert found["history"] == straight["history"]


def test_without_a_checkpoint_training_begins(tmp_path):
    code, said = invoke(*FIT, "--out", tmp_path, "--resume")
    assert code == 0
    assert "There is no checkpoint to go on from: training begins." in said
    assert not sb.load_result(tmp_path).is_partial
    code, said = invoke(*FIT, "--out", tmp_path, "--resume")
    assert code == 2
    assert "holds a result already (result.json)" in said


def test_what_would_be_replaced_is_not_gone_on_with(tmp_path):
    code, said = invoke(*FIT, "--out", tmp_path, "--resume", "--overwrite")
    assert code == 2
    assert "--resume goes on from what --overwrite would replace; use one of them." in said


def test_a_folder_is_for_one_command_at_a_time(tmp_path):
    with locked(tmp_path / ".running"):
        code, said = invoke(*FIT, "--out", tmp_path)
    assert code == 1
    assert f"Another process is at work in {tmp_path}. Wait until it ends, or name another folder." in said
    assert list(tmp_path.iterdir()) == []
