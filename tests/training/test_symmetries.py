"""The table of learned symmetries: shares as in the paper, and words."""

from dataclasses import replace

import pytest

from symbayes.equivariance import LayerSymmetry
from symbayes.layout import WeightTensor
from symbayes.training.symmetries import PathRow, Symmetries, headline, symmetries

BREAKS = ("translation",)


def tensors():
    rows = [
        WeightTensor("a.paths.conv.weight", "a", "conv", "translation", 10, "weight"),
        WeightTensor("a.paths.conv.bias", "a", "conv", "translation", 2, "bias"),
        WeightTensor("a.paths.conv.basis.omega", "a", "conv", "translation", 1, "shape"),
        WeightTensor("a.paths.factored.gather.weight", "a", "factored", None, 100, "weight", True, BREAKS),
        WeightTensor("a.paths.factored.scatter.weight", "a", "factored", None, 50, "weight", True, BREAKS),
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
    assert table.words() == [
        "a keeps part of translation (conv 75 % of γ per weight, γ 7.5; factored 25 %, γ 25.0): factored.scatter.weight "
        "(γ 15.0) and factored.gather.weight (γ 10.0) break it"
    ]
    assert "75 %" in str(table)
    assert "translation" in str(table)


@pytest.mark.parametrize(
    ("conv", "factored", "verdict"),
    [
        (6.0, 0.0, "a keeps translation (conv 100 % of γ per weight, γ 7.5; factored 0 %, γ 0.0)"),
        (
            0.0,
            10.0,
            "a gives up translation (factored 100 % of γ per weight, γ 20.0; conv 0 %, γ 1.5): factored.gather.weight (γ 10.0) "
            "and factored.scatter.weight (γ 10.0) break it",
        ),
    ],
)
def test_words_say_what_a_layer_became(conv, factored, verdict):
    effective = EFFECTIVE | {
        "a.paths.conv.weight": conv,
        "a.paths.factored.gather.weight": factored,
        "a.paths.factored.scatter.weight": factored,
    }
    assert symmetries(tensors(), dict.fromkeys(EFFECTIVE, 1.0), effective).words() == [verdict]


@pytest.mark.parametrize(("gamma", "keeps"), [(60.1, False), (0.51, False), (0.5, True)])
@pytest.mark.parametrize("name", ["scatter.bias", "gather.weight", "scatter.basis.omega"])
def test_no_layer_keeps_a_symmetry_that_a_single_tensor_breaks(name, gamma, keeps):
    """Whatever the shares are: those of weights alone do not see a bias or a lengthscale."""
    more = WeightTensor(f"a.paths.factored.{name}", "a", "factored", None, 10_000, "bias", True, BREAKS)
    quiet = EFFECTIVE | dict.fromkeys([name for name in EFFECTIVE if "factored" in name], 0.0)
    table = symmetries(tensors() | {more.name: more}, dict.fromkeys([*EFFECTIVE, more.name], 1.0), quiet | {more.name: gamma})
    (words,) = table.words()
    assert words.startswith("a keeps translation (conv 100 % of γ per weight" if keeps else "a keeps part of translation")
    assert words.endswith(f"factored.{name} (γ {gamma:.1f}) breaks it") != keeps
    assert table.rows[0].share == pytest.approx(1)


def several(**gammas):
    """A layer of p4, translation and nothing, with γ by path."""
    breaks = {"gconv": (), "conv": ("p4",), "dense": ("p4", "translation")}
    names = {"gconv": "p4", "conv": "translation", "dense": None}
    found = {p: WeightTensor(p, "a", p, names[p], 10, "weight", p != "gconv", breaks[p]) for p in gammas}
    return symmetries(found, dict.fromkeys(gammas, 1.0), gammas).words()


@pytest.mark.parametrize(
    ("gammas", "words"),
    [
        ((6.0, 0.1, 0.1), "a keeps p4 (gconv 97 % of γ per weight, γ 6.0; conv 2 %, γ 0.1; dense 2 %, γ 0.1)"),
        (
            (6.0, 4.0, 0.0),
            "a keeps translation and part of p4 (gconv 60 % of γ per weight, γ 6.0; conv 40 %, γ 4.0; dense 0 %, γ 0.0): conv "
            "(γ 4.0) breaks p4",
        ),
        (
            (0.0, 4.0, 0.0),
            "a keeps translation and gives up p4 (conv 100 % of γ per weight, γ 4.0; gconv 0 %, γ 0.0; dense 0 %, γ 0.0): conv "
            "(γ 4.0) breaks p4",
        ),
        (
            (6.0, 3.0, 1.0),
            "a keeps part of p4 and part of translation (gconv 60 % of γ per weight, γ 6.0; conv 30 %, γ 3.0; dense 10 %, "
            "γ 1.0): conv (γ 3.0) breaks p4; dense (γ 1.0) breaks p4 and translation",
        ),
        (
            (0.0, 0.0, 9.0),
            "a gives up p4 and translation (dense 100 % of γ per weight, γ 9.0; gconv 0 %, γ 0.0; conv 0 %, γ 0.0): dense "
            "(γ 9.0) breaks p4 and translation",
        ),
    ],
)
def test_a_layer_with_several_symmetries_says_what_became_of_each(gammas, words):
    assert several(**dict(zip(("gconv", "conv", "dense"), gammas, strict=True))) == [words]


def test_a_layer_that_the_data_do_not_determine_is_said_to_keep_nothing():
    assert several(gconv=0.4, conv=0.0) == ["a is left open by the data (gconv 100 % of γ per weight, γ 0.4; conv 0 %, γ 0.0)"]


def test_a_layer_without_a_symmetry_has_none_to_keep():
    assert several(dense=3.0, **{}) == []
    rows = tuple(PathRow("a", path, None, 1, 1.0, 2.0, 0.5) for path in ("dense", "factored"))
    assert Symmetries(rows).words() == ["a has no symmetry to keep (dense 50 % of γ per weight, γ 2.0; factored 50 %, γ 2.0)"]


def test_numbered_parts_of_a_path_are_one_factor():
    sizes = {"a.paths.orbit.parts.0.weight": 90, "a.paths.orbit.parts.1.weight": 10, "a.paths.dense.weight": 100}
    found = {name: WeightTensor(name, "a", name.split(".")[2], None, size, "weight") for name, size in sizes.items()}
    effective = dict(zip(sizes, (0.0, 10.0, 10.0), strict=True))
    assert [row.share for row in symmetries(found, dict.fromkeys(sizes, 1.0), effective).rows] == [0.5, 0.5]


def measured(errors, **energy):
    """The layer of `several` with errors and energies."""
    names = {"gconv": "p4", "conv": "translation", "dense": None}
    less = {"gconv": ("conv", "dense"), "conv": ("dense",), "dense": ()}
    breaks = {path: tuple(names[other] for other in energy if path in less[other]) for path in energy}
    found = {p: WeightTensor(p, "a", p, names[p], 10, "weight", bool(breaks[p]), breaks[p]) for p in energy}
    return symmetries(found, dict.fromkeys(energy, 1.0), dict.fromkeys(energy, 5.0), {"a": LayerSymmetry(errors, energy)})


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (0.0, "keeps"),
        (0.0099, "keeps"),
        (0.01, "slightly breaks"),
        (0.099, "slightly breaks"),
        (0.1, "breaks"),
        (1.9, "breaks"),
    ],
)
def test_words_go_by_the_error_where_it_was_measured(error, verdict):
    (words,) = measured({"translation": error}, conv=0.8, dense=0.2).words()
    assert words.startswith(f"a {verdict} translation (equivariance error ")
    hardly = "hardly " if verdict == "keeps" else ""
    assert words.endswith(
        f"): of the energy, conv 80 % (γ 5.0, share 50 %) and dense 20 % (γ 5.0, share 50 %); dense (γ 5.0) {hardly}breaks it"
    )


