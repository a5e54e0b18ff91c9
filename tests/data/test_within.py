"""Files whose heads or contents claim more than they have, labels that are none, and files damaged in many ways."""

import gzip
import tracemalloc

import numpy as np
import pytest
from typer.testing import CliRunner

from papers.data import check_files
from symbayes.cli.app import app
from symbayes.data import files
from symbayes.data.files import download
from symbayes.data.load import load
from symbayes.data.storage import read_within
from tests.damage import damaged
from tests.data.fakes import cifar_records, write_mnist

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
#: 200 million zeros in 200 kilobytes.
BOMB = b"".join(gzip.compress(bytes(2 * 10**7)) for _ in range(10))


def head(*numbers):
    return np.array(numbers, dtype=">u4").tobytes()


@pytest.fixture
def little_memory():
    """That no more than some 120 MB are ever taken."""
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 120e6


@pytest.mark.usefixtures("little_memory")
def test_what_unpacks_to_more_than_its_head_says_is_not_unpacked_further(tmp_path):
    write_mnist(tmp_path)
    (tmp_path / f"{IMAGES}.gz").write_bytes(gzip.compress(head(2051, 60, 28, 28)) + BOMB)
    with pytest.raises(ValueError, match=r"must hold 47040 values, got more. Copy it again"):
        load("mnist", tmp_path, verify=False)
    with pytest.raises(ValueError, match=r"is not the file that was published"):
        load("mnist", tmp_path)
    with pytest.raises(ValueError, match=r"is not the file that was published"):
        check_files("mnist", tmp_path)
    (tmp_path / "data_batch_1.bin.gz").write_bytes(BOMB)
    with pytest.raises(ValueError, match=r"must hold 10000 records of 3073 bytes, got more"):
        load("cifar10", tmp_path, verify=False)


@pytest.mark.usefixtures("little_memory")
def test_what_is_fetched_is_not_unpacked_further_than_the_originals_go(tmp_path, monkeypatch):
    (tmp_path / f"{IMAGES}.gz").write_bytes(BOMB)
    with pytest.raises(ValueError, match=r"is not the file that was published"):
        download("mnist", tmp_path / "here", address=tmp_path.as_uri())
    monkeypatch.setattr(files, "_LONGEST", 10**5)
    with pytest.raises(ValueError, match=r"must give at most 100000 bytes; it gives more"):
        download("mnist", tmp_path / "here", address=tmp_path.as_uri())


@pytest.mark.parametrize("shape", [(2**31, 2**31, 4), (60_000, 2**16, 2**16), (0, 28, 28), (2**32 - 1, 2**32 - 28, 28)])
def test_heads_that_claim_nothing_or_too_much_are_refused(shape, tmp_path):
    write_mnist(tmp_path, packed=False)
    (tmp_path / IMAGES).write_bytes(head(2051, *shape) + bytes(784))
    with pytest.raises(ValueError, match=r"must hold from 1 to 1073741824 values; by its head it has"):
        load("mnist", tmp_path, verify=False)


def test_labels_are_those_of_ten_classes_and_as_many_as_images(tmp_path):
    write_mnist(tmp_path, packed=False)
    for labels, message in (
        (bytes([0, 200] * 30), r"train-labels-idx1-ubyte must hold labels 0 … 9, got 200"),
        (bytes(59), r"train-labels-idx1-ubyte must hold 60 labels, as there are images beside it; got 59"),
    ):
        (tmp_path / LABELS).write_bytes(head(2049, len(labels)) + labels)
        with pytest.raises(ValueError, match=message):
            load("mnist", tmp_path, verify=False)
    records = cifar_records()
    records[7, 0] = 200
    (tmp_path / "data_batch_1.bin").write_bytes(records.tobytes())
    with pytest.raises(ValueError, match=r"data_batch_1.bin must hold labels 0 … 9, got 200"):
        load("cifar10", tmp_path, verify=False)


def test_training_and_test_images_are_of_one_size(tmp_path):
    write_mnist(tmp_path, packed=False)
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(head(2051, 20, 28, 14) + bytes(20 * 28 * 14))
    with pytest.raises(ValueError, match="must hold training and test images of one size, got 28×28 and 28×14"):
        load("mnist", tmp_path, verify=False)


@pytest.mark.parametrize("packed", [False, True])
def test_damaged_idx_files_are_read_or_refused(packed, tmp_path):
    write_mnist(tmp_path, train=3, test=2, packed=packed)
    for name in (IMAGES, LABELS):
        path = tmp_path / (f"{name}.gz" if packed else name)
        whole = path.read_bytes()
        for changed in damaged(whole, 100):
            path.write_bytes(changed)
            try:
                images, labels = load("mnist", tmp_path, verify=False).train
            except ValueError:
                continue
            assert images.shape[0] == labels.shape[0] == 3
        path.write_bytes(whole)


def test_damaged_batches_of_records_are_read_or_refused(tmp_path):
    path = tmp_path / "data_batch_1.bin"
    for changed in damaged(cifar_records().tobytes(), 10):
        path.write_bytes(changed)
        with pytest.raises(
            (ValueError, FileNotFoundError), match=r"data_batch_1.bin must hold|needs the file data_batch_2.bin"
        ):
            load("cifar10", tmp_path, verify=False)


def test_a_gzipped_batch_of_records_is_one_of_records(tmp_path):
    (tmp_path / "data_batch_1.bin.gz").write_bytes(gzip.compress(cifar_records().tobytes(), 1))
    with pytest.raises(FileNotFoundError, match=r"needs the file data_batch_2.bin"):
        load("cifar10", tmp_path, verify=False)


def test_a_file_is_read_as_far_as_is_asked(tmp_path):
    (tmp_path / "file").write_bytes(b"0123456789")
    assert read_within(tmp_path / "file", 4, "") == b"0123"
    assert read_within(tmp_path / "file", 99, "") == b"0123456789"


def test_an_address_of_no_kind_is_said(tmp_path):
    result = CliRunner().invoke(
        app, ["download", "mnist", "--to", str(tmp_path), "--address", "there"], env={"COLUMNS": "300", "TERM": "xterm"}
    )
    assert result.exit_code == 2
    assert "could not be read (unknown url type" in result.output
