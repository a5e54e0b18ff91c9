"""Every Python block of the README runs, in order, as a newcomer would type it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_python_blocks_of_the_readme_run(tmp_path, monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) >= 3
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert (tmp_path / "runs" / "quadrant" / "report.html").exists()


@pytest.mark.parametrize("document", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_paths_named_in_documents_exist(document):
    text = (ROOT / document).read_text(encoding="utf-8")
    for name in re.findall(r"`((?:symbayes|tests|docs|benchmarks)/[\w./]+?\.(?:py|md))`|\]\(([\w./-]+\.(?:md|svg))\)", text):
        assert (ROOT / (name[0] or name[1])).exists(), name
