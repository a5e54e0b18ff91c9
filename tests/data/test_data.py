"""Sources of batches, embedded tasks, and files that are whole, missing or damaged."""

import gzip
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, Dataset, TensorDataset

import symbayes as sb
from symbayes.data.load import load
from symbayes.data.source import as_source, as_tensor, check_finite
from symbayes.errors import NotFiniteError

CPU = torch.device("cpu")
PAIR = (torch.arange(10.0)[:, None], torch.arange(10))


class Squares(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return torch.tensor([float(index)]), torch.tensor(index)


@pytest.mark.parametrize(
    "data", [PAIR, TensorDataset(*PAIR), Squares(), DataLoader(Squares(), 4)], ids=lambda d: type(d).__name__
)
def test_all_kinds_of_data_give_the_same_batches(data):
    source = as_source(data, CPU)
    inputs, targets = (torch.cat(parts) for parts in zip(*source.batches(4), strict=True))
    assert source.size == 10
    assert_close(inputs, PAIR[0])
    assert_close(targets, PAIR[1])


@pytest.mark.parametrize("data", [PAIR, Squares(), DataLoader(Squares(), 4, shuffle=True)], ids=lambda d: type(d).__name__)
def test_shuffling_follows_the_generator_and_loses_nothing(data):
    def order(seed):
        batches = as_source(data, CPU).batches(4, generator=torch.Generator().manual_seed(seed))
        return torch.cat([targets for _, targets in batches])

    assert_close(order(1), order(1))
    assert not torch.equal(order(1), order(2))
    assert_close(order(1).sort().values, PAIR[1])


def test_a_subclass_of_tensor_dataset_keeps_its_transformation():
    class Doubled(TensorDataset):
        def __getitem__(self, index):
            inputs, targets = super().__getitem__(index)
            return 2 * inputs, targets

    inputs, _ = next(as_source(Doubled(*PAIR), CPU).batches(10))
    assert_close(inputs, 2 * PAIR[0])


def test_no_shuffled_batch_of_tensors_is_a_single_datum():
    sizes = [len(x) for x, _ in as_source(PAIR, CPU).batches(3, generator=torch.Generator().manual_seed(0))]
    assert sizes == [3, 3, 4]


def test_a_user_s_loader_is_left_as_it_was():
    loader = DataLoader(Squares(), 4, shuffle=True)
    list(as_source(loader, CPU).batches(4, generator=torch.Generator()))
    assert loader.sampler.generator is None


@pytest.mark.parametrize(
    ("data", "kind", "message"),
    [
        ((torch.zeros(3, 1), torch.zeros(2)), ValueError, "same length, got 3 and 2"),
        ((torch.zeros(0, 1), torch.zeros(0)), ValueError, "The data set is empty"),
        (DataLoader(Squares(), 4, drop_last=True), ValueError, "must have drop_last=False"),
    ],
)
def test_data_that_cannot_be_used_are_refused(data, kind, message):
    with pytest.raises(kind, match=message):
        as_source(data, CPU)


def test_data_of_another_kind_are_refused():
    # In a process of its own, because under test the annotations themselves would refuse it.
    code = "import torch; from symbayes.data.source import as_source; as_source(torch.zeros(3), torch.device('cpu'))"
    failed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "TypeError: Data must be a pair of tensors, arrays or frames (inputs, targets)" in failed.stderr
    assert "got Tensor" in failed.stderr


def test_batches_that_are_no_pairs_are_refused():
    with pytest.raises(TypeError, match="A batch must be a pair of tensors"):
        next(iter(as_source(TensorDataset(*PAIR, PAIR[1]), CPU).batches(2)))


def test_inputs_that_are_not_finite_are_refused_with_the_first_of_them():
    inputs = torch.zeros(5, 2)
    inputs[3, 1] = float("nan")
    with pytest.raises(NotFiniteError, match="NaN or infinity in 1 of 5 data of a batch, first in datum 103"):
        check_finite(inputs, start=100)


class Table:
    """As a frame of pandas or polars."""

    def __init__(self, values):
        self.values = np.asarray(values)

    def to_numpy(self):
        return self.values


@pytest.mark.parametrize("kind", [np.asarray, Table])
def test_arrays_and_frames_are_taken_in_the_precision_of_the_weights(kind):
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(30, 2))
    targets = (inputs[:, 0] > 0).astype(int)
    result = sb.fit(nn.Linear(2, 2), (kind(inputs), kind(targets)), epochs=2, progress=False)
    wanted = torch.as_tensor(inputs, dtype=torch.float32), torch.as_tensor(targets)
    assert_close(result.predict(kind(inputs)).mean, result.predict(wanted[0]).mean)
    assert result.evaluate((kind(inputs), kind(targets))) == result.evaluate(wanted)
    assert str(sb.equivariance(result.model, kind(inputs), sb.groups.symmetric(2)))
    values = sb.fit(nn.Linear(2, 1), (kind(inputs), kind(inputs[:, :1])), likelihood=sb.Gaussian(), epochs=2, progress=False)
    assert math.isfinite(values.evidence.total)


