"""Run folders: what is finished, damaged or missing, and tables assembled from what is there."""

import json
import os
import signal
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from papers import reproduce
from papers import runs as provenance
from papers import tables as papers
from papers.__main__ import app
from papers.ella import rows as ella
from papers.filters import rows as filter_vi
from papers.filters.rows import LISTS
from papers.reproduce import print_table
from papers.rows import Options, TextTable, spread
from papers.runs import FIGURES, differences, finish, merged, read_run, read_runs, run_folder, start
from papers.tables import PAPERS, assemble, collect, results_page
from symbayes.data.folders import locked
from symbayes.training.by_curvature import CurvatureTrainer
from symbayes.training.elbo import ElboTrainer
from symbayes.training.trainer import Schedule
from tests.damage import damaged

FILTERS = ("filters", "--methods", "likelihood", "--versions", "plain", "--sizes", "30", "--samples", "2")
SHORT = (*FILTERS, "--epochs", "1", "--width", "4", "--starts", "small,turned")


def invoke(*words):
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200", "TERM": "xterm"})


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
    assert "python -m papers filters --task upright-digits --versions plain --sizes 30" in found["command"]
    assert len(json.loads((out / "filters.json").read_text())) == 2


def test_finished_rows_are_skipped_and_damaged_ones_run_again(out):
    small, turned = (out / name / FIGURES for name in folders(out))
    small.write_text('{"task": "upr')
    before = turned.stat().st_mtime_ns
    result = invoke(*SHORT, "--out", out, "--resume", "--commit", "def5678")
    assert result.exit_code == 0, result.output
    assert f"{small} is damaged, or of another experiment" in result.output.replace("\n", "")
    assert "turned, seed 0: finished before" in result.output
    assert turned.stat().st_mtime_ns == before
    assert json.loads(small.read_text())["commit"] == "def5678"


def test_rows_that_were_run_otherwise_are_not_finished(out):
    paper = papers.PAPERS["filters"]
    found = read_run(out / folders(out)[0], paper)
    assert differences(found, Options(samples=2, epochs=1, width=4, device="cuda"), {}) == []
    assert differences(found, Options(samples=2, epochs=2, width=4), {}) == ["epochs"]
    assert read_run(out / "nowhere", paper) is None


def test_rows_that_would_be_trained_otherwise_now_are_run_again(out, monkeypatch):
    turned = out / folders(out)[1] / FIGURES
    assert json.loads(turned.read_text())["settings"]["batch_size"] == 100
    changed = replace(filter_vi.SETTINGS["upright-digits"], batch_size=15)
    monkeypatch.setitem(filter_vi.SETTINGS, "upright-digits", changed)
    result = invoke(*SHORT[:-1], "turned", "--out", out, "--resume", "--commit", "abc1234")
    assert "turned, seed 0: finished before with other settings; to be run again" in result.output
    assert json.loads(turned.read_text())["settings"]["batch_size"] == 15


def test_rows_of_tables_keep_how_they_are_trained(monkeypatch):
    table = ella.TABLES["table2"]
    row = ella.Row("cifar10", "conv", "evidence", None, 0)
    found = {"asked": Options().asked, **json.loads(json.dumps(table.settings(row, Options())))}
    assert differences(found, Options(), table.settings(row, Options())) == []
    usual = ella.recipe(ella.any_problem(), row.task, row.method)
    monkeypatch.setattr(ella, "recipe", lambda *place: replace(usual, schedule=Schedule(7, 100)))
    assert differences(found, Options(), table.settings(row, Options())) == ["epochs", "settings"]


def test_rows_that_another_process_finished_meanwhile_are_not_run_again(out, monkeypatch):
    monkeypatch.setattr(reproduce, "_is_finished", lambda *parts: False)
    before = (out / folders(out)[0] / FIGURES).stat().st_mtime_ns
    result = invoke(*SHORT[:-1], "small", "--out", out, "--resume")
    assert result.exit_code == 0, result.output
    assert (out / folders(out)[0] / FIGURES).stat().st_mtime_ns == before


def test_rows_that_are_named_twice_are_run_once(out):
    result = invoke(*SHORT[:-1], "small, small", "--out", out, "--resume")
    assert result.output.count("finished before") == 1


@dataclass(frozen=True)
class Named:
    name: str


def fragile(tell, what, row, resume):
    """A row that ends its process: always, unless it goes on, or never."""
    if row.name == "dead" or (row.name == "unlucky" and not resume):
        os.kill(os.getpid(), signal.SIGKILL)
    return {"row": row.name}


def test_a_process_that_is_killed_is_tried_once_more_and_fails_its_row_alone(monkeypatch):
    monkeypatch.setattr(reproduce, "_attempt_apart", fragile)
    attempts = {Named(name): ("filters", Named(name), False) for name in ("a", "dead", "unlucky", "b")}
    found = {row.name: said for row, said in reproduce._perform(attempts, 2, None, Path())}
    assert [found[name] for name in ("a", "b", "unlucky")] == [{"row": "a"}, {"row": "b"}, {"row": "unlucky"}]
    assert "failed: its process was killed (exit code -9)" in found["dead"]