@pytest.mark.parametrize(
    ("p4", "translation", "verdict", "blamed"),
    [
        (
            0.001,
            0.0,
            "keeps p4 (equivariance error 0.1 %)",
            "conv (γ 5.0) hardly breaks p4; dense (γ 5.0) hardly breaks p4 and",
        ),
        (0.23, 0.0, "breaks p4 (equivariance error 23 %) and keeps translation (error 0 %)", "dense (γ 5.0) break p4"),
        (0.23, 0.05, "breaks p4 (equivariance error 23 %) and slightly breaks translation (error 5 %)", "breaks p4; dense"),
    ],
)
def test_words_of_several_errors_say_what_became_of_each(p4, translation, verdict, blamed):
    (words,) = measured({"p4": p4, "translation": translation}, gconv=0.7, conv=0.2, dense=0.1).words()
    assert words.startswith(f"a {verdict}: of the energy, gconv 70 %")
    assert blamed in words


def test_an_error_that_is_missing_leaves_words_to_gamma():
    (words,) = measured({"translation": 0.5}, gconv=0.7, conv=0.2, dense=0.1).words()
    assert "of γ per weight" in words
    assert "of γ per weight" in measured({}, conv=0.9, dense=0.1).words()[0]


def test_the_table_has_errors_and_energies_or_a_dash():
    table = measured({"translation": 0.231}, conv=0.82, dense=0.18)
    assert [(row.error, row.energy) for row in table.rows] == [(0.231, 0.82), (None, 0.18)]
    headings, cells = table.table()
    assert headings[3:5] == ("error", "energy")
    assert [line[3:5] for line in cells] == [("23 %", "82 %"), ("–", "18 %")]
    assert [line[:2] for line in cells] == [("a", "conv"), ("", "dense")]
    bare = symmetries(tensors(), dict.fromkeys(EFFECTIVE, 4.0), EFFECTIVE)
    assert all(line[3:5] == ("–", "–") for line in bare.table()[1])


def test_shares_over_layers_are_those_of_table_3():
    rows = [("a", "conv", 0.9), ("a", "dense", 0.1), ("b", "conv", 0.5), ("b", "dense", 0.5), ("head", "Linear", 1.0)]
    table = Symmetries(tuple(PathRow(layer, path, None, 1, 1.0, 1.0, share) for layer, path, share in rows))
    assert {path: str(spread) for path, spread in table.over_layers().items()} == {
        "conv": "70.0 (50–90), γ 2.0",
        "dense": "30.0 (10–50), γ 2.0",
    }
    twice = Symmetries(table.rows * 2).over_layers()  # of two runs
    assert str(twice["conv"]) == "70.0 (50–90), γ 2.0"


def test_a_layer_that_uses_nothing_is_shared_evenly():
    table = symmetries(tensors(), dict.fromkeys(EFFECTIVE, 1.0), dict.fromkeys(EFFECTIVE, 0.0))
    assert [row.share for row in table.rows] == [0.5, 0.5, 1.0]


@pytest.mark.parametrize(
    ("errors", "said"),
    [
        ([0.001, 0.3], "1 of 2 layers keeps p4; not b."),
        ([0.001, 0.3, 0.002], "2 of 3 layers keep p4; not b."),
        ([0.3, 0.3], "None of the 2 layers that could choose keeps p4."),
    ],
)
def test_a_sentence_counts_the_layers_that_keep_a_symmetry(errors, said):
    rows = [row for error in errors for row in measured({"p4": error}, gconv=0.8, dense=0.2).rows]
    assert headline([replace(row, layer="abc"[at // 2]) for at, row in enumerate(rows)]) == said
