"""ELLA's tables: networks of the paper's sizes, rows that run on small digits, and tables with the paper beside ours."""

import json

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import symbayes as sb
from papers.__main__ import app
from papers.ella import rows as ella
from papers.ella.published import CHOICES, PRECISIONS, SHARES
from papers.ella.recipes import METHODS, recipe
from papers.ella.rows import NETWORKS, TABLES, TASKS, any_problem
from papers.ella.table import PAPERS
from papers.rows import Options
from papers.tests.drawings import check_layout, words
from symbayes.data import files as checksums
from symbayes.data.source import as_source
from symbayes.data.task import Task
from symbayes.data.transform import FlipCrop
from symbayes.training.trainer import Problem
from tests.data.fakes import write_mnist


@pytest.fixture(autouse=True)
def _other_files(monkeypatch):
    monkeypatch.setattr(checksums, "MD5", {})


@pytest.fixture
def data(tmp_path):
    write_mnist(tmp_path / "data")
    return tmp_path / "data"


def invoke(*words):
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "220", "TERM": "xterm"})


def a_run(table, network="f-fc+conv", method="evidence", seed=0, task="cifar10", size=None, **figures):
    paths = NETWORKS[network].paths
    rows = [
        {
            "layer": f"block{block}",
            "path": path,
            "symmetry": {"conv": "translation", "sparse_conv": "translation", "gconv": "p4"}.get(path),
            "parameters": 2000,
            "precision": 10.0**block,
            "effective": 60.25 if path == paths[0] else 1500.0,
            "share": 0.9 if path == paths[0] else 0.1 / (len(paths) - 1),
            "relaxes": path == paths[0],
            "error": 0.125 if path == paths[-1] else None,
        }
        for block in range(1, 9)
        for path in paths
    ]
    found = {"task": task, "network": network, "method": method, "size": size, "seed": seed, "images": 50_000, "nll": 0.5}
    found |= {"accuracy": 0.84, "log_evidence": -1.25, "estimator": "KFAC", "train_nll": 0.3, "seconds": 90.0, "epochs": 7}
    found |= {"effective": {f"block{b}.paths.{paths[0]}.scatter.{k}": 30.0 for b in (1, 8) for k in ("weight", "bias")}}
    return found | {"parameters": 1_771_945, "symmetries": rows, "settings": {"width": 10}} | figures


@pytest.mark.parametrize(
    ("network", "size"),
    [("conv", 338_770), ("f-fc", 1_542_625), ("f-fc+conv", 1_771_945), ("s-conv-u", 211_620), ("s-fc+s-conv-u", 1_010_280)],
)
def test_networks_have_the_sizes_that_the_paper_prints(network, size):
    """To within the biases, which some paths have and others do not."""
    task = sb.load("quadrant-digits")
    inputs = task.train[0][:1].expand(1, 3, 16, 16).repeat(1, 1, 2, 2)
    model = NETWORKS[network].build(
        Task("cifar10", (inputs, task.train[1][:1]), (inputs, task.train[1][:1]), 10), 10, 0, equivariant_stride=True
    )
    assert sum(parameter.numel() for parameter in model.parameters()) == pytest.approx(size, rel=0.01)


def test_every_figure_of_the_paper_belongs_to_a_row():
    for table in TABLES.values():
        assert set(table.printed) <= {(t, n, m) for t in table.tasks for n in table.networks for m in METHODS}
        assert set(table.tasks) <= set(TASKS)
    assert len({network for _, network, _ in TABLES["table2"].printed}) == 11  # and two more that the paper speaks of
    assert set(SHARES) == set(TABLES["table3"].tasks)
    assert all(len(PRECISIONS[name]) == len(CHOICES[name]) == 8 for name in CHOICES)


@pytest.mark.parametrize("method", METHODS)
def test_a_row_is_run_from_the_command_line(method, data, tmp_path):
    out = tmp_path / "runs"
    words = ("--data", data, "--out", out, "--width", "1", "--epochs", "2", "--methods", method)
    result = invoke("table1", *words, "--rows", "f-fc+conv", "--task", "quadrant-mnist", "--commit", "abc")
    assert result.exit_code == 0, result.output
    folder = out / f"quadrant-mnist_f-fc+conv_{method}_all_0"
    assert {"figures.json", "history.jsonl", "weights.safetensors", "report.html", "result.json"} <= {
        f.name for f in folder.iterdir()
    }
    found = json.loads((folder / "figures.json").read_text())
    assert 0 <= found["accuracy"] <= 1
    assert (found["images"], found["epochs"], found["settings"]["width"], found["weights"]) == (60, 2, 1, "saved")
    assert "KFAC" in found["estimator"]
    assert len({row["layer"] for row in found["symmetries"]}) == 10
    assert set(found["precision"]) == set(found["effective"])
    assert len(sb.load_result(folder).history) == 2
    assert "Not run yet: FC on digit by MAP" in " ".join(result.output.split())
    table = (out / "table1.md").read_text()
    assert f"({99.0:.2f})" in table
    assert (out / "table1_choices.svg").exists() == (method == "evidence")


