"""Data of a user: folders of images, tables and arrays become tasks, or are refused with what to do."""

import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from symbayes.data.read import is_data, read_task

COLOURS = {"dark": 10, "light": 240}


def paint(folder, count=5, size=(6, 6)):
    for name, shade in COLOURS.items():
        (folder / name).mkdir(parents=True)
        for index in range(count):
            pixels = np.random.default_rng(index).integers(-9, 9, size[::-1]) + shade
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / name / f"{index}.png")


def test_folders_of_images_are_classes_and_some_of_each_are_held_out(tmp_path):
    paint(tmp_path)
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "dark" / "notes.txt").write_text("no image")
    task = read_task(tmp_path)
    assert task.names == ("dark", "light")
    assert task.in_shape == (1, 6, 6)
    assert task.target_std is None
    for (inputs, targets), count in ((task.train, 4), (task.test, 1)):
        assert torch.bincount(targets).tolist() == [count, count]
        assert (inputs.mean((1, 2, 3)) > 0).long().equal(targets)
    assert float(task.train[0].mean()) == pytest.approx(0, abs=1e-5)
    assert float(task.train[0].std(correction=0)) == pytest.approx(1, abs=1e-5)
    mean, std = 0.49, 0.45
    assert task.background[0] == pytest.approx(-mean / std, rel=0.05)
    again = read_task(tmp_path, seed=0)
    assert torch.equal(again.test[0], task.test[0])


def test_images_of_several_sizes_and_colours_become_squares(tmp_path):
    paint(tmp_path, size=(50, 20))
    Image.new("RGB", (9, 200), (250, 0, 0)).save(tmp_path / "light" / "tall.jpg")
    assert read_task(tmp_path).in_shape == (3, 32, 32)
    assert read_task(tmp_path, side=8).in_shape == (3, 8, 8)


def test_a_folder_of_tests_is_held_out(tmp_path):
    paint(tmp_path / "train", 3)
    paint(tmp_path / "test", 2)
    task = read_task(tmp_path)
    assert (len(task.train[0]), len(task.test[0])) == (6, 4)
    assert task.names == ("dark", "light")


def test_a_folder_of_validation_is_watched_and_tested_on_where_there_is_no_other(tmp_path):
    paint(tmp_path / "train", 3)
    paint(tmp_path / "val", 2)
    task = read_task(tmp_path)
    assert (len(task.train[0]), len(task.test[0]), task.validation) == (6, 4, None)
    paint(tmp_path / "Test", 1)
    task = read_task(tmp_path)
    assert (len(task.train[0]), len(task.test[0]), len(task.validation[0])) == (6, 2, 4)
    assert (task.validation[0].mean((1, 2, 3)) > 0).long().equal(task.validation[1])
    moved = task.transformed(rotation=90)
    assert moved.validation[0].shape == task.validation[0].shape
    assert not torch.equal(moved.validation[0], task.validation[0])
    paint(tmp_path / "more", 1)
    with pytest.raises(ValueError, match=r"Beside train, Test, val there must be no other folder in .*; there is 'more'"):
        read_task(tmp_path)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("train", "dev"), "Beside train there must be no other folder in .*; there is 'dev'"),
        (("train", "Train"), "Beside .rain there must be no other folder in .*; there is '.rain'"),
        (("val", "test"), "Beside test there must be a folder 'train' of classes in .*; there is none"),
    ],
)
def test_parts_of_other_names_are_not_taken_for_classes(tmp_path, names, message):
    for name in names:
        paint(tmp_path / name, 2)
    with pytest.raises(ValueError, match=message):
        read_task(tmp_path)


def test_arrays_that_would_be_left_out_are_refused(tmp_path):
    x, y = np.zeros((6, 3)), np.arange(6) % 2
    np.savez(tmp_path / "a.npz", x=x, y=y, x_val=x, y_val=y)
    with pytest.raises(ValueError, match="x_val would be left out"):
        read_task(tmp_path / "a.npz")


def test_a_class_may_be_called_train(tmp_path):
    paint(tmp_path)
    (tmp_path / "dark").rename(tmp_path / "train")
    assert read_task(tmp_path).names == ("light", "train")


def write_table(path, targets, words=("a", "b")):
    lines = [f"{index},{words[index % len(words)]},{target}" for index, target in enumerate(targets)]
    path.write_text("\n".join(["size,kind,goal", *lines]))
    return path


def test_tables_have_numbers_indicators_and_classes(tmp_path):
    task = read_task(write_table(tmp_path / "t.csv", ["yes", "no"] * 5), target="goal")
    assert task.names == ("no", "yes")
    assert task.in_shape == (3,)
    assert len(task.train[0]) == 8


