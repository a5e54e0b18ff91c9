"""What all pages have: they are small, load and run nothing, and say first what was learned and whether to believe it."""

import re
from dataclasses import replace

import pytest

from symbayes.report.network import drawn_layers
from symbayes.report.page import FigureTable
from symbayes.report.plots import Run
from symbayes.report.runs import comparison_page, run_page
from symbayes.training.record import HeldOut
from symbayes.training.symmetries import headline
from tests.report.samples import path_row, sample_history, sample_summary

#: Of whole pages; plotly.js alone has 4.8 million.
_BYTES = 1_000_000


def layer(name, error):
    energy = {"energy": 0.9 if error < 0.01 else 0.5}
    return [path_row(name, "dense", 0.1, energy=0.1), path_row(name, "conv", 0.9, "translation", error=error, **energy)]


ROWS = (*layer("block1", 0.001), *layer("block2", 0.05), *layer("block3", 0.4), path_row("head", "Linear", 1.0))


def flat(epochs=20):
    """A history that has come to its end."""
    return [replace(record, loss=0.5) for record in sample_history([-1234.5] * epochs)]


def page_of(history, **more):
    return run_page(replace(sample_summary(), symmetries=ROWS, **more), history)


def test_a_page_begins_with_what_was_learned_in_a_sentence_and_a_picture():
    page = page_of(flat())
    assert "<h1>1 of 3 layers keeps translation, as convolutions do; not block2 and block3.</h1>" in page
    order = ["<h1>", '<ol class="network">', "How sure is that?", "How it got there"]
    assert [page.index(one) for one in order] == sorted(page.index(one) for one in order)
    styles = re.findall(r'<li class="(\w+)"><strong>(\w+)</strong>', page)
    assert styles == [("keeps", "block1"), ("slightly", "block2"), ("breaks", "block3"), ("none", "head")]


def test_a_run_that_failed_has_no_triumphant_sentence():
    moving = sample_history([-1234.5] * 3)
    page = page_of(moving)
    assert "<h1>Training has not converged</h1>" in page
    assert "weights are still moving" in page
    assert "So far: 1 of 3 layers keeps translation" in page
    assert "<h1>Training was stopped</h1>" in page_of(flat(), is_partial=True)
    assert "is below that of outputs that are zero, −0.500" in page_of(flat(), floor=-0.5)


@pytest.mark.parametrize(
    ("errors", "said"),
    [
        ([0.001, 0.002], "All 2 layers that could choose keep translation, as convolutions do."),
        ([0.2, 0.3], "None of the 2 layers that could choose keeps translation."),
        ([0.001], "The layer that could choose keeps translation, as convolutions do."),
        ([0.2], "The layer that could choose does not keep translation."),
        ([0.001, 0.3], "1 of 2 layers keeps translation, as convolutions do; not block2."),
    ],
)
def test_headlines_count_layers(errors, said):
    assert headline([row for at, error in enumerate(errors, start=1) for row in layer(f"block{at}", error)]) == said


def test_nothing_is_claimed_of_what_was_not_measured():
    rows = sample_summary().symmetries
    assert headline(rows) == ""
    assert [(one.words, one.style) for one in drawn_layers(rows, {})] == [
        ("may break translation", "slightly"),
        ("no choice", "none"),
    ]


def test_held_out_data_are_shown_with_what_is_taken_for_what():
    found = HeldOut(10, {"accuracy": 0.8, "nll": 0.4567}, "plug-in", ("cat", "<dog>"), ((5, 1), (1, 3)))
    page = page_of(flat(), held_out=found)
    assert "accuracy <strong>80.0 %</strong>" in page
    assert "nll <strong>0.457</strong>" in page
    assert "&lt;dog&gt;" in page
    assert re.findall(r'<td class="(\w+)">(\d)</td>', page) == [("right", "5"), ("wrong", "1"), ("wrong", "1"), ("right", "3")]
    assert "held-out data" not in page_of(flat())
    assert '<th scope="row">1</th>' in page_of(flat(), held_out=replace(found, names=()))


def test_a_comparison_says_which_runs_are_not_to_be_believed():
    def run(objective, total, history):
        evidence = replace(sample_summary(total=total).evidence, standard_error=1.0)
        return Run("digits", "CONV", objective, True, replace(sample_summary(), evidence=evidence), history)

    page = comparison_page("t", "a", FigureTable(), [run("MAP", -1000.0, flat()), run("evidence", -1100.0, flat())])
    assert "CONV by evidence on digits: its evidence is below that of MAP, so that learning by it has failed" in page
    page = comparison_page("t", "a", FigureTable(), [run("MAP", -1000.0, flat()), run("evidence", -999.0, flat())])
    assert "Not all runs are to be believed" not in page
    page = comparison_page("t", "a", FigureTable(), [run("evidence", -999.0, sample_history([-999.0] * 3))])
    assert "CONV by evidence on digits: weights are still moving" in page


def test_pages_are_small_and_follow_the_colours_of_the_reader():
    page = page_of(flat(300))
    assert len(page.encode()) < _BYTES
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page
    assert "default-src 'none'" in page
    assert "<script" not in page


def test_where_no_layer_had_a_choice_the_page_begins_with_what_the_model_is_worth():
    rows = (path_row("head", "Linear", 1.0),)
    found = HeldOut(37, {"accuracy": 0.973, "nll": 0.07})
    page = run_page(replace(sample_summary(), symmetries=rows, held_out=found), flat())
    assert "<h1>Accuracy 97.3 % on 37 data that were held out.</h1>" in page
    assert "equivariance error" not in page
