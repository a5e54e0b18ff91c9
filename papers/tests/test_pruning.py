"""How far networks can be pruned: the study, in small."""

import json
from itertools import product

import pytest
import torch
from typer.testing import CliRunner

from papers.__main__ import app
from papers.figures import pruning
from papers.figures.pruning import NETWORKS
from symbayes.data.load import load
from symbayes.data.task import Task
from symbayes.surgery.channels import find_channels

QUICK = ("prune", "--task", "upright-digits", "--size", "60", "--epochs", "1", "--tuning", "1", "--seeds", "1")


def test_the_command_leaves_its_figures(tmp_path, monkeypatch):
    monkeypatch.setattr(pruning, "KEEPS", (0.4,))
    monkeypatch.setattr(pruning, "SHOTS", (2,))
    out = tmp_path / "prune.json"
    result = CliRunner().invoke(app, [*QUICK, "--out", str(out)])
    assert result.exit_code == 0, result.output
    found = json.loads(out.read_text())
    assert [(row["units"], row["by"]) for row in found] == list(product(("channels", "weights"), ("surgeon", "magnitude")))
    for row in found:
        assert row["parameters"] <= 0.4 * row["whole"]
        assert 0 <= row["accuracy"] <= 1
        assert (row["tuned"] is None) == (row["units"] == "weights")
        assert (row["operations"] < row["operations_of_whole"]) == (row["units"] == "channels")
    assert "without pruning" in result.output


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--network", "vgg"), "networks small, conv, resnet18"),
        (("--units", "heads"), "units channels, weights"),
        (("--task", "mnist"), "read from files"),
        (("--device", "nowhere"), "device must be one"),
    ],
)
def test_what_is_not_there_is_said(words, told):
    result = CliRunner().invoke(app, [*QUICK, *words])
    assert result.exit_code == 2
    assert told in " ".join(result.output.replace("│", " ").split())


def test_conv_is_plain_and_its_blocks_can_be_pruned():
    task = load("upright-digits")
    model = NETWORKS["conv"](task, torch.Generator().manual_seed(0)).eval()
    found = find_channels(model, task.train[0][:4])
    last = list(model.named_parameters())[-1][0].rpartition(".")[0]
    assert set(found.left) == {last}
    assert found.removable


def test_resnet18_is_that_of_cifar():
    images = torch.randn(2, 3, 32, 32)
    task = Task("images", (images, torch.tensor([0, 9])), (images, torch.tensor([0, 9])), 10)
    model = NETWORKS["resnet18"](task, torch.Generator())
    assert model(images).shape == (2, 10)
    assert sum(parameter.numel() for parameter in model.parameters()) == 11_173_962
