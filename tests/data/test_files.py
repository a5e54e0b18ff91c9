"""Files that are the originals or not, the Python version of CIFAR-10, and downloads (from a folder)."""

import pickle
import tarfile

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from typer.testing import CliRunner

from symbayes.cli.app import app
from symbayes.data import files as checksums
from symbayes.data.files import MD5, digest, download
from symbayes.data.load import load
from tests.data.fakes import cifar_records, pickled, write_mnist

BATCHES = [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]


class Harmful:
    def __reduce__(self):
        return print, ("run",)


def test_files_that_are_not_the_originals_are_refused_unless_asked_for(tmp_path):
    write_mnist(tmp_path)
    with pytest.raises(ValueError, match=r"MD5 must be 6bbc9ace898e44ae57da46a324031adb, got .*verify=False"):
        load("mnist", tmp_path)
    assert len(load("mnist", tmp_path, verify=False).train[0]) == 60


def test_both_versions_of_cifar10_are_the_same(tmp_path):
    records = cifar_records()
    for folder, suffix, content in (("bin", ".bin", records.tobytes()), ("py", "", pickled(records))):
        (tmp_path / folder / f"cifar-10-batches-{folder}").mkdir(parents=True)
        for name in BATCHES:
            (tmp_path / folder / f"cifar-10-batches-{folder}" / f"{name}{suffix}").write_bytes(content)
    binary, python = (load("cifar10", tmp_path / folder, verify=False) for folder in ("bin", "py"))
    for one, other in ((binary.train, python.train), (binary.test, python.test)):
        assert torch.equal(one[0], other[0])
        assert_close(one[1], other[1])


def test_a_pickle_that_names_anything_else_is_refused(tmp_path, capsys):
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps({b"labels": Harmful()}, protocol=3))
    with pytest.raises(ValueError, match=r"nothing but arrays, lists and names: .*print is not among the things"):
        load("cifar10", tmp_path, verify=False)
    assert capsys.readouterr().out == ""
    (tmp_path / "data_batch_1").write_bytes(pickled(np.zeros((5, 3073), dtype=np.uint8)))
    with pytest.raises(ValueError, match=r"must be 10000 labels .* got 5 and 15360 in all"):
        load("cifar10", tmp_path, verify=False)


def test_mnist_is_downloaded_once_and_whole(tmp_path, monkeypatch):
    written = write_mnist(tmp_path / "there")
    monkeypatch.setattr(checksums, "MD5", {name: digest(content) for name, content in written.items()})
    address = (tmp_path / "there").as_uri() + "/"
    seen = []
    paths = download("mnist", tmp_path / "here", lambda *news: seen.append(news), address)
    assert len(paths) == 4
    assert {name for name, _, _ in seen} == {path.name for path in paths}
    assert all(here == whole for _, here, whole in seen)
    assert load("mnist", tmp_path / "here").train[0].shape == (60, 1, 28, 28)
    paths[0].write_bytes(b"damaged")
    seen.clear()
    download("mnist", tmp_path / "here", lambda *news: seen.append(news), address)
    assert {name for name, _, _ in seen} == {paths[0].name}
    assert [path.name for path in sorted(paths[0].parent.iterdir())] == sorted(path.name for path in paths)


def test_a_file_whose_middle_is_damaged_is_refused_and_fetched_again(tmp_path, monkeypatch):
    written = write_mnist(tmp_path / "there")
    monkeypatch.setattr(checksums, "MD5", {name: digest(content) for name, content in written.items()})
    address = (tmp_path / "there").as_uri()  # without a stroke at the end
    path = download("mnist", tmp_path / "here", address=address)[0]
    whole = path.read_bytes()
    path.write_bytes(whole[:40] + bytes(20) + whole[60:])
    with pytest.raises(ValueError, match=r"must be a whole gzipped file; it is not .* Copy it again"):
        load("mnist", tmp_path / "here")
    download("mnist", tmp_path / "here", address=address)
    assert path.read_bytes() == whole


def test_an_idx_file_that_is_cut_in_its_head_is_refused(tmp_path):
    write_mnist(tmp_path, packed=False)
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:6])
    with pytest.raises(ValueError, match="must begin with the number 2051 of its IDX format"):
        load("mnist", tmp_path, verify=False)


def test_an_archive_that_is_something_else_is_refused(tmp_path):
    (tmp_path / "page.html").write_text("<h1>Not found</h1>")
    with pytest.raises(ValueError, match=r"its MD5 must be c32a1d4a.*give another address"):
        download("cifar10", tmp_path / "here", address=(tmp_path / "page.html").as_uri())


def test_an_address_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(OSError, match=r"nowhere/train-images-idx3-ubyte.gz could not be read .* Try again later"):
        download("mnist", tmp_path / "here", address=(tmp_path / "nowhere").as_uri())


def test_a_download_that_is_not_the_original_leaves_nothing(tmp_path):
    write_mnist(tmp_path / "there")
    words = ["download", "mnist", "--to", str(tmp_path / "here"), "--address", (tmp_path / "there").as_uri() + "/"]
    result = CliRunner().invoke(app, words, env={"COLUMNS": "300", "TERM": "xterm"})
    assert result.exit_code == 2
    assert "its MD5 must be 6bbc9ace" in result.output
    assert not list(tmp_path.glob("here/**/*ubyte*"))
    assert "There are mnist and cifar10 to download" in CliRunner().invoke(app, ["download", "svhn", "--to", "x"]).output


def test_cifar10_is_downloaded_from_its_archive(tmp_path, monkeypatch):
    content = cifar_records().tobytes()
    (tmp_path / "cifar-10-batches-bin").mkdir()
    with tarfile.open(tmp_path / "cifar-10-binary.tar.gz", "w:gz", compresslevel=1) as archive:
        for name in BATCHES:
            (tmp_path / "cifar-10-batches-bin" / f"{name}.bin").write_bytes(content)
            archive.add(tmp_path / "cifar-10-batches-bin" / f"{name}.bin", f"cifar-10-batches-bin/{name}.bin")
    sums = {f"{name}.bin": digest(content) for name in BATCHES}
    packed = (tmp_path / "cifar-10-binary.tar.gz").read_bytes()
    monkeypatch.setattr(checksums, "MD5", {**MD5, **sums, "cifar-10-binary.tar.gz": digest(packed)})
    address = (tmp_path / "cifar-10-binary.tar.gz").as_uri()
    result = CliRunner().invoke(app, ["download", "cifar10", "--to", str(tmp_path / "here"), "--address", address])
    assert result.exit_code == 0, result.output
    assert "6 files of cifar10 are in" in result.output
    assert load("cifar10", tmp_path / "here").train[0].shape == (50_000, 3, 32, 32)
