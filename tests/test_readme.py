"""Documents are true: their Python runs, their links lead somewhere, and the README stays short."""

import re
from dataclasses import replace

import pytest
from typer.testing import CliRunner

import symbayes as sb
from symbayes.cli.app import app
from tests.documents import ROOT, TUTORIALS, blocks, run

PAGES = sorted(path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
#: Commands of the package that are now in `papers/`.
MOVED = re.compile(r"symbayes (?:reproduce|estimators|illustrate|gallery|demo --(?:groups|sets|sequences|elbo|inv|freq|cons))")


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


@pytest.fixture
def few_data(monkeypatch):
    """Data sets are cut to what is quick to train on."""
    load = sb.load

    def load_few(name: str) -> sb.Task:
        few = load(name).subset(150)
        return replace(few, test=(few.test[0][:50], few.test[1][:50]))

    monkeypatch.setattr(sb, "load", load_few)


def anchors(page: str) -> set[str]:
    """Of the headings of a page, as hosts of markdown name them."""
    titles = re.findall(
        r"^#+ (.*)$", re.sub(r"^```.*?^```", "", read(page), flags=re.DOTALL | re.MULTILINE), flags=re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.usefixtures("few_data")
def test_python_blocks_of_the_readme_run_and_the_saved_result_has_a_page(tmp_path, monkeypatch):
    assert len(blocks("README.md")) >= 3
    monkeypatch.chdir(tmp_path)
    run("README.md")
    folder = tmp_path / "runs" / "quadrant"
    assert {"result.json", "history.jsonl", "weights.safetensors"} <= {path.name for path in folder.iterdir()}
    said = CliRunner().invoke(app, ["report", "runs/quadrant"])
    assert said.exit_code == 0, said.output
    assert "</html>" in (folder / "report.html").read_text(encoding="utf-8")


def test_the_readme_is_short_and_its_first_screen_runs():
    lines = read("README.md").splitlines()
    assert len(lines) <= 150
    assert lines.index("```python") < 15


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.startswith("docs/") and page not in TUTORIALS and blocks(page)]
)
def test_python_blocks_of_pages_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(page)


@pytest.mark.parametrize("page", PAGES)
def test_links_between_documents_lead_somewhere(page):
    for address in re.findall(r"\]\(([^)\s]+)\)", read(page)):
        if address.startswith(("http://", "https://")):
            continue
        file, _, anchor = address.partition("#")
        target = (ROOT / page).parent / file if file else ROOT / page
        assert target.exists(), address
        if anchor:
            assert anchor in anchors(target.resolve().relative_to(ROOT).as_posix()), address


@pytest.mark.parametrize("page", [page for page in PAGES if page != "CHANGELOG.md"])
def test_paths_named_in_documents_exist(page):
    for name in re.findall(r"`((?:symbayes|papers|tests|docs|benchmarks)/[\w./-]+?\.\w+)`", read(page)):
        assert (ROOT / name).exists(), name


def test_every_page_can_be_found_from_the_index():
    seen, todo = set(), ["docs/README.md"]
    while todo:
        page = todo.pop()
        seen.add(page)
        found = re.findall(r"\]\(([^)#\s]+\.md)(?:#[^)]*)?\)", read(page))
        linked = {((ROOT / page).parent / name).resolve().relative_to(ROOT).as_posix() for name in found if "://" not in name}
        todo += linked - seen - set(todo)
    assert set(PAGES) - seen == set()


@pytest.mark.parametrize("page", [page for page in PAGES if MOVED.search(read(page)) and page != "CHANGELOG.md"])
def test_a_record_with_a_command_that_moved_says_what_it_is_called_today(page):
    assert "commands-in-records" in read(page) or "python -m papers" in read(page)