def test_three_paths_and_several_seeds_make_a_table(data, tmp_path):
    out = tmp_path / "runs"
    words = ("--data", data, "--out", out, "--width", "1", "--epochs", "1", "--methods", "evidence", "--seeds", "0,1")
    result = invoke("table3", *words, "--rows", "mnist32", "--sizes", "20")
    assert result.exit_code == 0, result.output
    line = next(line for line in (out / "table3.md").read_text().splitlines() if line.startswith("| MNIST |"))
    assert "± " in line
    assert "[75 (1–100)]" in line
    assert line.count("–") > 2


@pytest.mark.parametrize(("network", "learned"), [("s-conv-omega-alone", "omega"), ("s-conv-z", "locations")])
def test_shapes_of_filters_are_learned(network, learned, generator, tmp_path):
    inputs = torch.randn(20, 3, 8, 8, generator=generator)
    pair = inputs, torch.arange(20) % 10
    row = ella.Row("cifar10", network, "evidence", None, 0)
    found = TABLES["table2"].run(row, Task("cifar10", pair, pair, 10), Options(epochs=1, width=1), tmp_path)
    assert any(name.endswith(learned) for name in found["effective"])
    others = {value for name, value in found["precision"].items() if not name.endswith("omega")}
    assert (others == {1.0}) == (network == "s-conv-omega-alone")


def test_large_networks_leave_their_weights_out(data, tmp_path, monkeypatch):
    monkeypatch.setattr(ella, "LARGEST_SAVED", 10)
    words = ("--data", data, "--out", tmp_path, "--width", "1", "--epochs", "1", "--methods", "map", "--rows", "conv")
    assert invoke("table1", *words, "--task", "digit-mnist").exit_code == 0
    folder = tmp_path / "digit-mnist_conv_map_all_0"
    assert not (folder / "weights.safetensors").exists()
    assert (folder / "report.html").exists()
    assert json.loads((folder / "figures.json").read_text())["weights"] == "left out: more than 10"


def test_photographs_are_augmented_and_digits_are_not(generator, tmp_path, monkeypatch):
    seen, given = {}, []
    fit = ella.fit
    monkeypatch.setattr(
        ella, "fit", lambda *parts, augment, **more: given.append(augment) or fit(*parts, augment=augment, **more)
    )
    for task, table, network, channels in (("cifar10", "table2", "conv", 3), ("mnist32", "table3", "mixed", 1)):
        inputs = torch.randn(20, channels, 8, 8, generator=generator)
        pair = inputs, torch.arange(20) % 10
        row = ella.Row(task, network, "map", None, 0)
        found = TABLES[table].run(row, Task(task, pair, pair, 10), Options(epochs=1, width=1), tmp_path)
        seen[task] = found["settings"]["augment"]
    assert seen == {"cifar10": True, "mnist32": False}
    assert given == [FlipCrop(), None]


def test_the_paper_stands_beside_ours():
    paper = PAPERS["table2"]
    runs = [a_run("table2", accuracy=0.83), a_run("table2", seed=1, accuracy=0.85)]
    line = next(line for line in paper.table(runs).markdown().splitlines() if line.startswith("| F-FC+CONV"))
    assert line.startswith("| F-FC+CONV | θ | 1.8 M | – / 7 | – (1.343) | – (81.61) | – | 0.500 ± 0.000 (0.468) |")
    assert line.endswith("| 84.00 ± 1.41 (83.92) | 1.250 ± 0.000 (1.277) | KFAC | – |")
    assert "Not run yet: FC by MAP; FC by evidence; CONV by MAP" in paper.table(runs).markdown()
    assert "Trained on 50,000 images for 7 epochs, width 10. Log evidence by KFAC." in paper.table(runs).markdown()
    more = paper.more(runs)
    assert "| 6 | 1e+06 | 1e+06 | 90.0, γ 60.2 | 10.0, γ 1,500.0 | F-FC (F-FC) | 12.5 | factored 60.2 | 1.18 | 16.7 |" in more
    assert "| F-FC+CONV by evidence | 50,000 | 1 | 7 | 85.00 | 0.500 | 1.250 | 0.300 | 1.5 | KFAC | – |" in more


def test_evidences_stand_side_by_side_with_their_estimators_and_commits():
    full = "full GGN by Lanczos (2 probes, 25 steps), preconditioned by KFAC (expand, exact Fisher)"
    runs = [a_run("table2", method=method, estimator=full, commit=f"c{i}") for i, method in enumerate(METHODS)]
    line = next(line for line in PAPERS["table2"].table(runs).markdown().splitlines() if line.startswith("| F-FC+CONV"))
    assert line.endswith("| full GGN | c0, c1 |")
    assert line.count("1.250") == 2
    runs = [a_run("table1", method=method, task="digit-mnist") for method in METHODS]
    assert "| digit: −log evidence / N | – | – | 1.250 | – | – | 1.250 |" in PAPERS["table1"].table(runs).markdown()


