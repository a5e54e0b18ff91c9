"""Small files in the formats of MNIST and CIFAR-10."""

import gzip
import pickle

import numpy as np

RNG = np.random.default_rng(0)


def write_mnist(folder, train=60, test=20, packed=True):
    """Random images of 28×28 whose labels go round; their bytes by name."""
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for part, count in (("train", train), ("t10k", test)):
        images = RNG.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        header = np.array([2051, count, 28, 28], dtype=">i4").tobytes()
        written[f"{part}-images-idx3-ubyte"] = header + images.tobytes()
        written[f"{part}-labels-idx1-ubyte"] = np.array([2049, count], dtype=">i4").tobytes() + labels.tobytes()
    for name, content in written.items():
        (folder / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(content) if packed else content)
    return written


def cifar_records():
    """One file of records, a label and 3 072 pixels: random at first, then empty, so that it packs quickly."""
    records = np.zeros((10_000, 3073), dtype=np.uint8)
    records[:100] = RNG.integers(0, 10, (100, 3073))
    return records


def pickled(records):
    """The same as the Python version has it: as Python 2 wrote it, for a numpy that kept its functions elsewhere."""
    found = {
        b"batch_label": b"training batch",
        b"labels": [int(label) for label in records[:, 0]],
        b"data": records[:, 1:].copy(),
    }
    return pickle.dumps(found, protocol=3).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