def test_values_are_standardised_and_their_unit_is_kept(tmp_path):
    path = write_table(tmp_path / "t.csv", [100.0 + 7.5 * index for index in range(40)])
    task = read_task(path, target="goal")
    assert task.names == ()
    assert task.classes == 1
    assert float(task.train[1].std(correction=0)) == pytest.approx(1, abs=1e-5)
    assert task.target_std == pytest.approx(7.5 * 40 / 12**0.5, rel=0.15)
    whole = write_table(tmp_path / "u.csv", [index % 3 for index in range(12)])
    assert read_task(whole, target="goal").names == ("0", "1", "2")
    assert read_task(whole, target="goal", kind="values").target_std is not None


def test_arrays_are_series_or_images_and_may_name_their_tests(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(20, 12)), np.arange(20) % 2
    np.savez(tmp_path / "a.npz", x=x, y=y)
    assert read_task(tmp_path / "a.npz").in_shape == (1, 12)
    np.savez(tmp_path / "b.npz", X=x.reshape(20, 3, 2, 2), y=x[:, :2], x_test=x[:4].reshape(4, 3, 2, 2), y_test=x[:4, :2])
    task = read_task(tmp_path / "b.npz")
    assert (task.in_shape, task.classes, len(task.test[0])) == ((3, 2, 2), 2, 4)


def test_what_is_meant_as_data_is_known(tmp_path):
    assert is_data("missing.csv")
    assert is_data(str(tmp_path))
    assert not is_data("placed-digits")


