"""The studies of the gallery run, and what they return are plain numbers that can be drawn."""

import json
from xml.etree import ElementTree

import pytest
import torch
from torch.testing import assert_close

from papers.figures.gallery import STUDIES, Settings, run
from papers.figures.networks import TASKS, board_network, digit_network, final_boards, spelled
from papers.figures.pictures import PICTURES
from symbayes.groups.permutation import board


def test_all_pictures_are_written_with_their_numbers(tmp_path):
    said = []
    written = run(tmp_path / "gallery", lambda share, what: said.append((share, what)), Settings(effort=0.002))
    assert [path.name for path in written] == ["gallery.json", *(f"{name}.svg" for name in PICTURES)]
    assert [what for _, what in said] == [*STUDIES, "done"]
    numbers = json.loads(written[0].read_text(encoding="utf-8"))
    for picture in written[1:]:
        text = picture.read_text(encoding="utf-8")
        ElementTree.fromstring(text)
        assert text == PICTURES[picture.stem](numbers[picture.stem])


def test_tic_tac_toe_ends_at_958_boards():
    inputs, targets = final_boards()
    assert inputs.shape == (958, 2, 3, 3)
    winners, ways = (targets[question].bincount().tolist() for question in TASKS)
    assert winners == [16, 626, 316]
    assert ways[0] == 16


def test_who_has_won_is_the_same_on_a_turned_board_and_rows_become_columns():
    inputs, targets = final_boards()
    index = {tuple(row.int().tolist()): place for place, row in enumerate(inputs.flatten(1))}
    turned = [index[tuple(row.int().tolist())] for row in torch.rot90(inputs, 1, (2, 3)).flatten(1)]
    winners, ways = (targets[question] for question in TASKS)
    assert_close(winners[turned], winners)
    rows, columns, diagonals = (set(ways[turned][ways == way].tolist()) for way in (1, 2, 3))
    assert (rows, columns, diagonals) == ({1, 2}, {1}, {3})  # a row and a column at once count as a row


@pytest.mark.parametrize("paths", [("factored", "conv"), ("sparse", "sparse_conv"), ("factored", "conv", "gconv")])
def test_digit_networks_have_the_paths_asked_for_in_every_block(paths, generator):
    model = digit_network(10, paths, 1, generator)
    assert [tuple(layer.paths) for name, layer in model.named_children() if name.startswith("block")] == [paths] * 4
    assert model(torch.randn(2, 1, 16, 16)).shape == (2, 10)


def test_weights_spelled_out_are_those_of_the_layer(generator):
    layer = board_network(4, 3, 3, generator)[0]
    inputs = torch.randn(5, 2, 3, 3)
    expected = layer(inputs) - layer(torch.zeros(1, 2, 3, 3))
    outputs = torch.einsum("doci,nci->ndo", spelled(layer, (2, 3, 3)), inputs.flatten(2))
    assert_close(outputs.unflatten(2, (3, 3)), expected)


def test_spelled_weights_of_an_orbit_path_are_the_same_along_an_orbit(generator):
    weights = spelled(board_network(4, 3, 3, generator)[0].paths["orbit"], (2, 3, 3))
    for turn in board(3).inputs:
        assert_close(weights[:, turn][..., turn], weights)
