"""Rows in jobs of a cluster, by submitit's processes of this machine; and rows whose process dies."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from papers import reproduce
from papers.cluster import parse_cluster, run_on_cluster
from papers.tests.test_conserved import invoke
from symbayes.cli.workers import DiedError, Ended

pytest.importorskip("submitit")


@dataclass(frozen=True)
class Row:
    number: int


def test_tasks_run_as_jobs(tmp_path):
    found = {ended.task: ended.value for ended in run_on_cluster(pow, {"a": (2, 1), "b": (2, 2)}, "local", tmp_path, pause=0.1)}
    assert found == {"a": 2, "b": 4}


def test_a_job_that_dies_is_told_from_one_that_fails(tmp_path):
    (died,) = run_on_cluster(os._exit, {"dies": (3,)}, "local", tmp_path, pause=0.1)
    assert isinstance(died.error, DiedError)
    (failed,) = run_on_cluster(int, {"fails": ("three",)}, "local", tmp_path, pause=0.1)
    assert "three" in str(failed.error)
    assert not isinstance(failed.error, DiedError)


def test_rows_that_died_go_on_once(monkeypatch, capsys):
    """From their checkpoint, which is what the last word of an attempt says."""
    asked = []

    def elsewhere(attempts, jobs, cluster, out):
        for row, words in attempts.items():
            asked.append((row.number, words))
            dead = row.number == 2 or (row.number == 1 and not words[-1])
            yield Ended(row, error=DiedError("it died")) if dead else Ended(row, f"row {row.number}")

    monkeypatch.setattr(reproduce, "_elsewhere", elsewhere)
    rows = [Row(number) for number in range(3)]
    found = list(reproduce._perform({row: ("what", row, False) for row in rows}, 2, None, Path()))
    assert [(row.number, said) for row, said in found] == [(0, "row 0"), (1, "row 1"), (2, "failed: it died")]
    assert [(number, words[-1]) for number, words in asked] == [(0, False), (1, False), (2, False), (1, True), (2, True)]
    assert capsys.readouterr().out.count("it will go on") == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [("nowhere", "must know the cluster 'nowhere'"), ("local:gpus", "name=value"), ("local:colour=red", "colour")],
)
def test_clusters_and_settings_that_are_not_known_are_refused(words, said):
    with pytest.raises(ValueError, match=said):
        parse_cluster(words)


def test_settings_are_numbers_where_they_look_like_them():
    assert parse_cluster("local:timeout_min=60,name=rows") == ("local", {"timeout_min": 60, "name": "rows"})


def test_a_table_is_made_by_jobs(tmp_path):
    asked = ["conserved", "--task", "oscillator", "--methods", "plain", "--epochs", "1", "--out", str(tmp_path / "runs")]
    result = invoke(*asked, "--cluster", "local")
    assert result.exit_code == 0, result.output
    assert re.search(r"1/1 oscillator, plain, seed 0: −ELBO/N", result.output)
    assert (tmp_path / "runs" / "jobs").is_dir()
    refused = invoke(*asked, "--cluster", "nowhere")
    assert refused.exit_code == 2
    assert "nowhere" in refused.output
