"""Run folders: what is finished, damaged or missing, and tables assembled from what is there."""

import json

import pytest
from typer.testing import CliRunner

from symbayes.cli.app import app
from symbayes.experiments import papers, provenance
from symbayes.experiments.papers import assemble, collect
from symbayes.experiments.rows import Options, spread
from symbayes.experiments.runs import FIGURES, finish, is_done, read_runs, run_folder, start

FILTERS = ("reproduce", "filters", "--methods", "likelihood", "--versions", "plain", "--sizes", "30", "--samples", "2")
SHORT = (*FILTERS, "--epochs", "1", "--width", "4", "--starts", "small,turned")


def invoke(*words):
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    result = invoke(*SHORT, "--out", folder, "--commit", "abc1234")
    assert result.exit_code == 0, result.output
    return folder


def folders(out):
    return sorted(path.name for path in out.iterdir() if path.is_dir())


def test_every_row_leaves_a_folder_with_its_figures(out):
    assert folders(out) == [f"upright-digits_plain_30_likelihood_{start}_0" for start in ("small", "turned")]
    found = json.loads((out / folders(out)[0] / FIGURES).read_text())
    assert found["commit"] == "abc1234"
    assert found["asked"] == {"samples": 2, "epochs": 1, "width": 4}
    assert "symbayes reproduce filters --task upright-digits --versions plain --sizes 30" in found["command"]
    assert len(json.loads((out / "filters.json").read_text())) == 2


def test_finished_rows_are_skipped_and_damaged_ones_run_again(out):
    small, turned = (out / name / FIGURES for name in folders(out))
    small.write_text('{"task": "upr')
    before = turned.stat().st_mtime_ns
    result = invoke(*SHORT, "--out", out, "--resume", "--commit", "def5678")
    assert result.exit_code == 0, result.output
    assert f"{small} is damaged" in result.output.replace("\n", "")
    assert "turned, seed 0: finished before" in result.output
    assert turned.stat().st_mtime_ns == before
    assert json.loads(small.read_text())["commit"] == "def5678"


def test_rows_that_were_run_otherwise_are_not_finished(out):
    folder = out / folders(out)[0]
    key = papers.PAPERS["filters"].key
    assert is_done(folder, Options(samples=2, epochs=1, width=4, device="cuda"), key)
    assert not is_done(folder, Options(samples=2, epochs=2, width=4), key)
    assert not is_done(out / "nowhere", Options(), key)


def test_a_row_that_fails_leaves_the_others_alone(out, tmp_path):
    words = ("reproduce", "filters", "--methods", "likelihood", "--versions", "plain", "--starts", "small", "--epochs", "1")
    result = invoke(*words, "--samples", "2", "--sizes", "99999,20", "--out", tmp_path)
    assert result.exit_code == 1
    assert "A subset must have from 1 to 1400 training data" in result.output
    assert "1 of 2 rows failed" in result.output
    assert "Traceback" in (tmp_path / "upright-digits_plain_99999_likelihood_small_0" / "failed.txt").read_text()
    assert [row["size"] for row in json.loads((tmp_path / "filters.json").read_text())] == [20]


def test_rows_are_run_in_several_processes(tmp_path):
    result = invoke(*SHORT, "--out", tmp_path, "--jobs", "2")
    assert result.exit_code == 0, result.output
    assert len(read_runs(tmp_path, papers.PAPERS["filters"].key).figures) == 2


def test_results_are_collected_beside_earlier_ones(out, tmp_path):
    runs = read_runs(out, papers.PAPERS["filters"].key).figures
    finish(out / "damaged", {"task": "unknown"})
    figures, written, damaged = collect("filters", out, tmp_path)
    assert len(figures) == 2
    assert len(damaged) == 1
    assert [path.relative_to(tmp_path).as_posix() for path in written] == [
        "results/filters.json",
        "results/filters.md",
        "results.md",
    ]
    another = tmp_path / "other"
    start(another / "row")
    finish(another / "row", {**runs[0], "seed": 7})
    result = invoke("reproduce", "filters", "--out", another, "--collect", tmp_path)
    assert result.exit_code == 0, result.output
    assert len(json.loads((tmp_path / "results" / "filters.json").read_text())) == 3
    page = (tmp_path / "results.md").read_text()
    assert page.startswith("# Results\n")
    assert "## Invariant weights by variational inference" in page
    assert "seeds 0, 7" in page or "seeds 7" in page
    (out / "damaged" / FIGURES).unlink()


def test_a_run_that_begins_is_no_longer_finished(tmp_path):
    start(tmp_path / "row")
    finish(tmp_path / "row", {"a": 1})
    start(tmp_path / "row")
    assert not (tmp_path / "row" / FIGURES).exists()
    assert assemble("table1", tmp_path)[0] == []


def test_names_of_folders_tell_rows_apart():
    for paper in papers.PAPERS.values():
        rows = list(paper.rows({name: usual.split(",") for name, usual in paper.lists.items()}))
        assert len({run_folder(papers.Path("out"), row) for row in rows}) == len(rows)


def test_the_commit_is_that_of_the_checkout(tmp_path):
    assert provenance.commit(tmp_path) == ""
    assert "cpu" in provenance.machine("cpu")


def test_several_seeds_are_a_mean_and_a_deviation():
    assert spread([1.0], 2) == "1.00"
    assert spread([1.0, 3.0], 1) == "2.0 ± 1.4"
