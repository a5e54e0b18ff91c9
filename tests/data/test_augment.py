"""Flips and crops against slow references, plans of training, and data that cannot be augmented."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from torch.utils.data import DataLoader, Dataset, TensorDataset

from symbayes.data.source import as_source
from symbayes.data.transform import FlipCrop

CPU = torch.device("cpu")


def images(n=12, generator=None):
    shape = (n, 2, 5, 7)
    inputs = 1 + torch.arange(n * 70.0).view(shape) if generator is None else torch.randn(shape, generator=generator)
    return inputs.double(), torch.arange(n)


def moved(image, down, right, mirror, padding):
    """A window of an image with zeros around it, pixel by pixel."""
    height, width = image.shape[1:]
    found = np.zeros_like(image)
    for row in range(height):
        for column in range(width):
            i, j = row + down - padding, (width - 1 - column if mirror else column) + right - padding
            if 0 <= i < height and 0 <= j < width:
                found[:, row, column] = image[:, i, j]
    return found


@pytest.mark.parametrize(("padding", "flip"), [(0, True), (2, False), (3, True), (9, True)])
def test_images_are_moved_as_one_by_one(padding, flip, generator):
    inputs, _ = images(40, generator)
    augment = FlipCrop(padding, flip)
    drawn = augment.draw(len(inputs), generator)
    wanted = [moved(x.numpy(), *line, padding) for x, line in zip(inputs, drawn.tolist(), strict=True)]
    assert_close(augment(inputs, drawn), torch.tensor(np.stack(wanted)), rtol=0, atol=0)


def test_every_shift_and_both_sides_are_drawn_alike(generator):
    drawn = FlipCrop(2).draw(20_000, generator)
    for column, count in ((0, 5), (1, 5), (2, 2)):
        shares = drawn[:, column].bincount() / len(drawn)
        assert_close(shares, torch.full((count,), 1 / count), rtol=0, atol=0.015)
    # On their own: no column says anything about another.
    assert_close(torch.corrcoef(drawn.T.double()), torch.eye(3, dtype=torch.float64), rtol=0, atol=0.03)
    assert FlipCrop(2, flip=False).draw(100, generator)[:, 2].sum() == 0


def test_the_middle_of_what_can_be_drawn_changes_nothing():
    inputs, _ = images()
    still = torch.tensor([[4, 4, 0]]).expand(len(inputs), -1)
    assert_close(FlipCrop(4)(inputs, still), inputs, rtol=0, atol=0)


def test_training_is_augmented_and_the_data_are_not():
    inputs, targets = images()
    source = as_source((inputs, targets), CPU, FlipCrop(2))

    def one_pass(seed):
        return [
            torch.cat(parts) for parts in zip(*source.training_batches(5, torch.Generator().manual_seed(seed)), strict=True)
        ]

    for given in (None, torch.Generator().manual_seed(1)):
        for x, y in source.batches(5, generator=given):
            assert_close(x, inputs[y])
    x, y = one_pass(1)
    assert_close(y.sort().values, targets)
    changed = (x != inputs[y]).flatten(1).any(1)
    assert changed.float().mean() > 0.5
    # Every image is varied on its own: where it lands is not the same for all.
    assert len({tuple((image == 0).flatten().tolist()) for image in x}) > 3
    assert_close(one_pass(1)[0], x, rtol=0, atol=0)
    assert not torch.equal(one_pass(2)[0], x)


def test_a_plan_says_what_each_batch_is():
    source = as_source(images(), CPU, FlipCrop(2))
    batches = list(source.training_batches(5, torch.Generator().manual_seed(3)))
    plans = source.plans(5, torch.Generator().manual_seed(3))
    assert_close(torch.cat(plans), source.plan(torch.Generator().manual_seed(3)))
    for (x, y), plan in zip(batches, plans, strict=True):
        assert_close(y, plan[:, 0])
        assert_close(x, FlipCrop(2)(source.inputs[y], plan[:, 1:]))
        assert_close(source.planned(plan)[0], x)
        assert_close(source.as_they_are(plan)[0], source.inputs[y])


def test_without_augmentation_training_reads_the_shuffled_data():
    inputs, targets = images(13)
    source = as_source((inputs, targets), CPU)
    training = list(source.training_batches(4, torch.Generator().manual_seed(5)))
    shuffled = list(source.batches(4, generator=torch.Generator().manual_seed(5)))
    assert [len(x) for x, _ in training] == [4, 4, 5]
    for (x, y), (a, b) in zip(training, shuffled, strict=True):
        assert_close(x, a, rtol=0, atol=0)
        assert_close(y, b)
    assert_close(torch.cat([y for _, y in training]).sort().values, targets)


class Own(TensorDataset):
    """May transform what it gives, so it is read as a Dataset."""


class Numbers(Dataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return torch.zeros(1, 2, 2), torch.tensor(index)


@pytest.mark.parametrize(
    "data",
    [Numbers(), DataLoader(Numbers(), 2), as_source(images(), CPU), Own(*images()), TensorDataset(*images(), images()[1])],
    ids=["Dataset", "DataLoader", "DataSource", "subclass of TensorDataset", "three tensors"],
)
def test_only_tensors_are_augmented_and_nothing_else_in_silence(data):
    with pytest.raises(ValueError, match=rf"Only data that are tensors can be augmented here, got {type(data).__name__}\."):
        as_source(data, CPU, FlipCrop())
    assert as_source(data, CPU).size > 0


def test_tensors_are_augmented_however_they_are_given():
    for data in (images(), TensorDataset(*images())):
        assert as_source(data, CPU, FlipCrop(1)).augment == FlipCrop(1)


def test_a_negative_shift_is_refused():
    with pytest.raises(ValueError, match=r"padding must be 0 or more pixels, got -1\."):
        FlipCrop(-1)
