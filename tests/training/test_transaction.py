"""A result is one transaction: never a mixture, never what is no number, and files of earlier versions are still read."""

import json
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save
from torch import nn

import symbayes as sb
from symbayes.data.folders import SEAL
from symbayes.dynamics.summary import read_discovery
from symbayes.report.runs import make_page
from symbayes.training.record import FILES, POSTERIOR, SUMMARY, WEIGHTS
from tests.damage import reseal
from tests.data.test_folders import Killed, kill_at

BEFORE = Path(__file__).parent.parent / "files" / "format1"
DATA = torch.randn(12, 2, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3


def trained(seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return sb.fit(nn.Linear(2, 3), DATA, objective=sb.Map(), epochs=2, seed=seed, progress=False)


@pytest.fixture(scope="module")
def results():
    return trained(0), trained(1)


def loaded(folder):
    return sb.load_result(folder, nn.Linear(2, 3))


def same(ours, theirs):
    """Of one run: its weights, its posterior and its evidence."""
    return [
        torch.equal(ours.model.weight, theirs.model.weight),
        torch.equal(ours.posterior.mean["weight"], theirs.posterior.mean["weight"]),
        ours.log_evidence == theirs.log_evidence,
    ]


def test_parts_of_two_results_are_refused_by_name(results, tmp_path):
    for name, result in zip(("one", "two"), results, strict=True):
        result.save(tmp_path / name)
    for name in FILES:
        shutil.copytree(tmp_path / "one", tmp_path / name)
        shutil.copy(tmp_path / "two" / name, tmp_path / name / name)
        with pytest.raises(ValueError, match=rf"The result in .* is damaged \({name} is not the file that was saved with"):
            loaded(tmp_path / name)
    (tmp_path / "one" / SEAL).unlink()
    with pytest.raises(ValueError, match=r"it has no seal\.json, by which its files are known to belong together"):
        loaded(tmp_path / "one")


def test_a_fit_that_is_killed_while_it_saves_leaves_the_earlier_result_or_its_own(results, tmp_path):
    old, new = results
    seen = set()
    for number in range(1, 60, 6):
        old.save(tmp_path)
        with pytest.MonkeyPatch.context() as patch:
            kill_at(patch, number)
            try:
                new.save(tmp_path)
            except Killed:
                seen.add("killed")
        found = loaded(tmp_path)
        outcome = (all(same(found, old)), all(same(found, new)))
        assert outcome in ((True, False), (False, True)), number
        seen.add(outcome)
    assert seen == {"killed", (True, False), (False, True)}


def test_a_discovery_that_is_killed_while_it_saves_is_of_one_time(tmp_path):
    found = [
        sb.discover(
            sb.dynamics.simulate("oscillator", trajectories=4, steps=3),
            search=sb.dynamics.Search(updates=updates, width=2),
            held_out=0.5,
            progress=False,
        )
        for updates in (2, 3)
    ]
    for one in found:
        said = one.summary()  # it takes long
        object.__setattr__(one, "summary", lambda said=said: said)
    updates = set()
    for number in (12, 24, 60):
        found[0].save(tmp_path)
        with pytest.MonkeyPatch.context() as patch:
            kill_at(patch, number)
            with suppress(Killed):
                found[1].save(tmp_path)
        said = read_discovery(tmp_path)
        inside = sb.load_result(tmp_path / "run", model=found[0].model)
        kept = [one for one in found if len(one.history) == len(said.history)]
        assert len(kept) == 1
        assert inside.log_evidence == kept[0].result.log_evidence
        updates.add(len(said.history))
    assert len(updates) == 2
    (tmp_path / "discovery.json").write_text("{}")
    with pytest.raises(ValueError, match=r"discovery\.json is not the file that was saved with seal\.json"):
        read_discovery(tmp_path)


def test_results_of_the_first_format_are_read(tmp_path):
    result = sb.load_result(BEFORE / "result")
    assert result.log_evidence == pytest.approx(-75.78513415965108, rel=1e-12)
    assert result.posterior.mean.keys() == result.evidence.precision.keys()
    assert "Training run" in make_page(BEFORE / "result")
    assert "Conserved" in make_page(BEFORE / "discovery") or "conserved" in make_page(BEFORE / "discovery")
    result.save(tmp_path)
    assert json.loads((tmp_path / SUMMARY).read_text())["format"] == 2
    assert sb.load_result(tmp_path).log_evidence == result.log_evidence


def test_a_result_of_another_version_is_refused_with_what_to_do(results, tmp_path):
    results[0].save(tmp_path)
    summary = json.loads((tmp_path / SUMMARY).read_text()) | {"format": 9}
    rewritten(tmp_path, SUMMARY, json.dumps(summary).encode())
    with pytest.raises(ValueError, match=r"has format 9; this version reads formats 1 and 2. Read it by the version of"):
        loaded(tmp_path)


def rewritten(folder, name, content):
    """A file with other content, sealed as if it had been saved so."""
    (folder / name).write_bytes(content)
    reseal(folder)


def test_what_is_no_number_is_refused_by_name(results, tmp_path):
    results[0].save(tmp_path)
    whole = {name: (tmp_path / name).read_bytes() for name in FILES}
    for value, message in ((torch.nan, "model:weight in weights.safetensors must be numbers"), (torch.inf, "must be finite")):
        tensors = load(whole[WEIGHTS])
        tensors["model:weight"][0, 0] = value
        rewritten(tmp_path, WEIGHTS, save(tensors))
        with pytest.raises(ValueError, match=message):
            loaded(tmp_path)
    (tmp_path / WEIGHTS).write_bytes(whole[WEIGHTS])
    summary = json.loads(whole[SUMMARY])
    for value in ("NaN", "-Infinity", "1e999"):
        summary["evidence"]["total"] = "here"
        rewritten(tmp_path, SUMMARY, json.dumps(summary).replace('"here"', value).encode())
        with pytest.raises(ValueError, match=rf"result\.json must be JSON: numbers must be finite, got {value}"):
            loaded(tmp_path)
        with pytest.raises(ValueError, match=r"numbers must be finite"):
            make_page(tmp_path)


def test_a_posterior_that_is_no_number_is_refused(results, tmp_path):
    results[0].save(tmp_path)
    raw = bytearray((tmp_path / POSTERIOR).read_bytes())
    raw[-4:] = torch.tensor([torch.nan]).numpy().tobytes()
    rewritten(tmp_path, POSTERIOR, bytes(raw))
    with pytest.raises(ValueError, match=r"The posterior in .* is damaged \(all numbers must be finite\)"):
        loaded(tmp_path)


def test_a_result_that_holds_no_number_is_not_saved_as_one(results, tmp_path):
    last = results[0].history[-1]
    wrong = replace(results[0], history=(replace(last, evidence=replace(last.evidence, total=float("nan"))),))
    with pytest.raises(ValueError, match=r"evidence\.total must be a number, got null"):
        wrong.save(tmp_path / "new")
    assert not (tmp_path / "new").exists()
