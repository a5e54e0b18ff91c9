"""Whether files are the ones that were published."""

import hashlib
from pathlib import Path

#: By name of the file as it is unpacked.
MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
    "cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530",
}
#: Bytes of the largest of these files when it is unpacked, MNIST's training images; the archive apart.
LARGEST = 47_040_016


def digest(content: bytes) -> str:
    """The MD5 sum, as the publishers of these files give it; it guards against damage, not against malice."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def check(content: bytes, path: Path, cure: str) -> None:
    """Compare what was read with what was published.

    Args:
        content: Unpacked.
        path: Where it was read; its name, or that without .gz, says what it should be.
        cure: What to do if it is something else.

    Raises:
        ValueError: If it is.
    """
    expected, got = MD5.get(path.name) or MD5.get(path.name.removesuffix(".gz")), digest(content)
    if expected is not None and got != expected:
        raise ValueError(f"{path} is not the file that was published: its MD5 must be {expected}, got {got}. {cure}")
