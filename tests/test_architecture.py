"""The shape of the code: files that explain themselves, facades that only import, and are not imported inside."""

import ast
from pathlib import Path

import jaxtyping
import pytest
import torch

import symbayes
from symbayes.curvature.blocks import eigendecompose

PACKAGE = Path(__file__).parent.parent / "symbayes"
FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_every_file_explains_itself_and_stays_readable(file):
    text = file.read_text(encoding="utf-8")
    if text == "" and file.name == "__init__.py":
        return
    assert ast.get_docstring(ast.parse(text)), "has no docstring"
    assert len(text.splitlines()) <= 510, "is too long to hold in mind"


@pytest.mark.parametrize(
    "file", [file for file in FILES if file.name != "__init__.py"], ids=lambda file: str(file.relative_to(PACKAGE))
)
def test_names_are_imported_from_the_file_that_defines_them(file):
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0
            assert node.module != "symbayes"


def test_the_facade_exports_what_it_imports():
    assert sorted(symbayes.__all__) == symbayes.__all__
    assert all(hasattr(symbayes, name) for name in symbayes.__all__)


def test_shapes_are_checked_while_tests_run():
    with pytest.raises(jaxtyping.TypeCheckError, match="matrices"):
        eigendecompose(torch.zeros(3), "weight", vectors=False)