def test_rows_that_another_process_is_at_work_on_are_left_to_it(tmp_path):
    lists = LISTS | {"sizes": "30", "methods": "likelihood", "versions": "plain", "starts": "small"}
    row = next(filter_vi.rows({name: words.split(",") for name, words in lists.items()}))
    folder = run_folder(tmp_path, row)
    folder.mkdir(parents=True)
    with locked(folder / reproduce.RUNNING):
        result = invoke(*SHORT, "--out", tmp_path, "--resume")
    assert result.exit_code == 0, result.output
    assert "another process is at work on it; it is left to that" in result.output
    assert not (folder / FIGURES).exists()
    assert len(read_runs(tmp_path, papers.PAPERS["filters"]).figures) == 1


@pytest.mark.parametrize("what", ["filters", "conserved"])
def test_a_row_that_is_interrupted_goes_on_to_the_same_figures(what, tmp_path, monkeypatch):
    words = {
        "filters": (*SHORT[:-1], "small"),
        "conserved": ("conserved", "--task", "oscillator", "--methods", "learned", "--sizes", "2", "--width", "2"),
    }[what]
    words = (*(word for word in words if word not in ("--epochs", "1")), "--epochs", "6", "--checkpoint-every", "0")

    def figures(out):
        found = read_runs(out, papers.PAPERS[what]).figures
        return [{name: value for name, value in row.items() if name not in ("seconds", "command")} for row in found]

    assert invoke(*words, "--out", tmp_path / "straight").exit_code == 0
    with pytest.MonkeyPatch.context() as patch:
        for kind in (CurvatureTrainer, ElboTrainer):

            def interrupted(self, state, real=kind.epoch):
                if state.epoch == 2:
                    signal.raise_signal(signal.SIGINT)
                return real(self, state)

            patch.setattr(kind, "epoch", interrupted)
        with pytest.warns(UserWarning, match="the result is partial"):
            result = invoke(*words, "--out", tmp_path / "stopped")
    assert result.exit_code == 130, result.output
    assert "Stopped; the same command with --resume goes on." in result.output
    assert figures(tmp_path / "stopped") == []
    result = invoke(*words, "--out", tmp_path / "stopped", "--resume")
    assert result.exit_code == 0, result.output
    assert figures(tmp_path / "stopped") == figures(tmp_path / "straight") != []
    assert not list((tmp_path / "stopped").glob("*/checkpoint"))


def test_a_folder_of_runs_that_is_none_is_refused(tmp_path):
    (tmp_path / "file").touch()
    result = invoke(*SHORT, "--out", tmp_path / "file")
    assert result.exit_code == 2
    assert "File exists" in result.output
    result = invoke("filters", "--out", tmp_path / "nowhere", "--collect", tmp_path / "docs")
    assert result.exit_code == 2
    assert "must be a folder of runs" in result.output
    assert not (tmp_path / "docs").exists()


@pytest.mark.parametrize("content", ['{"a": 1}', "[1]", "[", '[{"task": "unknown"}]'])
def test_a_file_of_earlier_figures_that_is_something_else_is_refused(content, tmp_path):
    (tmp_path / "filters.json").write_text(content)
    with pytest.raises(ValueError, match=r"(?s)must hold the figures of earlier runs; it is damaged .* Move it away"):
        merged(tmp_path / "filters.json", [], papers.PAPERS["filters"])


def test_a_row_that_fails_leaves_the_others_alone(out, tmp_path):
    words = ("filters", "--methods", "likelihood", "--versions", "plain", "--starts", "small", "--epochs", "1")
    result = invoke(*words, "--samples", "2", "--sizes", "99999,20", "--out", tmp_path)
    assert result.exit_code == 1
    assert "A subset must have from 1 to 1400 training data" in result.output
    assert "1 of 2 rows failed" in result.output
    assert "Traceback" in (tmp_path / "upright-digits_plain_99999_likelihood_small_0" / "failed.txt").read_text()
    assert [row["size"] for row in json.loads((tmp_path / "filters.json").read_text())] == [20]


def test_rows_are_run_in_several_processes(tmp_path):
    result = invoke(*SHORT, "--out", tmp_path, "--jobs", "2")
    assert result.exit_code == 0, result.output
    assert len(read_runs(tmp_path, papers.PAPERS["filters"]).figures) == 2


def test_results_are_collected_beside_earlier_ones(out, tmp_path):
    runs = read_runs(out, papers.PAPERS["filters"]).figures
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
    result = invoke("filters", "--out", another, "--collect", tmp_path)
    assert result.exit_code == 0, result.output
    assert len(json.loads((tmp_path / "results" / "filters.json").read_text())) == 3
    page = (tmp_path / "results.md").read_text()
    assert page.startswith("# Results\n")
    assert "## Invariant weights by variational inference" in page
    assert "seeds 0, 7" in page or "seeds 7" in page
    (out / "damaged" / FIGURES).unlink()


