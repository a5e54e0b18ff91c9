"""The Python version of CIFAR-10 is read without unpickling: every protocol, and nothing that only looks like it."""

import pickle
import struct

import numpy as np
import pytest

from symbayes.data.files import read_batch
from symbayes.data.load import load
from tests.damage import damaged
from tests.data.fakes import cifar_records

ROWS, COLUMNS = 4, 6
PIXELS = np.arange(ROWS * COLUMNS, dtype=np.uint8).reshape(ROWS, COLUMNS) * 10
LABELS = [3, 0, 9, 1]


def batch(**others):
    found = {"batch_label": b"training batch", "labels": LABELS, "data": PIXELS, "filenames": [b"a.png", b"b.png"]}
    return {name.encode(): value for name, value in (found | others).items()}


def by_python_2(pixels=PIXELS, by_columns=False, kind=b"u1"):
    """As Python 2 wrote it: protocol 2, in which all text is of bytes."""

    def text(value):
        return (b"U" + bytes([len(value)]) if len(value) < 256 else b"T" + struct.pack("<i", len(value))) + value

    def number(value):
        return b"K" + bytes([value]) if value < 256 else b"M" + struct.pack("<H", value)

    shape = b"".join(map(number, pixels.shape)) + b"\x86q\x0c"
    dtype = (
        b"cnumpy\ndtype\nq\r" + text(kind) + b"K\x00K\x01\x87q\x0eRq\x0f(K\x03" + text(b"|") + b"NNN" + 2 * b"J\xff\xff\xff\xff"
    )
    array = b"cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85q\t" + text(b"b") + b"\x87q\nRq\x0b"
    content = pixels.tobytes("F" if by_columns else "C")
    array += b"(K\x01" + shape + dtype + b"K\x00tb" + (b"\x88" if by_columns else b"\x89") + text(content) + b"tb"
    labels = b"]q\x05(" + b"".join(map(number, LABELS)) + b"e"
    names = b"]q\x10(" + b"".join(text(name) + b"r" + struct.pack("<i", 300) for name in (b"a.png", b"b.png")) + b"e"
    parts = {b"batch_label": text(b"training batch 1 of 5"), b"labels": labels, b"data": array, b"filenames": names}
    return b"\x80\x02}q\x01(" + b"".join(text(key) + value for key, value in parts.items()) + b"u."


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("order", ["C", "F"])
def test_every_protocol_is_read(protocol, order):
    raw = pickle.dumps(batch(data=np.array(PIXELS, order=order)), protocol=protocol)
    for written in (raw, raw.replace(b"numpy._core.", b"numpy.core.") if protocol < 4 else raw):
        labels, pixels = read_batch(written, ROWS, COLUMNS)
        assert labels.tolist() == LABELS
        assert np.array_equal(pixels, PIXELS)


@pytest.mark.parametrize("by_columns", [False, True])
def test_what_python_2_wrote_is_read(by_columns):
    raw = by_python_2(by_columns=by_columns)
    assert np.array_equal(pickle.loads(raw, encoding="bytes")[b"data"], PIXELS)
    labels, pixels = read_batch(raw, ROWS, COLUMNS)
    assert labels.tolist() == LABELS
    assert np.array_equal(pixels, PIXELS)


class Call:
    def __init__(self, *made):
        self.made = made

    def __reduce__(self):
        return self.made


RECONSTRUCT, (ARRAY, _, _), STATE = PIXELS.__reduce__()
OBJECTS = (1, (ROWS, COLUMNS), np.dtype("O"), False, bytes(8 * PIXELS.size))


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (batch(data=Call(print, ("run",))), r"builtin.*print is not among the things"),
        (batch(data=Call(RECONSTRUCT, (ARRAY, (0,), b"b"), OBJECTS)), "arrays must be of bytes"),
        (batch(data=Call(RECONSTRUCT, (ARRAY, (0,), b"b"))), "its data an array"),
        (batch(data=Call(ARRAY, ((ROWS, COLUMNS), np.dtype("u1")))), "arrays must be of bytes"),
        (batch(data=Call(RECONSTRUCT, (ARRAY, (10**6, 10**6), b"b"))), "arrays must be of bytes"),
        (batch(data=Call(RECONSTRUCT, (ARRAY, (0,), b"b"), (*STATE[:4], bytes(3)))), "got 4 and 3 in all"),
        (batch(data=Call(RECONSTRUCT, (ARRAY, (0,), b"b"), (1, (10**9, 10**9), *STATE[2:]))), "got 4 and 24 in all"),
        (batch(data=PIXELS.astype(np.int64)), "arrays must be of bytes"),
        (batch(data=PIXELS[:3]), "must be 4 labels and as many rows of 6 pixels, got 4 and 18 in all"),
        (batch(labels=LABELS[:3]), "got 3 and 24 in all"),
        (batch(labels=[0, 1, 2, 256]), "labels must be numbers from 0 to 9"),
        (batch(labels=[0, 1, 2, True]), "labels must be numbers from 0 to 9"),
        (batch(labels=[0, 1, 2, -1]), "labels must be numbers from 0 to 9"),
        (batch(labels=None), "its labels must be a list"),
        ({b"labels": LABELS}, "its data an array"),
        ([1], "its labels must be a list"),
        (batch(data=1.5), "the opcode BINFLOAT has no place in it"),
        ({(1, 2): 3}, "it is damaged .*a key is no name"),
        (batch(filenames=[None] * 300_000), "must have at most 200000 opcodes"),
    ],
)
def test_what_is_not_a_batch_is_refused(found, message, capsys):
    for protocol in (2, 4):
        with pytest.raises(ValueError, match=message):
            read_batch(pickle.dumps(found, protocol=protocol), ROWS, COLUMNS)
    assert capsys.readouterr().out == ""


def test_nesting_that_doubles_with_every_step_takes_no_time():
    nested = b"\x80\x02)" + b"q\x00h\x00\x86" * 5000
    for end in (b"K\x01R.", b"q\x00cnumpy\ndtype\nh\x00R.", b"}h\x00K\x01s.", b"h\x00\x93.", b"."):
        with pytest.raises(ValueError, match=r"damaged|arrays must be of bytes|labels must be a list"):
            read_batch(nested + end, ROWS, COLUMNS)


@pytest.mark.parametrize("raw", [by_python_2(), *(pickle.dumps(batch(), protocol=protocol) for protocol in (2, 4, 5))])
def test_damaged_batches_are_read_or_refused(raw):
    for changed in damaged(raw, 500):
        try:
            labels, pixels = read_batch(changed, ROWS, COLUMNS)
        except ValueError:
            continue
        assert labels.shape == (ROWS,)
        assert pixels.shape == (ROWS, COLUMNS)


def test_the_file_is_named_and_the_binary_version_offered(tmp_path):
    records = cifar_records()
    found = batch(labels=records[:, 0].tolist(), data=records[:, 1:].astype(np.int8))
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(found))
    message = r"data_batch_1 must hold labels and data of CIFAR-10, .* arrays must be of bytes.*: symbayes download cifar10"
    with pytest.raises(ValueError, match=message):
        load("cifar10", tmp_path, verify=False)
