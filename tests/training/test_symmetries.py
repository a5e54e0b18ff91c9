"""The table of learned symmetries: shares as in the paper, and words."""

import pytest

from symbayes.layers.structure import WeightTensor
from symbayes.training.symmetries import PathRow, Symmetries, symmetries


def tensors():
    rows = [
        WeightTensor("a.paths.conv.weight", "a", "conv", "translation", 10, "weight"),
        WeightTensor("a.paths.conv.bias", "a", "conv", "translation", 2, "bias"),
        WeightTensor("a.paths.conv.basis.omega", "a", "conv", "translation", 1, "shape"),
        WeightTensor("a.paths.factored.gather.weight", "a", "factored", None, 100, "weight", True),
        WeightTensor("a.paths.factored.scatter.weight", "a", "factored", None, 50, "weight", True),
        WeightTensor("head.weight", "head", "Linear", None, 5, "weight"),
    ]
    return {row.name: row for row in rows}


EFFECTIVE = {
    "a.paths.conv.weight": 6.0,
    "a.paths.conv.bias": 1.0,
    "a.paths.conv.basis.omega": 0.5,
    "a.paths.factored.gather.weight": 10.0,
    "a.paths.factored.scatter.weight": 15.0,
    "head.weight": 4.0,
}


def test_shares_are_of_effective_parameters_per_weight_without_biases_and_shapes():
    table = symmetries(tensors(), dict.fromkeys(EFFECTIVE, 4.0), EFFECTIVE)
    conv, factored, head = table.rows
    # conv 6/10 = 0.6; factored (10/100 + 15/50) / 2 = 0.2
    assert conv.share == pytest.approx(0.75)
    assert factored.share == pytest.approx(0.25)
    assert head.share == 1.0
    assert (conv.effective, conv.parameters) == (7.5, 13)
    assert (factored.effective, factored.parameters) == (25.0, 150)
    assert factored.precision == pytest.approx(4.0)
    assert table.words() == ["a keeps part of translation (conv 75 %, factored 25 %)"]
    assert "75 %" in str(table)
    assert "translation" in str(table)


@pytest.mark.parametrize(
    ("conv", "factored", "verdict"), [(6.0, 0.0, "a keeps translation"), (0.0, 10.0, "a gives up translation")]
)
def test_words_say_what_a_layer_became(conv, factored, verdict):
    effective = EFFECTIVE | {
        "a.paths.conv.weight": conv,
        "a.paths.factored.gather.weight": factored,
        "a.paths.factored.scatter.weight": factored,
    }
    assert symmetries(tensors(), dict.fromkeys(EFFECTIVE, 1.0), effective).words()[0].startswith(verdict)


def test_a_layer_with_several_symmetries_says_how_much_of_each():
    rows = {"gconv": ("p4", 6.0), "conv": ("translation", 3.0), "dense": (None, 1.0), "off": (None, 0.01)}
    found = {
        path: WeightTensor(path, "a", path, symmetry, 10, "weight", symmetry != "p4") for path, (symmetry, _) in rows.items()
    }
    table = symmetries(found, dict.fromkeys(rows, 1.0), {path: effective for path, (_, effective) in rows.items()})
    assert table.words() == ["a: p4 60 % (gconv), translation 30 % (conv), no symmetry 10 % (dense)"]


def test_numbered_parts_of_a_path_are_one_factor():
    sizes = {"a.paths.orbit.parts.0.weight": 90, "a.paths.orbit.parts.1.weight": 10, "a.paths.dense.weight": 100}
    found = {name: WeightTensor(name, "a", name.split(".")[2], None, size, "weight") for name, size in sizes.items()}
    effective = dict(zip(sizes, (0.0, 10.0, 10.0), strict=True))
    assert [row.share for row in symmetries(found, dict.fromkeys(sizes, 1.0), effective).rows] == [0.5, 0.5]


def test_shares_over_layers_are_those_of_table_3():
    rows = [("a", "conv", 0.9), ("a", "dense", 0.1), ("b", "conv", 0.5), ("b", "dense", 0.5), ("head", "Linear", 1.0)]
    table = Symmetries(tuple(PathRow(layer, path, None, 1, 1.0, 1.0, share) for layer, path, share in rows))
    assert {path: str(spread) for path, spread in table.over_layers().items()} == {
        "conv": "70.0 (50–90)",
        "dense": "30.0 (10–50)",
    }


def test_a_layer_that_uses_nothing_is_shared_evenly():
    table = symmetries(tensors(), dict.fromkeys(EFFECTIVE, 1.0), dict.fromkeys(EFFECTIVE, 0.0))
    assert [row.share for row in table.rows] == [0.5, 0.5, 1.0]
