"""Every reader on some damaged files, and on those that it failed on once; `python -m tests.fuzz` has more."""

import time
import warnings

import pytest
import torch

from symbayes.data import files
from tests import fuzz
from tests.fuzz import READ, READERS, REFUSED, Reader, run


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_read_or_refused_in_a_sentence(name, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_RECORDS", fuzz.RECORDS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = run(name, 15, 0, tmp_path, store=False)
    assert found.keys() == {READ, REFUSED}
    assert found[REFUSED] > 0


def slow(content, folder):
    time.sleep(5)


@pytest.mark.parametrize(
    ("read", "how"),
    [
        (lambda content, folder: {}["key"], "KeyError: 'key'"),
        (lambda content, folder: torch.tensor([1.0, torch.nan]), "gave numbers that are not finite"),
        (lambda content, folder: (_ for _ in ()).throw(ValueError("")), "was refused without a word"),
        (lambda content, folder: (_ for _ in ()).throw(MemoryError()), "took more than 1073741824 bytes"),
        (slow, "took more than 0.2 s"),
    ],
)
def test_a_reader_that_does_anything_else_is_seen(read, how, tmp_path, monkeypatch):
    whole = [b"whole"]
    reader = Reader(lambda: whole, lambda content, folder: None if content in whole else read(content, folder))
    monkeypatch.setitem(READERS, "wrong", reader)
    monkeypatch.setattr(fuzz, "SECONDS", 0.2)
    monkeypatch.setattr(fuzz, "CORPUS", tmp_path / "corpus")
    found = run("wrong", 3, 0, tmp_path)
    assert found[how] >= 2
    kept = fuzz.kept_inputs("wrong")
    assert kept
    found = run("wrong", 0, 0, tmp_path)  # what was kept is tried again
    assert found[how] == len(kept)
