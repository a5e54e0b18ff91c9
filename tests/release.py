"""`python -m tests.release`: wheel and sdist of a commit, built twice in different places; the two are the same, byte by byte.

Times are those of the commit, and modes and owners say nothing of who builds. setuptools writes wheels so, where
SOURCE_DATE_EPOCH is set and files have the same modes, to which end the umask is always the same; its sdists are packed again.
The wheel is built from the sdist, so that nothing is in it that the sdist lacks.
"""

import argparse
import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
_UMASK = 0o022
_BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, 'build_' + sys.argv[1])(sys.argv[2]))"


def built(commit: str, out: Path, age: int = 0) -> dict[str, bytes]:
    """Sdist and wheel of a commit, by name; also left in a folder.

    Args:
        commit: Of this repository.
        out: For the two files.
        age: Seconds since the files were written, as their times say.
    """
    epoch = int(_git("log", "-1", "--format=%ct", commit))
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        source = Path(place) / "source"
        unpack(_git("archive", "--format=tar", f"{commit}^{{tree}}"), source, age)
        sdist = out / _build("sdist", source, out, epoch)
        sdist.write_bytes(repacked(sdist.read_bytes(), epoch))
        unpack(gzip.decompress(sdist.read_bytes()), Path(place) / "unpacked", age)
        (inside,) = (Path(place) / "unpacked").iterdir()
        wheel = out / _build("wheel", inside, out, epoch)
    return {path.name: path.read_bytes() for path in (sdist, wheel)}


def unpack(content: bytes, folder: Path, age: int = 0) -> None:
    """Write the files of an archive, with times of this machine."""
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for member in archive:
            path = folder / member.name
            if member.isdir():
                path.mkdir(parents=True, exist_ok=True)
            elif member.isfile():
                path.parent.mkdir(parents=True, exist_ok=True)
                reader = archive.extractfile(member)
                assert reader is not None
                path.write_bytes(reader.read())
                path.chmod(0o755 if member.mode & 0o100 else 0o644)
                then = path.stat().st_mtime - age
                os.utime(path, (then, then))


def repacked(content: bytes, epoch: int) -> bytes:
    """A .tar.gz with the same files: in order, of one time, of nobody, and with modes that say no more than what runs."""
    written = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as before,
        gzip.GzipFile(filename="", mode="wb", fileobj=written, mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as after,
    ):
        for member in sorted(before.getmembers(), key=lambda one: one.name):
            new = tarfile.TarInfo(member.name)
            new.type, new.size, new.mtime = member.type, member.size, epoch
            new.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            after.addfile(new, before.extractfile(member) if member.isfile() else None)
    return written.getvalue()


def _build(kind: str, source: Path, out: Path, epoch: int) -> str:
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "PYTHONPATH": ""}
    command = [sys.executable, "-c", _BUILD, kind, str(out.resolve())]
    done = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, umask=_UMASK, check=False)
    if done.returncode:
        raise RuntimeError(f"The {kind} could not be built:\n{done.stdout}{done.stderr}")
    return done.stdout.splitlines()[-1]


def _git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=True).stdout


def main() -> None:
    """Build, compare, and leave the files."""
    parser = argparse.ArgumentParser(prog="python -m tests.release", description=__doc__)
    parser.add_argument("--commit", default="HEAD", help="what is released")
    parser.add_argument("--out", type=Path, default=Path("dist"), help="folder for wheel and sdist, in place of those there")
    given = parser.parse_args()
    for before in [*given.out.glob("symbayes-*.whl"), *given.out.glob("symbayes-*.tar.gz")]:
        before.unlink()
    first = built(given.commit, given.out)
    with tempfile.TemporaryDirectory() as other:
        os.umask(0o077)
        second = built(given.commit, Path(other) / "dist", age=86_400)
    for name, content in first.items():
        same = "the same twice" if second.get(name) == content else "NOT the same twice"
        sys.stdout.write(f"{hashlib.sha256(content).hexdigest()}  {name}: {len(content):,} bytes, {same}\n")
    sys.exit(first != second)


if __name__ == "__main__":
    main()
