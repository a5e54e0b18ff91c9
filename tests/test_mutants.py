"""The command that changes the library, itself."""

from tests.mutants import ROOT, Finder, Mutant, asked_for

SOURCE = """
LIMIT = 1

def scaled(x: int = 0, *, is_on: bool = True) -> float:
    '''0.5 in words.'''
    if x < 0 and is_on:
        raise ValueError("must not be " + "negative")
    total = 0.5 * x
    total += max(x, 2)
    return -total if not is_on else total
"""


def test_operators_numbers_and_names_are_changed_one_by_one(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(SOURCE)
    lines = SOURCE.splitlines()
    found = {m.source().decode().splitlines()[m.line - 1].strip() for m in Finder(path).found() if m.is_change()}
    assert found == {
        "if x < 0 or is_on:", "if x >= 0 and is_on:", "if x < 1 and is_on:", "total = 0.5 / x", "total = 1.0 * x",
        "total = max(x, 2)", "total += min(x, 2)", "total += max(x, 3)", "return total if not is_on else total",
        "return -total if is_on else total",
    }  # fmt: skip
    assert not found & {line.strip() for line in lines}


def test_tests_that_name_a_file_are_run_first():
    tests = asked_for("training", Mutant(ROOT / "symbayes/training/scale.py", 1, 0, 0, ""))
    assert tests[0] == "tests/training/test_scale.py"
    assert tests[-2:] == asked_for("training") == ["tests/training", "tests/contracts"]
    of_modes = asked_for("training", Mutant(ROOT / "symbayes/training/modes.py", 1, 0, 0, ""))
    assert "tests/training/test_augmentations.py" in of_modes
    assert "tests/training/test_scale.py" not in of_modes