def without(found, name):
    return {other: value for other, value in found.items() if other != name}


DAMAGED = {
    "no accuracy": lambda found: without(found, "accuracy"),
    "no seconds": lambda found: without(found, "seconds"),
    "no seed": lambda found: without(found, "seed"),
    "a seed in words": lambda found: found | {"seed": "0"},
    "a size in words": lambda found: found | {"size": "30"},
    "extents in a list": lambda found: found | {"extents": [1.0]},
    "what was asked in a list": lambda found: found | {"asked": [1]},
    "a commit in a list": lambda found: found | {"commit": ["abc"]},
    "words": lambda found: "figures",
    "a list": lambda found: [found],
    "nothing": lambda found: None,
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_figures_are_named_and_left_out(kind, out, tmp_path):
    found = read_runs(out, papers.PAPERS["filters"]).figures[0]
    for name, figures in (("whole", found | {"seed": 5}), ("wrong", DAMAGED[kind](found))):
        start(tmp_path / "runs" / name)
        (tmp_path / "runs" / name / FIGURES).write_text(json.dumps(figures))
    result = invoke("filters", "--out", tmp_path / "runs", "--collect", tmp_path / "docs")
    assert result.exit_code == 0, result.output
    said = result.output.replace("\n", "")
    assert f"{tmp_path / 'runs' / 'wrong' / FIGURES} is damaged, or of another experiment" in said
    assert [row["seed"] for row in json.loads((tmp_path / "docs" / "results" / "filters.json").read_text())] == [5]


@pytest.mark.parametrize("content", ["[" * 100_000, "[1, 2]", '[{"seed": 0}]', "{}", '{"seed":'])
def test_earlier_figures_that_are_damaged_stop_a_collection_before_it_writes(content, out, tmp_path):
    kept = tmp_path / "results" / "table1.json"
    kept.parent.mkdir()
    kept.write_text(content)
    result = invoke("filters", "--out", out, "--collect", tmp_path)
    assert result.exit_code == 2
    assert "must hold the figures of earlier runs; it is damaged" in " ".join(result.output.replace("│", " ").split())
    assert [path.name for path in kept.parent.iterdir()] == ["table1.json"]
    assert not (tmp_path / "results.md").exists()


def test_runs_that_do_not_go_together_are_refused_in_a_sentence(out, tmp_path, monkeypatch):
    def mixed(figures):
        raise KeyError("rotation")

    monkeypatch.setitem(papers.PAPERS, "filters", replace(papers.PAPERS["filters"], pictures=mixed))
    result = invoke("filters", "--out", out, "--collect", tmp_path)
    assert result.exit_code == 2
    assert "do not make one table with its pictures (KeyError: 'rotation')" in " ".join(result.output.replace("│", " ").split())
    assert not (tmp_path / "results").exists()


def test_damaged_files_of_figures_are_read_or_refused(out, tmp_path):
    finish(tmp_path, read_runs(out, papers.PAPERS["filters"]).figures[0])
    for content in damaged((tmp_path / FIGURES).read_bytes(), 100):
        (tmp_path / FIGURES).write_bytes(content)
        try:
            found = read_run(tmp_path, papers.PAPERS["filters"])
        except ValueError:
            continue
        assert papers.PAPERS["filters"].table([found]).markdown()


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


def test_tables_are_printed_whole_however_narrow_the_terminal(capsys):
    cells = [f"0.123 (0.45{index})" for index in range(9)]
    headings = ["name of a row", *("heading" * 2 for _ in cells)]
    print_table(TextTable(headings, [["F-FC+CONV", *cells], ["[CONV]", *[""] * 9]], ["Below, [as it is]."], best=[1, 2]))
    said = capsys.readouterr().out
    assert "F-FC+CONV" in said
    assert "headingheading" in said
    assert all(f"(0.45{index})" in said for index in range(9))
    assert said.index("[CONV]") < said.index("Below, [as it is].")


def test_a_table_is_written_as_markdown():
    table = TextTable(["a", "b"], [["1", "2"], ["3", "4"]], ["Below."], best=[1, 0])
    assert table.markdown() == "| a | b |\n| --- | --- |\n| 1 | **2** |\n| **3** | 4 |\n\nBelow.\n"
    with pytest.raises(ValueError, match="a cell for each of 2 columns, got 1"):
        TextTable(["a", "b"], [["1"]])
    with pytest.raises(ValueError, match="a column for each of 1 rows, got 2"):
        TextTable(["a", "b"], [["1", "2"]], best=[0, 1])


def test_the_page_of_results_is_that_of_the_figures_beside_it():
    docs = Path(__file__).parent.parent.parent / "docs"
    assert (docs / "results.md").read_text(encoding="utf-8") == results_page(docs / "results", {})
    for name in ("table1", "table2", "table3"):
        figures = json.loads((docs / "results" / f"{name}.json").read_text(encoding="utf-8"))
        for picture, svg in PAPERS[name].pictures(figures).items():
            assert (docs / "results" / f"{picture}.svg").read_text(encoding="utf-8") == svg
