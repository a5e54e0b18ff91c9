"""From matrices to convolutions: the study, in small."""

import json

import pytest
import torch
from typer.testing import CliRunner

from papers.__main__ import app
from papers.figures.structure import Block, fully_connected, relaxed
from symbayes.data.load import load
from symbayes.layers.relaxed import RelaxedLayer

QUICK = ("structure", "--task", "placed-digits", "--size", "40", "--width", "2", "--blocks", "1,1", "--epochs", "1")


def test_every_matrix_over_all_features_stands_beside_a_convolution_over_its_grid():
    task = load("placed-digits")
    images = task.train[0][:4]
    network = fully_connected(task, 2, (1, 2))
    model = relaxed(network, images, torch.Generator().manual_seed(0))
    layers = [module for module in model.modules() if isinstance(module, RelaxedLayer)]
    assert len(layers) == sum(isinstance(module, Block) for module in network) == 3
    sizes = [(1, 2, 8, 8), (1, 8, 4, 4), (1, 8, 4, 4)]
    assert [layer.paths["conv"](torch.zeros(size)).shape for layer, size in zip(layers, sizes, strict=True)] == sizes
    torch.testing.assert_close(model.eval()(images), network.eval()(images), rtol=1e-5, atol=1e-6)


def test_the_command_leaves_its_figures(tmp_path):
    out = tmp_path / "structure.json"
    result = CliRunner().invoke(app, [*QUICK, "--tuning", "1", "--out", str(out)])
    assert result.exit_code == 0, result.output
    found = json.loads(out.read_text())
    assert [row["off"] for row in found] == [0.001, 0.01]
    for row in found:
        assert row["layers"] == 2
        assert row["parameters"][1] <= row["parameters"][0]
        assert all(0 <= value <= 1 for value in (*row["accuracy"], row["tuned"]))


@pytest.mark.parametrize(("blocks", "told"), [("a", "blocks"), ("1,1,1,1,1", "multiple of 2 for every stage")])
def test_blocks_that_cannot_be_are_refused(blocks, told):
    result = CliRunner().invoke(app, [*QUICK, "--blocks", blocks])
    assert result.exit_code == 2
    assert told in " ".join(result.output.replace("│", " ").split())
