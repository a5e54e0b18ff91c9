"""Releases are the same whoever builds them, and have what they need."""

import io
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import version

import pytest

from tests.release import ROOT, built, repacked

has_git = shutil.which("git") is not None and (ROOT / ".git").exists()
old = int(version("setuptools").partition(".")[0]) < 77


@pytest.mark.skipif(not has_git or old or sys.platform == "win32", reason="a checkout, setuptools 77 and a umask are needed")
def test_wheel_and_sdist_are_the_same_whoever_builds_them_and_when(tmp_path):
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    first = built(head, tmp_path / "here")
    before = os.umask(0o077)
    try:
        second = built(head, tmp_path / "somewhere" / "else", age=86_400)
    finally:
        os.umask(before)
    assert first.keys() == second.keys()
    for name, content in first.items():
        assert content == second[name], name
    sdist, wheel = first.values()
    with tarfile.open(fileobj=io.BytesIO(sdist)) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
        assert {member.uid for member in archive} == {0}
    for name in ("conftest.py", "constraints.txt", "tests/small.py", "docs/README.md", "papers/rows.py", "CITATION.cff"):
        assert name in inside
    tracked = subprocess.run(
        ["git", "ls-tree", "-r", "--name-only", head], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert {name for name in tracked.stdout.splitlines() if not name.startswith(".")} <= inside
    names = zipfile.ZipFile(io.BytesIO(wheel)).namelist()
    assert "symbayes/report/templates/base.html" in names
    assert "symbayes/py.typed" in names
    assert all(name.startswith("symbayes") for name in names)


def test_archives_are_packed_in_order_and_of_nobody():
    packed = []
    for names, mtime, mode in ((("b", "a"), 5, 0o600), (("a", "b"), 7, 0o664)):
        written = io.BytesIO()
        with tarfile.open(fileobj=written, mode="w:gz") as archive:
            for name in names:
                member = tarfile.TarInfo(name)
                member.size, member.mtime, member.mode, member.uname = 1, mtime, mode, f"user{mode}"
                archive.addfile(member, io.BytesIO(name.encode()))
        packed.append(repacked(written.getvalue(), 1234))
    assert packed[0] == packed[1]
    with tarfile.open(fileobj=io.BytesIO(packed[0])) as archive:
        found = [(one.name, one.mtime, one.mode, one.uname, archive.extractfile(one).read()) for one in archive]
    assert found == [("a", 1234, 0o644, "", b"a"), ("b", 1234, 0o644, "", b"b")]