def test_tensors_that_break_a_symmetry_are_named_and_a_bias_of_one_cell_is_not():
    more = PAPERS["table1"].more([a_run("table1", task="digit-mnist")]).splitlines()
    first, last = (next(line for line in more if line.startswith(f"| {block} |")) for block in (1, 8))
    assert first.endswith("| factored.scatter.weight 30.0, factored.scatter.bias 30.0 |")
    assert last.endswith("| factored.scatter.weight 30.0 |")


def test_gamma_stands_beside_every_share_of_table_3():
    runs = [a_run("table3", "mixed", task="rotated-mnist", seed=seed) for seed in (0, 1)]
    line = next(line for line in PAPERS["table3"].table(runs).markdown().splitlines() if line.startswith("| rotated MNIST"))
    assert "| 90.0 (90–90), γ 482.0 [8 (0–20)] |" in line
    assert "γ 60.2 | 1,500 | 1,500" in PAPERS["table3"].pictures(runs)["table3_choices"]


def test_trials_on_fewer_images_or_for_fewer_epochs_do_not_enter_the_table():
    runs = [
        a_run("table2", accuracy=0.5, size=100, images=100),
        a_run("table2", accuracy=0.84),
        a_run("table2", accuracy=0.6, seed=1, epochs=2),
        a_run("table2", accuracy=0.6, seed=2, epochs=70, settings={"width": 1}),
    ]
    assert "84.00 (83.92)" in PAPERS["table2"].table(sorted(runs, key=PAPERS["table2"].key)).markdown()
    assert "50.00" in PAPERS["table2"].table(runs[:1]).markdown()


def test_what_was_learned_is_that_of_a_run_in_the_table():
    runs = [a_run("table2", accuracy=0.5, epochs=2), a_run("table2", seed=1, accuracy=0.84)]
    assert "84.00 (83.92)" in PAPERS["table2"].table(runs).markdown()
    assert "What F-FC+CONV by evidence learned (seed 1)" in PAPERS["table2"].more(runs)
    assert "test 84.0 %" in PAPERS["table2"].pictures(runs)["table2_choices"]


def test_map_is_trained_and_judged_as_the_evidence_is():
    by_map, by_evidence = (recipe(any_problem(), "cifar10", method) for method in METHODS)
    assert (by_map.schedule, by_map.optimiser, by_map.augment) == (
        by_evidence.schedule,
        by_evidence.optimiser,
        by_evidence.augment,
    )
    assert by_map.objective.final_rule == by_evidence.objective.final_rule


@pytest.mark.parametrize("method", METHODS)
def test_photographs_take_more_epochs_than_digits_and_are_augmented(method):
    digits, photographs = (recipe(any_problem(), task, method) for task in ("rotated-mnist", "rotated-cifar10"))
    assert photographs.schedule.epochs > digits.schedule.epochs
    assert (photographs.augment, digits.augment) == (True, False)


def test_of_several_seeds_what_was_learned_is_that_of_most_evidence():
    runs = [a_run("table2", seed=seed, log_evidence=value) for seed, value in enumerate((-1.2, -1.1, -1.3))]
    assert "What F-FC+CONV by evidence learned (seed 1)" in PAPERS["table2"].more(runs)
    assert "−log evidence 1.10" in PAPERS["table2"].pictures(runs)["table2_choices"]


def test_a_table_without_runs_says_so():
    assert "– (98.86)" in PAPERS["table1"].table([]).markdown()
    assert PAPERS["table1"].more([]) == ""
    assert PAPERS["table1"].pictures([]) == {}


def test_the_picture_shows_every_network_that_had_a_choice_and_stays_inside():
    names = ("fc+conv", "f-fc+conv", "s-fc+s-conv-u", "s-fc+s-conv-omega", "conv")
    svg = PAPERS["table2"].pictures([a_run("table2", name) for name in names])["table2_choices"]
    assert {"FC+CONV", "F-FC+CONV", "S-FC+S-CONV (u)", "S-FC+S-CONV (ω)"} <= set(words(svg))
    assert "CONV" not in words(svg)
    check_layout(svg)


def test_a_fit_without_settings_is_trained_as_the_tables_are():
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 10))
    data = torch.zeros(60_000, 1, 2, 2), torch.zeros(60_000, dtype=torch.long)
    problem = Problem(model, as_source(data, torch.device("cpu")), sb.Categorical(), sb.TensorwisePrior(model))
    usual, table = sb.preset(problem, epochs=30), recipe(problem, "digit-mnist", "evidence")
    assert (usual.objective, usual.optimiser, usual.schedule) == (table.objective, table.optimiser, table.schedule)
