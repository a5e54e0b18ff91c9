"""Words about symmetries from rows as they are saved, now and by earlier versions."""

from dataclasses import replace

from symbayes.training.symmetries import TensorRow, symmetry_words
from tests.report.samples import path_row

ROWS = [
    path_row("block1", "factored", 0.0, effective=60.3, relaxes=True),
    path_row("block1", "conv", 1.0, "translation", effective=15.2, relaxes=False),
]
KEPT = "block1 keeps part of translation (conv 100 % of γ per weight, γ 15.2; factored 0 %, γ 60.3): "


def test_rows_without_tensors_are_judged_by_gamma_of_the_whole_path():
    assert symmetry_words(ROWS) == [f"{KEPT}factored (γ 60.3) may break it"]


def test_rows_without_tensors_are_completed_by_the_evidence_beside_them():
    effective = {
        "block1.paths.factored.scatter.bias": 60.1,
        "block1.paths.factored.gather.weight": 0.2,
        "block1.paths.conv.weight": 15.2,
        "block10.paths.factored.scatter.bias": 7.0,
    }
    assert symmetry_words(ROWS, effective) == [f"{KEPT}factored.scatter.bias (γ 60.1) may break it"]


def test_rows_of_their_own_tensors_need_no_more():
    tensor = TensorRow("factored.scatter.bias", 60.1, ("translation",))
    rows = [replace(ROWS[0], tensors=(tensor,)), ROWS[1]]
    assert symmetry_words(rows) == [f"{KEPT}factored.scatter.bias (γ 60.1) breaks it"]


def test_many_tensors_are_counted():
    tensors = tuple(TensorRow(f"orbit.parts.{k}.weight", 1.0 + k, ("translation",)) for k in range(5))
    (words,) = symmetry_words([replace(ROWS[0], tensors=tensors), ROWS[1]])
    assert words.endswith(
        "orbit.parts.4.weight (γ 5.0), orbit.parts.3.weight (γ 4.0), orbit.parts.2.weight (γ 3.0) and 2 more break it"
    )


def test_earlier_rows_of_three_paths_know_which_symmetry_holds_the_other():
    rows = [
        path_row("b", "factored", 0.01, effective=170.0, relaxes=True),
        path_row("b", "conv", 0.0, "translation", effective=0.3, relaxes=True),
        path_row("b", "gconv", 0.99, "p4", effective=15.0, relaxes=False),
    ]
    (words,) = symmetry_words(rows)
    assert words.startswith(
        "b keeps part of p4 and part of translation (gconv 99 % of γ per weight, γ 15.0; factored 1 %, γ 170.0"
    )
    assert words.endswith(": factored (γ 170.0) may break p4 and translation")
