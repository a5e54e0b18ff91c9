"""What `mkdocs.yml` cannot say: the version; and files of the project beside `docs/` are pages of the site, with links."""

import re
from pathlib import Path
from posixpath import dirname, join, normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
#: Files beside `docs/`, and where they are in the site.
BESIDE = {
    "README.md": "overview.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "CITATION.cff": "CITATION.cff",
}
_PLACES = {place: name for name, place in BESIDE.items()}
_LINK = re.compile(r"\]\((?!\w+:|#)([^)\s#]+)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Every page says of which version it is."""
    found = re.search(r'^__version__ = "(.+)"$', (ROOT / "symbayes" / "__init__.py").read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    config.copyright = f"symbayes {found[1]}"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add them."""
    for name, place in BESIDE.items():
        files.append(File.generated(config, place, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between files of the project into links between pages."""
    here = page.file.src_uri
    folder = dirname(_PLACES.get(here) or join("docs", here))

    def linked(match: re.Match[str]) -> str:
        target = normpath(join(folder, match[1]))
        if (ROOT / target).is_dir():
            target = join(target, "README.md")
        place = BESIDE.get(target) or target.removeprefix("docs/")
        return f"]({relpath(place, dirname(here) or '.')}"

    return _LINK.sub(linked, markdown)
