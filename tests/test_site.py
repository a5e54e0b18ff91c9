"""The site: tutorials print what they say, every page and every public name has its place, and it builds without a warning."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pkgutil import resolve_name
from types import ModuleType

import pytest

import symbayes as sb
from tests.documents import ROOT, TUTORIALS, Said, run

NAV = re.findall(r"(\S+\.md)\b", (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2])
DOCUMENTED = re.findall(
    r"^::: (\S+)$", "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs/api").glob("*.md")), flags=re.MULTILINE
)
#: Machines round differently, and training goes its own way from there.
CLOSE = {"rel": 0.2, "abs": 0.05}


@pytest.mark.parametrize("page", TUTORIALS)
def test_tutorials_print_what_they_say_and_draw_what_they_show(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    said = run(page)
    assert len(said) >= 3
    for part in said:
        claimed, printed = part.words()
        assert printed == claimed
        claimed, printed = part.numbers()
        assert printed == pytest.approx(claimed, **CLOSE)
    text = (ROOT / page).read_text(encoding="utf-8")
    pictures = re.findall(r"!\[.+?\]\(([^)]+)\)", text)
    assert pictures
    for picture in pictures:
        assert (tmp_path / picture).exists()
        assert (ROOT / page).parent.joinpath(picture).stat().st_size < 60_000
    assert 60 <= len(text.splitlines()) <= 125


def test_words_and_numbers_of_what_is_printed_are_compared_apart():
    said = Said("log evidence −1,234.5 (yes)\n", "log evidence -1240.1   (yes)", 0, 0)
    assert said.words() == ("log evidence # (yes)",) * 2
    assert said.numbers() == ([-1234.5], [-1240.1])
    other = Said("mirror_x: yes", "mirror_x: no", 0, 0).words()
    assert other[0] != other[1]


def test_every_page_is_in_the_navigation_once():
    beside = {"overview.md", "architecture.md", "contributing.md", "changelog.md"}  # by docs/hooks.py
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert sorted(NAV) == sorted(pages | beside)


def test_every_public_name_has_a_place_in_the_api():
    documented = {id(resolve_name(name)) for name in DOCUMENTED}
    for module in (sb, sb.layers, sb.groups, sb.curvature, sb.posterior, sb.dynamics, sb.surgery):
        public = {name: getattr(module, name) for name in module.__all__}
        named = [name for name, value in public.items() if not isinstance(value, ModuleType)]
        assert [name for name in named if id(public[name]) not in documented] == []


def test_no_name_is_documented_twice():
    assert len(DOCUMENTED) == len(set(DOCUMENTED))


@pytest.mark.skipif(find_spec("mkdocs") is None, reason="the extra docs is not installed")
def test_the_site_builds_without_a_warning_and_asks_no_other_host(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    for page in tmp_path.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"<(?:script|img|link rel=\"?stylesheet)[^>]*(?:src|href)=\"?(?:https?:)?//", text), page
        assert f"symbayes {sb.__version__}" in text or page.name == "404.html", page
