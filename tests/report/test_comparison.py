from dataclasses import replace

import pytest

from symbayes.report.page import FigureTable, TableCell, TableRow
from symbayes.report.plots import Run
from symbayes.report.runs import comparison_page
from tests.report.samples import sample_history, sample_summary

NOTE = "Curvature by KFAC & one seed."


def sample_run(task: str, model: str, objective: str, layer: str = "block1") -> Run:
    totals = [None, None, -1234.5] if objective == "MAP" else [-1500.0, -1234.5, -1234.5]
    return Run(task, model, objective, model == "learned", sample_summary(layer), sample_history(totals, layer))


def sample_table(*tasks: str) -> FigureTable:
    cells = (TableCell("91.2 %", "-1.500"), TableCell("97.3 %", "-0.412", best=True))
    rows = tuple(TableRow(task, cells) for task in tasks)
    return FigureTable(("CONV", "learned"), rows, legend="Accuracy & evidence.", note=NOTE)


def own(table: FigureTable, runs: list[Run], title: str = "Digits") -> str:
    """The page without scripts."""
    page = comparison_page(title, "Two models & digits.", table, runs)
    assert "<script" not in page
    return page


@pytest.fixture(scope="module")
def page() -> str:
    runs = [sample_run(t, m, o) for t in ("digit", "quadrant") for m in ("CONV", "learned") for o in ("MAP", "evidence")]
    return own(sample_table("digit", "quadrant"), runs)


@pytest.mark.parametrize(
    "text",
    [
        "Digits",
        "Curvature by KFAC &amp; one seed.",
        "91.2 %",
        "97.3 %",
        "−0.412",
        "−1.500",
        "Accuracy &amp; evidence.",
        "Two models &amp; digits.",
    ],
)
def test_title_numbers_and_note_are_on_the_page(page, text):
    assert text in page


def test_only_the_best_accuracy_of_a_row_is_emphasised(page):
    assert page.count('class="num best"') == 2
    assert page.count('class="num best"><div class="value">97.3 %') == 2


def test_sentences_and_bars_are_those_of_learned_runs_by_evidence(page):
    assert page.count("<li>block1 keeps part of translation (conv 97 % of γ per weight, γ 302.8; dense 3 %, γ 302.8)") == 2
    assert "keeps translation" not in page  # as the saved words claim
    assert page.count('<div id="shares') == 2


def test_each_task_has_a_plot_of_all_its_runs(page):
    assert page.count('<div id="curves') == 2
    for name in ("CONV, MAP", "CONV, evidence", "learned, MAP", "learned, evidence"):
        assert page.count(f">{name}</text>") == 4  # in the legends of two plots, drawn for screens and for phones


def test_page_loads_nothing_and_offers_no_upload(page):
    for load in ("http://", "https://", "<script src", "<link", "<img", "@import", "url("):
        assert load not in page


def test_names_are_escaped():
    page = own(sample_table("<b>"), [sample_run("<b>", "learned", "evidence", "<b>")], title="<b>")
    assert "<b>" not in page
    assert "<h1>&lt;b&gt;</h1>" in page


def test_runs_without_a_choice_or_a_curve_of_the_evidence_are_shown():
    run = sample_run("digit", "learned", "evidence")
    summary = replace(run.summary, symmetries=run.summary.symmetries[-1:])
    page = own(sample_table("digit"), [replace(run, history=sample_history([None, -1234.5]), summary=summary)])
    assert "No layer had a choice" in page
    assert '<div id="shares' not in page


def test_page_without_runs_has_the_table():
    assert "97.3 %" in own(sample_table("digit"), [])
