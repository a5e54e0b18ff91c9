"""Pages in a browser: phone and desk, light and dark, without JavaScript; screenshots stay beside the test's files.

They need the packages of the extra `browser` and a Chromium of the system, and are skipped without.
"""

import json
import shutil
from dataclasses import replace

import pytest

from symbayes.cli.watch import serving
from symbayes.data.storage import from_json, to_json
from symbayes.dynamics.summary import DiscoverySummary
from symbayes.report.discovery import discovery_page
from symbayes.report.live import live_page
from symbayes.report.page import FigureTable, TableCell, TableRow
from symbayes.report.plots import Run
from symbayes.report.runs import comparison_page, run_page
from symbayes.training.live import LIVE, Live
from symbayes.training.record import HeldOut, write_records
from tests.report.discovery_sample import oscillators
from tests.report.samples import invariant_history, invariant_summary, sample_extent, sample_history, sample_summary
from tests.report.test_calibration_pages import classes
from tests.report.test_pages import ROWS, flat

sync_api = pytest.importorskip("playwright.sync_api")
axe = pytest.importorskip("axe_playwright_python.sync_playwright")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")


def compared():
    cells = TableCell("91.2 %", "-1.5"), TableCell("97.3 %", best=True)
    table = FigureTable(("CONV", "learned"), (TableRow("digit", cells),))
    summary = replace(sample_summary(), symmetries=ROWS)
    runs = [Run("digit", name, "evidence", True, summary, flat()) for name in table.columns]
    return comparison_page("Does position matter?", "Two models learn digits.", table, runs)


def learned():
    found = HeldOut(10, {"accuracy": 0.8, "nll": 0.4567}, "plug-in", ("cat", "dog"), ((5, 1), (1, 3)))
    return run_page(replace(sample_summary(), symmetries=ROWS, held_out=found, calibration=classes()), flat())


def invariant():
    values = {"rotation": [5.0, 20.0, 30.0]}
    return run_page(invariant_summary(sample_extent("rotation", 30.0)), invariant_history(values), truth={"rotation": 45.0})


def sample_live():
    return Live(
        format=1,
        model="network of two layers",
        num_data=1000,
        likelihood="Categorical",
        prior="TensorwisePrior",
        symmetries=ROWS,
        extents=(sample_extent("rotation", 30.0),),
        history=tuple(invariant_history({"rotation": [5.0, 20.0, 30.0]})),
    )


def under_way():
    return live_page(sample_live(), "Training goes on.")


PAGES = {
    "live": (under_way, "Not known yet"),
    "learned": (learned, "1 of 3 layers keeps translation"),
    "failed": (lambda: run_page(sample_summary(), sample_history([-1500.0, -1234.5])), "Training has not converged"),
    "invariant": (invariant, "How far it is invariant"),
    "compared": (compared, "What the learned models chose"),
    "conserved": (lambda: discovery_page(from_json(oscillators(), DiscoverySummary, "sample")), "4 conserved quantities"),
}


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1000, 1280])
@pytest.mark.parametrize("name", PAGES)
def test_pages_read_at_any_width_in_light_and_dark(name, width, scheme, browser, tmp_path):
    make, said = PAGES[name]
    path = tmp_path / "page.html"
    path.write_text(make(), encoding="utf-8")
    assert path.stat().st_size < 1_000_000
    problems = []
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True)
    page = context.new_page()
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith(("file:", "data:")) else problems.append(request.url))
    page.goto(path.as_uri())
    assert said in page.inner_text("body")
    assert page.evaluate("document.documentElement.scrollWidth") <= width  # only tables scroll
    shade = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (shade == "rgb(255, 255, 255)") == (scheme == "light")
    charts = page.locator(".chart svg[role=img]:visible")
    assert charts.count() > 0
    for at in range(charts.count()):
        box = charts.nth(at).bounding_box()
        assert box["width"] > 200
        assert box["x"] + box["width"] <= width
    page.screenshot(path=tmp_path / f"{name}-{width}-{scheme}.png", full_page=True)
    found = axe.Axe().run(page).response["violations"]
    assert [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")] == []
    assert problems == []
    context.close()


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_whole_without_javascript(name, browser, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(PAGES[name][0](), encoding="utf-8")
    pictures = []
    for scripts in (True, False):
        context = browser.new_context(viewport={"width": 1280, "height": 900}, java_script_enabled=scripts)
        page = context.new_page()
        page.goto(path.as_uri())
        pictures.append(page.screenshot(full_page=True))
        context.close()
    assert pictures[0] == pictures[1]


@pytest.mark.parametrize("scripts", [True, False])
def test_the_page_of_a_run_renews_itself_until_it_is_that_of_its_result(scripts, browser, tmp_path):
    live, problems = sample_live(), []
    (tmp_path / LIVE).write_text(json.dumps(to_json(replace(live, history=live.history[:2]))))
    context = browser.new_context(java_script_enabled=scripts)
    page = context.new_page()
    page.on("console", lambda message: problems.append(message.text))
    with serving(tmp_path) as server:
        page.goto(f"http://127.0.0.1:{server.server_port}/")
        assert "Epoch 2 of 3" in page.inner_text("h1")
        (tmp_path / LIVE).write_text(json.dumps(to_json(live)))
        page.get_by_role("heading", name="Epoch 3 of 3").wait_for()
        write_records(tmp_path, replace(sample_summary(), format=2), sample_history([-1500.0, -1234.5]))
        page.get_by_text("Training has ended. This page changes no more").wait_for()
        assert page.evaluate("document.querySelectorAll('script').length") == 0
    context.close()
    assert problems == []
