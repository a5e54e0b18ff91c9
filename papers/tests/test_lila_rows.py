"""LILA's experiment: rows that are run, kept in a file with what made them, and written as a table."""

import json

import pytest
import torch

from papers import lila
from papers.runs import merged, write_table
from symbayes.data.task import Task


@pytest.fixture
def mnist(generator):
    inputs = torch.randn(40, 1, 28, 28, generator=generator)
    return Task("mnist", (inputs, torch.arange(40) % 10), (inputs, torch.arange(40) % 10), 10, (-0.4,))


def test_rows_are_all_combinations_and_names_are_checked():
    found = list(lila.rows("mnist", ["plain", "scaled"], [10, 20], ["none", "learned"], [0, 1, 2]))
    assert len(found) == len(set(found)) == 24
    with pytest.raises(ValueError, match=r"versions must be among plain, rotated_90, .*; got 'sheared'"):
        lila.rows("mnist", ["sheared"], [10], ["none"], [0])
    with pytest.raises(ValueError, match=r"methods must be among none, .*, learned, learned_mirrors; got 'guess'"):
        lila.rows("mnist", ["plain"], [10], ["guess"], [0])


@pytest.mark.parametrize("method", lila.METHODS)
def test_every_method_runs_on_a_subset(method, mnist):
    found = lila.run_row(lila.Row("mnist", "rotated_180", 24, method, 0), mnist, lila.Settings(samples=2, epochs=2))
    assert 0 <= found["accuracy"] <= 1
    assert (found["extents"] == {}) == method.startswith("none")
    assert found["epochs"] == 2
    json.dumps(found)


def test_the_residual_network_runs_on_colours(generator):
    inputs = torch.randn(20, 3, 8, 8, generator=generator)
    task = Task("cifar10", (inputs, torch.arange(20) % 10), (inputs, torch.arange(20) % 10), 10, (0.0,))
    found = lila.run_row(lila.Row("cifar10", "plain", 20, "learned", 0), task, lila.Settings(samples=2, epochs=2, width=2))
    assert set(found["extents"]) == {"translation_x", "translation_y", "rotation", "scale_x", "scale_y", "shear"}


def test_rows_are_kept_once_and_written_as_a_table(tmp_path):
    path = tmp_path / "results" / "invariance.json"
    row = {"task": "mnist", "version": "rotated_90", "size": 312, "seed": 0, "nll": 0.5, "log_evidence": -1.25, "seconds": 1.0}
    first = {**row, "method": "learned", "accuracy": 0.9, "extents": {"rotation": 80.0}}
    write_table(path, lila.PAPER, [first, {**row, "method": "none", "accuracy": 0.7, "extents": {}}])
    again = {**first, "accuracy": 0.8, "extents": {"rotation": 88.0}}
    kept = merged(path, [{**first, "seed": 1, "extents": {"rotation": 90.0}}, again], lila.PAPER)
    assert [(r["method"], r["seed"]) for r in kept] == [("none", 0), ("learned", 0), ("learned", 1)]
    written = write_table(path, lila.PAPER, kept)
    assert [file.name for file in written] == ["invariance.json", "invariance.md"]
    assert kept == json.loads(path.read_text())
    lines = written[1].read_text().splitlines()
    assert lines[2] == "| mnist, rotated 90 | 312 | 70.0 % (-1.25) |  |  | **85.0 ± 7.1 % (-1.25)** |  | rotation 89 ° |"
    mirrored = {**first, "method": "learned_mirrors", "extents": {"net.orbit.rotation": 1.0, "discrete.mirror_x": 50.0}}
    words = lila.PAPER.table([*kept, mirrored]).markdown().splitlines()[2]
    assert words.endswith("rotation 89 °; rotation 1 °, mirror x 50 % |")
    path.write_text("[{")
    with pytest.raises(ValueError, match="must hold the figures of earlier runs; it is damaged"):
        merged(path, [], lila.PAPER)
