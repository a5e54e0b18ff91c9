import re
from dataclasses import replace

import pytest

from symbayes.report.runs import run_page
from symbayes.training.record import Decision
from tests.report.samples import path_row, sample_history, sample_summary


def own(page: str) -> str:
    """The page without scripts."""
    assert "<script" not in page
    return page


@pytest.fixture(scope="module")
def page() -> str:
    return own(run_page(sample_summary(), sample_history([None, -1500.0, -1234.5])))


@pytest.mark.parametrize("number", ["−1,234.5", "−1.234", "−1,204.5", "−100.0", "70.0", "3.09", "302.8", "1,282", "97 %"])
def test_numbers_are_on_the_page(page, number):
    assert number in page


def test_sentences_and_estimator_are_on_the_page(page):
    assert "block1 keeps part of translation (conv 97 % of γ per weight, γ 302.8; dense 3 %, γ 302.8)" in page
    assert "KFAC (expand, exact Fisher)" in page


def test_what_was_tried_is_on_the_page(page):
    assert "What was tried" not in page
    decisions = [
        Decision("nothing that breaks a symmetry", -1300.0, kept=False),
        Decision("all precisions × 0.33", None, kept=False),
    ]
    history = [replace(one, decision=two) for one, two in zip(sample_history([-2.0, -1234.5]), decisions, strict=True)]
    page = own(run_page(sample_summary(), history))
    rows = re.findall(r"<td>(\d)</td><td>(.*)</td>\n<td class=\"num\">(.*)</td>\n<td>(.*)</td>", page)
    assert rows == [
        ("1", "nothing that breaks a symmetry", "−1.3000", "no"),
        ("2", "all precisions × 0.33", "not finite", "no"),
    ]


def test_what_an_earlier_version_claimed_is_said_anew(page):
    assert "block1 keeps translation" not in page
    assert ": dense.weight (γ 1.0) may break it" in page


def test_gamma_stands_beside_every_share(page):
    assert "<title>dense, block1: 3.0 %, γ 302.8</title>" in page
    assert "γ 303 | 303" in page


def test_page_loads_nothing_and_offers_no_upload(page):
    for load in ("http://", "https://", "<script src", "<link", "<img", "@import", "url("):
        assert load not in page


def test_pages_of_the_same_run_are_equal(page):
    assert own(run_page(sample_summary(), sample_history([None, -1500.0, -1234.5]))) == page


def test_names_are_escaped():
    page = own(run_page(sample_summary("<b>"), sample_history([-2.0, -1.0], "<b>")))
    assert "<b>" not in page
    assert "&lt;b&gt; keeps part of translation" in page


def test_page_without_words_says_that_there_was_no_choice():
    summary = replace(sample_summary(), symmetries=(path_row("", "Linear", 1.0),))
    page = own(run_page(summary, sample_history([None, -1234.5])))
    assert "No layer had a choice" in page
    assert "(model)" in page
    assert 'id="shares"' not in page


def test_single_evidence_gives_curves_of_the_loss_only():
    page = own(run_page(sample_summary(), sample_history([None, None, -1234.5])))
    assert "loss (nats per datum)" in page
    assert "estimated once" in page
    assert "log evidence (nats per datum)" not in page
    assert 'id="precisions"' not in page


def test_precisions_of_weights_but_not_of_biases_are_drawn(page):
    assert 'id="precisions"' in page
    assert "<title>block1.paths.dense.weight</title>" in page
    assert "bias</title>" not in page


def test_noise_is_on_the_page_where_there_is_some():
    summary = replace(sample_summary(), evidence=replace(sample_summary().evidence, noise=[0.12345]))
    assert "Noise σ: 0.123." in own(run_page(summary, sample_history([-1234.5])))