@pytest.mark.parametrize("kind", [">f4", ">i8", "longdouble", "read-only"])
def test_arrays_of_all_kinds_are_taken(kind):
    values = np.arange(6).reshape(3, 2).astype("f8" if kind == "read-only" else kind)
    values.flags.writeable = kind != "read-only"
    found = as_tensor(values)
    assert_close(found.double(), torch.arange(6.0, dtype=torch.float64).view(3, 2))
    found[0, 0] = 9  # which is no view of what must stay
    assert values[0, 0] == 0 or kind != "read-only"


def test_frames_of_text_are_refused():
    with pytest.raises(TypeError, match=r"Data must be numbers.*got a Table of <U1. Number what is text"):
        as_source((Table(np.eye(2)), Table(["a", "b"])), CPU)
    with pytest.raises(TypeError, match=r"Data must be numbers.*got a Table of object"):
        as_source((Table(np.array([[1, "a"]], dtype=object)), PAIR[1]), CPU)


def test_embedded_digits_stand_in_quadrants():
    task = load("quadrant-digits")
    inputs, targets = task.train
    assert inputs.shape == (1400, 1, 16, 16)
    assert task.classes == 40
    assert len(task.test[0]) == 4 * 397
    background = inputs.min()
    for image, target in zip(inputs[:50, 0], targets[:50], strict=True):
        top, left = 8 * (int(target) // 20), 8 * (int(target) // 10 % 2)
        outside = image.clone()
        outside[top : top + 8, left : left + 8] = background
        assert (outside == background).all()
        assert (image[top : top + 8, left : left + 8] > background).any()
    assert_close(load("placed-digits").train[1], targets % 10)
    assert_close(load("placed-digits").train[0], inputs)


def test_every_test_digit_stands_in_all_quadrants():
    inputs, targets = load("quadrant-digits").test
    for shift, quadrant in ((0, 0), (8, 1)):
        moved = inputs[:397].roll(shift, 3)
        assert_close(moved, inputs[397 * quadrant : 397 * (quadrant + 1)])
        assert_close(targets[:397] + 10 * quadrant, targets[397 * quadrant : 397 * (quadrant + 1)])


def write_idx(folder, part, count, truncated=False):
    images = np.arange(count * 4, dtype=np.uint8).reshape(count, 2, 2)
    header = np.array([2051, count, 2, 2], dtype=">i4").tobytes()
    body = images.tobytes()[: -3 if truncated else None]
    with gzip.open(folder / f"{part}-images-idx3-ubyte.gz", "wb") as file:
        file.write(header + body)
    labels = np.arange(count, dtype=np.uint8)
    (folder / f"{part}-labels-idx1-ubyte").write_bytes(np.array([2049, count], dtype=">i4").tobytes() + labels.tobytes())


def test_mnist_is_read_from_plain_and_gzipped_files(tmp_path):
    for part in ("train", "t10k"):
        write_idx(tmp_path, part, 3)
    task = load("mnist", tmp_path, verify=False)
    assert task.train[0].shape == (3, 1, 2, 2)
    assert_close(task.train[0][0].flatten() * 0.3081 + 0.1307, torch.arange(4.0) / 255)
    assert task.test[1].tolist() == [0, 1, 2]
    assert task.background == (float(task.train[0][0, 0, 0, 0]),)


def test_files_that_are_missing_or_damaged_are_refused(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"'mnist' needs the file train-images-idx3-ubyte .*: symbayes download mnist --to"
    ):
        load("mnist", tmp_path)
    write_idx(tmp_path, "train", 3, truncated=True)
    with pytest.raises(ValueError, match="must hold 12 values, got 9: it is truncated"):
        load("mnist", tmp_path, verify=False)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(bytes([0, 0, 0, 1]) * 8)
    with pytest.raises(ValueError, match="must begin with the number 2051"):
        load("mnist", tmp_path, verify=False)
    (tmp_path / "data_batch_1.bin").write_bytes(bytes(10))
    with pytest.raises(ValueError, match="must hold 10000 records of 3073 bytes, got 10 bytes"):
        load("cifar10", tmp_path, verify=False)


def test_cifar10_is_read_from_its_binary_version(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    records = np.zeros((10_000, 3073), dtype=np.uint8)
    records[:, 0] = np.arange(10_000) % 10
    for name in [f"data_batch_{k}.bin" for k in range(1, 6)] + ["test_batch.bin"]:
        records.tofile(folder / name)
    task = load("cifar10", tmp_path, verify=False)
    assert task.train[0].shape == (50_000, 3, 32, 32)
    assert_close(task.test[0][0, :, 0, 0], -torch.tensor([125.3 / 63.0, 123.0 / 62.1, 113.9 / 66.7]))
    assert list(task.background) == task.test[0][0, :, 0, 0].tolist()


def test_unknown_names_and_missing_folders_are_said():
    with pytest.raises(KeyError, match="There is no task 'digits'; there are placed-digits"):
        load("digits")
    with pytest.raises(ValueError, match="give the folder that holds them"):
        load("mnist")