@pytest.mark.parametrize(
    ("name", "content", "asked", "message"),
    [
        ("t.csv", "a,b\n1,2\n3,4\n", {}, "must be named: --target with one of a, b"),
        ("t.csv", "a,b\n1,2\n3,4\n", {"target": "c"}, "has no column 'c'"),
        ("t.csv", "a,b\n1,2\n3\n", {"target": "b"}, "must have 2 cells, as its headings; line 3 has other"),
        ("t.csv", "a,b\n1,2\n,4\n", {"target": "b"}, "column 'a' has some that are empty"),
        ("t.csv", "a,b\n1,2\ninf,4\n", {"target": "b"}, "Numbers must be finite; column 'a'"),
        ("t.csv", "b\n1\n2\n", {"target": "b"}, "must have a column beside 'b'"),
        ("t.csv", "a\n", {"target": "a"}, "a line of headings and two lines"),
        ("t.csv", "a,b\n1,x\n2,x\n", {"target": "b"}, "Classes must be two or more"),
        ("t.csv", "a,b\n1,x\n2,y\n3,y\n", {"target": "b"}, "'x' has one"),
        ("t.csv", "a,a,b\n1,2,x\n2,3,y\n3,4,y\n", {"target": "b"}, "several of 'a'"),
        ("t.csv", "a;b\n1;x\n2;y\n3;y\n", {"target": "b"}, "must have commas between them"),
        ("t.csv", "a,b\n\n1,x\n2\n3,y\n", {"target": "b"}, "line 4 has other"),
        ("t.csv", "a,b\n1,x\n2,y\n", {"target": "b", "kind": "values"}, "text are classes"),
        ("t.csv", "a,b\n" + "".join(f"w{i},{i}\n" for i in range(30)), {"target": "b"}, "text of 30 different words"),
        ("t.csv", "a,b\n", {"target": "b", "kind": "luck"}, "must be one of classes, values"),
        ("t.csv", "a,b\n", {"held_out": 1.0}, "must lie between 0 and 1"),
        ("t.csv", "a,b\n", {"side": 8}, "Images alone are resized"),
        ("t.npz", "", {"target": "b"}, "one of a table"),
        ("t.txt", "", {}, r"a folder of images, a table \(.csv\) or arrays"),
        ("t.npz", "no zip", {}, "must hold arrays, as numpy.savez"),
    ],
)
def test_what_is_wrong_is_said(name, content, asked, message, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        read_task(tmp_path / name, **asked)


def test_folders_without_classes_and_broken_images_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no file or folder"):
        read_task(tmp_path / "nowhere")
    (tmp_path / "only").mkdir()
    with pytest.raises(ValueError, match="has none"):
        read_task(tmp_path)
    paint(tmp_path / "images")
    with pytest.raises(ValueError, match="--task must be classes"):
        read_task(tmp_path / "images", kind="values")
    (tmp_path / "images" / "dark" / "broken.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"broken.png must be an image"):
        read_task(tmp_path / "images")


def test_arrays_that_do_not_go_together_are_refused(tmp_path):
    x, y = np.zeros((3, 2)), np.zeros(3)
    for arrays in ({"x": x}, {"x": x, "y": y[:2]}, {"x": np.full_like(x, np.nan), "y": y}):
        np.savez(tmp_path / "a.npz", **arrays)
        with pytest.raises(ValueError, match="must"):
            read_task(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", x=np.array([{}] * 3), y=np.zeros(3))
    with pytest.raises(ValueError, match="must hold arrays"):
        read_task(tmp_path / "a.npz")
    beside = {"x": x + np.arange(2), "y": np.arange(3) % 2}
    damaged = [
        ({**beside, "x_test": x}, "both x_test and y_test, or neither"),
        ({**beside, "X": x}, "differ in more than capitals"),
        ({**beside, "x_test": x, "y_test": np.array([0, 1, 2])}, "'2' is not"),
        ({**beside, "x_test": x, "y_test": np.zeros((3, 1))}, "y as many"),
        ({"x": x[:1], "y": np.array([0.5])}, "got 1 and 0"),
        ({"x": x[:, :0], "y": y}, "x must be finite numbers"),
        ({"x": 1e300 * (x + np.arange(2)), "y": np.arange(3.0) / 2}, "too large"),
        ({"x": x, "y": np.array([0, 1, np.inf])}, "Targets must be finite"),
        ({"x": x, "y": np.array([0, 1, 1j])}, "numbers or text"),
    ]
    for arrays, message in damaged:
        np.savez(tmp_path / "a.npz", **arrays)
        with pytest.raises(ValueError, match=message):
            read_task(tmp_path / "a.npz", kind="classes" if "Targets" in message else None)


@pytest.mark.parametrize("shape", ["(10000000000000000, 2)", "[" * 3000])
def test_arrays_whose_header_is_false_are_refused(tmp_path, shape):
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(ValueError, match="must hold arrays"):
        read_task(tmp_path / "a.npz")


@pytest.mark.parametrize("kind", [np.uint16, np.int32, np.float32])
def test_images_of_more_than_8_bits_keep_their_numbers(tmp_path, kind):
    pixels = np.random.default_rng(0).integers(0, 60000, (8, 6, 6)).astype(kind)
    for index, image in enumerate(pixels):
        (tmp_path / "ab"[index % 2]).mkdir(exist_ok=True)
        Image.fromarray(image).save(tmp_path / "ab"[index % 2] / f"{index}.tif")
    task = read_task(tmp_path)
    learned = sorted(task.train[0].flatten().tolist())
    inside = [image for image in pixels.astype(float) if any(_is_image(image, one) for one in task.train[0])]
    expected = np.sort(np.stack(inside).ravel())
    assert len(inside) == 6
    assert learned == pytest.approx((expected - expected.mean()) / expected.std(), abs=1e-4)
    Image.new("L", (6, 6)).save(tmp_path / "a" / "shallow.png")
    with pytest.raises(ValueError, match="of one depth"):
        read_task(tmp_path)


def _is_image(pixels, image):
    """Whether they are the same but for an affine map of numbers."""
    return np.corrcoef(pixels.ravel(), image.flatten())[0, 1] > 0.999999


def test_images_are_upright_and_hidden_ones_are_left_aside(tmp_path):
    pixels = np.arange(24, dtype=np.uint8).reshape(4, 6)
    for name in ("a", "b", "a/.cache", ".checkpoints"):
        (tmp_path / name).mkdir()
        for index in range(3):
            turned = Image.fromarray(pixels).rotate(90, expand=True) if index else Image.fromarray(pixels)
            exif = turned.getexif()
            exif[0x0112] = 6 if index else 1
            turned.save(tmp_path / name / f"{index}.png", exif=exif)
    (tmp_path / "a" / "._0.png").write_bytes(b"beside 0.png")
    task = read_task(tmp_path)
    assert task.names == ("a", "b")
    assert task.in_shape == (1, 4, 6)
    images = torch.cat([task.train[0], task.test[0]])
    assert len(images) == 6
    assert torch.equal(images, images[:1].expand_as(images))


def test_folders_of_training_may_stand_alone_and_tests_must_be_of_known_classes(tmp_path):
    paint(tmp_path / "Train", 5)
    assert read_task(tmp_path).names == ("dark", "light")
    (tmp_path / "Test" / "other").mkdir(parents=True)
    with pytest.raises(ValueError, match="got 10 and 0"):
        read_task(tmp_path)
    Image.new("L", (6, 6)).save(tmp_path / "Test" / "other" / "0.png")
    with pytest.raises(ValueError, match="'other' is not"):
        read_task(tmp_path)


def test_features_far_from_zero_and_large_classes_are_told_apart(tmp_path):
    lines = [f"{1_700_000_000 + index}, {10_000_000 + index % 2}" for index in range(20)]
    (tmp_path / "t.csv").write_text("\n".join(["seconds, class", *lines]))
    task = read_task(tmp_path / "t.csv", target="class")
    assert task.names == ("10000000", "10000001")
    assert len(task.train[0].unique()) == len(task.train[0])
    assert float(task.train[0].std(correction=0)) == pytest.approx(1, abs=1e-5)
