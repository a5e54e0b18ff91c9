"""Data of a user as a task: a folder of images by class, a table (.csv), arrays (.npz); some are held out to test on."""

import csv
import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from symbayes.data.scaling import Standard
from symbayes.data.task import Pair, Task

#: What targets may be, as `--task` says it.
KINDS = ("classes", "values")
_IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
#: Modes of grey images: of up to 8 bits, and of more, which Pillow would cut off at 255, with the number that is white.
_GREY, _DEEP = ("1", "L", "LA"), {"I;16": 65535, "I;16L": 65535, "I;16B": 65535, "I": 1, "F": 1}
#: In which an orientation is saved beside the pixels; from 5 on, width is height.
_ORIENTATION, _TURNED = 0x0112, (5, 6, 7, 8)
#: Folders in a folder of images that say which are to be learned from, which are held out, and which are watched.
_TRAIN, _TEST, _WATCHED = ("train", "training"), ("test", "testing"), ("val", "valid", "validation")
#: Whole numbers of at most so many values are classes; a column of text has at most so many.
_FEW = 20
#: Images of different sizes, or larger ones, are made squares of this side.
_SIDE, _LARGEST = 32, 64
#: Bytes of a table, and of all arrays of a file together.
_MOST = 2**31


@dataclass(frozen=True)
class Targets:
    """Targets as numbers: class numbers with their names, or values; None in `names` for values."""

    values: Tensor
    names: tuple[str, ...] | None


def read_task(
    path: str | Path,
    *,
    target: str | None = None,
    kind: str | None = None,
    side: int | None = None,
    held_out: float = 0.2,
    seed: int = 0,
) -> Task:
    """Data of a user, standardised by those that are learned from; others are held out, by the file or at random.

    Args:
        path: A folder with a folder of images for each class, or with `train` and `test` that have them, and `val`, which are
            watched, or tested on where there is no `test`; a table with a header (.csv); or arrays `x` and `y` (.npz), and
            `x_test` and `y_test` where they are known.
        target: Of a table, the column to be predicted.
        kind: "classes" or "values"; by what targets are when None.
        side: Pixels to which images are resized; as they are when None, if all are of one size of up to 64, else 32.
        held_out: Share of the data to test on, where it is not said which.
        seed: By which these are drawn.

    Raises:
        FileNotFoundError: If there is nothing.
        ValueError: If it is not what it should be.
    """
    path = Path(path)
    if kind is not None and kind not in KINDS:
        raise ValueError(f"The task must be one of {', '.join(KINDS)}, got {kind!r}.")
    if not 0 < held_out < 1:
        raise ValueError(f"The share that is held out must lie between 0 and 1, got {held_out}.")
    if not path.exists():
        raise FileNotFoundError(f"There is no file or folder {path}.")
    if target is not None and path.suffix.lower() != ".csv":
        raise ValueError(f"A column to be predicted is one of a table (.csv); {path} is none. Leave --target out.")
    if side is not None and not path.is_dir():
        raise ValueError(f"Images alone are resized, and {path} is no folder of them. Leave --size out.")
    if path.is_dir():
        inputs, targets, split = _read_images(path, side)
        if kind == "values":
            raise ValueError("Targets of a folder of images are classes, one for each folder in it; --task must be classes.")
    elif path.suffix.lower() == ".csv":
        inputs, targets, split = *_read_table(path, target, kind), None
    elif path.suffix.lower() == ".npz":
        inputs, targets, split = _read_arrays(path, kind)
    else:
        raise ValueError(f"Data must be a folder of images, a table (.csv) or arrays (.npz); got {path}.")
    parts = split if split is not None else _split(targets, held_out, seed)
    return _task(path.name or str(path), inputs, targets, *parts)


def is_data(what: str) -> bool:
    """Whether a word is meant as a file or folder of data, not as the name of a task."""
    return Path(what).exists() or Path(what).suffix.lower() in (".csv", ".npz") or "/" in what


def _task(name: str, inputs: Tensor, targets: Targets, train: Tensor, test: Tensor, watched: Tensor | None = None) -> Task:
    for part in (test,) if watched is None else (test, watched):
        _check_split(targets, train, part)
    scale = Standard.of(inputs[train], by_feature=inputs.ndim == 2)
    standard = scale(inputs).float()
    background = tuple(scale(torch.zeros_like(inputs[:1])).flatten(1)[0].reshape(inputs.shape[1], -1)[:, 0].tolist())
    values, std, classes = targets.values, None, len(targets.names or ())
    if targets.names is None:
        of = Standard.of(values[train], by_feature=True)
        values, std, classes = of(values).float(), float(of.std.square().mean().sqrt()), values.shape[1]
    if not (standard.isfinite().all() and scale.std.isfinite().all() and values.isfinite().all()):
        raise ValueError(f"Numbers must be of a size that can be standardised; some in {name} are too large. Use another unit.")

    def pair(part: Tensor) -> Pair:
        return standard[part], values[part]

    validation = None if watched is None else pair(watched)
    return Task(name, pair(train), pair(test), classes, background, targets.names or (), std, validation)


def _check_split(targets: Targets, train: Tensor, test: Tensor) -> None:
    """Refuse data none of which are to be learned from, or to be tested on, and tests of classes that cannot be learned."""
    if not len(train) or not len(test):
        raise ValueError(
            f"There must be data to learn from, and data to test on or to watch; got {len(train)} and {len(test)}."
        )
    if targets.names is not None:
        unknown = set(targets.values[test].tolist()) - set(targets.values[train].tolist())
        if unknown:
            raise ValueError(
                f"Every class to be tested or watched must be among those that are learned; {targets.names[min(unknown)]!r} is "
                "not. Add data of it to learn from, or leave it out."
            )


def _split(targets: Targets, share: float, seed: int) -> tuple[Tensor, ...]:
    """Numbers of data to learn from, and to test on: the same share of every class, at least one of each."""
    order = torch.randperm(len(targets.values), generator=torch.Generator().manual_seed(seed))
    groups = [order]
    if targets.names is not None:
        groups = [order[targets.values[order] == index] for index in range(len(targets.names))]
        rare = [name for name, group in zip(targets.names, groups, strict=True) if len(group) < 2]
        if rare:
            raise ValueError(
                f"Every class must have two data or more, one to learn from and one to test on; {rare[0]!r} has one. Add data, "
                "or leave the class out."
            )
    counts = [min(len(group) - 1, max(1, ceil(share * len(group)))) for group in groups]
    test = torch.cat([group[:count] for group, count in zip(groups, counts, strict=True)])
    train = torch.cat([group[count:] for group, count in zip(groups, counts, strict=True)])
    return train.sort().values, test.sort().values


def _read_images(folder: Path, side: int | None) -> tuple[Tensor, Targets, tuple[Tensor, ...] | None]:
    roots = _parts(folder)
    found = [(path, path.relative_to(root).parts[0], at) for at, root in enumerate(roots) for path in _images_in(root)]
    names = tuple(sorted({name for _, name, _ in found}))
    if len(names) < 2:
        raise ValueError(
            f"A folder of images must hold a folder for each class, two or more, with images ({', '.join(_IMAGES[:3])}, …) in "
            f"them; {folder} has {f'one, {names[0]!r}' if names else 'none'}."
        )
    images = _load_images([path for path, *_ in found], side)
    targets = Targets(torch.tensor([names.index(name) for _, name, _ in found]), names)
    at = torch.tensor([at for *_, at in found])
    return images, targets, None if len(roots) == 1 else tuple((at == part).nonzero()[:, 0] for part in range(len(roots)))


def _parts(folder: Path) -> list[Path]:
    """Folders of classes: one, or those to learn from, to test on, and to watch.

    Raises:
        ValueError: If there are others beside these, which would be left out.
    """
    inside = [entry for entry in sorted(folder.iterdir()) if entry.is_dir() and not _is_hidden(entry.name)]
    named = [next((one for one in inside if one.name.lower() in names), None) for names in (_TRAIN, _TEST, _WATCHED)]
    parts = [part for part in named if part is not None and not _is_class(part)]  # which may be called so, too
    if not parts:
        return [folder]
    if parts[0] != named[0]:
        raise ValueError(f"Beside {parts[0].name} there must be a folder 'train' of classes in {folder}; there is none.")
    if len(inside) > len(parts):
        other = next(entry.name for entry in inside if entry not in parts)
        raise ValueError(
            f"Beside {', '.join(part.name for part in parts)} there must be no other folder in {folder}; there is {other!r}, "
            "which would be left out. Move it elsewhere."
        )
    return parts


def _is_class(folder: Path) -> bool:
    return any(entry.suffix.lower() in _IMAGES for entry in folder.iterdir())


def _images_in(root: Path) -> list[Path]:
    """Those in folders below, in order, but for hidden ones."""
    found = (path for path in root.glob("*/**/*") if path.suffix.lower() in _IMAGES and path.is_file())
    return sorted(path for path in found if not any(map(_is_hidden, path.relative_to(root).parts)))


def _is_hidden(name: str) -> bool:
    return name.startswith(".")


def _load_images(paths: Sequence[Path], side: int | None) -> Tensor:
    """Images [n, c, h, w] from 0 to 1, grey where all are, upright; those that have no white have numbers as they are."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    sizes, modes = set(), set()
    try:
        for path in paths:
            with Image.open(path) as image:
                turned = image.getexif().get(_ORIENTATION) in _TURNED
                sizes.add(image.size[::-1] if turned else image.size)
                modes.add(image.mode)
        kept = side is None and len(sizes) == 1 and max(max(sizes)) <= _LARGEST
        size = max(sizes) if kept else (side or _SIDE,) * 2
        deep = modes & _DEEP.keys()
        if deep and len({_DEEP.get(mode) for mode in modes}) > 1:
            raise ValueError(f"Images must be of one depth; got {', '.join(sorted(modes))}. Save them all with 8 bits.")
        mode = "F" if deep else "L" if modes <= set(_GREY) else "RGB"
        white = _DEEP[max(deep)] if deep else 255
        arrays = []
        for path in paths:
            with Image.open(path) as image:
                upright = ImageOps.exif_transpose(image)
                plain = Image.fromarray(np.asarray(upright).astype(np.float32)) if deep else upright.convert(mode)
                arrays.append(np.asarray(plain if plain.size == size else plain.resize(size, Image.Resampling.BILINEAR)))
    except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path} must be an image that Pillow can read ({error}). Remove it, or save it again.") from error
    stacked = torch.from_numpy(np.stack(arrays)).float() / white
    return stacked[:, None] if stacked.ndim == 3 else stacked.permute(0, 3, 1, 2).contiguous()


def _read_table(path: Path, target: str | None, kind: str | None) -> tuple[Tensor, Targets]:
    if path.stat().st_size > _MOST:
        raise ValueError(f"{path} must have {_MOST:,} bytes at most; it has {path.stat().st_size:,}.")
    try:
        reader = csv.reader(io.StringIO(path.read_text("utf-8-sig"), newline=""))
        lines = [(row, reader.line_num) for row in reader if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} must be a table of text with commas, in UTF-8 ({error}).") from error
    if len(lines) < 3:
        raise ValueError(f"{path} must have a line of headings and two lines of data or more; it has {len(lines)} in all.")
    headings, rows = [cell.strip() for cell in lines[0][0]], [row for row, _ in lines[1:]]
    if len(headings) == 1 and (";" in headings[0] or "\t" in headings[0]):
        raise ValueError(
            f"Cells of {path} must have commas between them; its headings are {headings[0]!r}. Save it with commas."
        )
    twice = next((name for name in headings if headings.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"Every column of {path} must have a name of its own; there are several of {twice!r}.")
    odd = next((number for row, number in lines[1:] if len(row) != len(headings)), None)
    if odd is not None:
        raise ValueError(f"Every line of {path} must have {len(headings)} cells, as its headings; line {odd} has other.")
    if target is None or target not in headings:
        raise ValueError(
            f"{'The column to be predicted must be named' if target is None else f'{path} has no column {target!r}'}: --target "
            f"with one of {', '.join(headings)}."
        )
    columns = dict(zip(headings, ([cell.strip() for cell in column] for column in zip(*rows, strict=True)), strict=True))
    wanted = _targets(_column(columns.pop(target), target), kind)
    features = [part for name, cells in columns.items() for part in _features(name, _column(cells, name))]
    if not features:
        raise ValueError(f"{path} must have a column beside {target!r} to predict it from.")
    return torch.tensor(np.stack(features, 1)), wanted


def _column(cells: Sequence[str], name: str) -> np.ndarray:
    """Numbers where all cells are, else text.

    Raises:
        ValueError: If cells are empty, or not finite.
    """
    if any(cell == "" or cell.lower() in ("nan", "na", "null") for cell in cells):
        raise ValueError(f"Every cell must be known; column {name!r} has some that are empty. Fill them, or leave it out.")
    try:
        numbers = np.array([float(cell) for cell in cells])
    except ValueError:
        return np.array(cells)
    if not np.isfinite(numbers).all():
        raise ValueError(f"Numbers must be finite; column {name!r} has some that are not.")
    return numbers


def _features(name: str, column: np.ndarray) -> list[np.ndarray]:
    """A column of numbers as it is; text of a few words by an indicator of each."""
    if column.dtype.kind == "f":
        return [column]
    words = sorted(set(column.tolist()))
    if len(words) > _FEW:
        raise ValueError(
            f"Column {name!r} is text of {len(words)} different words, which are no inputs of a network; at most {_FEW} become "
            "indicators. Number them, or leave the column out."
        )
    return [(column == word).astype(float) for word in words]


def _targets(column: np.ndarray, kind: str | None) -> Targets:
    """Class numbers of text and of a few whole numbers, values of others; or as it is asked for."""
    if column.dtype.kind not in "biufUS":
        raise ValueError(f"Targets must be numbers or text, got {column.dtype}.")
    column = column.astype(str) if column.dtype.kind == "S" else column
    is_text = column.dtype.kind == "U"
    if not (is_text or np.isfinite(column).all()):
        raise ValueError("Targets must be finite; some are not.")
    whole = not is_text and bool((column == np.round(column)).all())
    if kind is None:
        kind = "classes" if is_text or (whole and column.ndim == 1 and len(np.unique(column)) <= _FEW) else "values"
    if kind == "values":
        if is_text:
            raise ValueError("Targets that are text are classes; --task must be classes.")
        return Targets(torch.tensor(column.astype(np.float64)).reshape(len(column), -1), None)
    if column.ndim > 1:
        raise ValueError(f"Classes must be one for each datum, got targets of shape {column.shape}. Say --task values.")
    names, numbers = np.unique(column, return_inverse=True)
    if len(names) < 2:
        raise ValueError(f"Classes must be two or more, got {names.tolist()}.")
    return Targets(torch.tensor(numbers), tuple(str(name).removesuffix(".0") for name in names.tolist()))


def _read_arrays(path: Path, kind: str | None) -> tuple[Tensor, Targets, tuple[Tensor, ...] | None]:
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > _MOST:
            raise ValueError(f"it has {size:,} bytes, more than {_MOST:,}")
        with np.load(path, allow_pickle=False) as content:
            found = {name.lower(): content[name] for name in content.files}
            if len(found) < len(content.files):
                raise ValueError(f"names must differ in more than capitals: {', '.join(content.files)}")
    except Exception as error:  # an archive can be damaged in many ways
        raise ValueError(f"{path} must hold arrays, as numpy.savez writes them ({error}).") from error
    parts = [(found[x], found[y]) for x, y in (("x", "y"), ("x_test", "y_test")) if x in found and y in found]
    if not parts or "x" not in found:
        raise ValueError(f"{path} must hold arrays x and y, data by data; it has {', '.join(found) or 'none'}.")
    if ("x_test" in found) != ("y_test" in found):
        raise ValueError(f"{path} must hold both x_test and y_test, or neither; it has {', '.join(found)}.")
    if strange := [name for name in found if name not in ("x", "y", "x_test", "y_test")]:
        raise ValueError(f"{path} must hold x, y, x_test and y_test alone; {strange[0]} would be left out. Save it elsewhere.")
    for x, y in parts:
        alike = [a.shape[1:] == first.shape[1:] for a, first in zip((x, y), parts[0], strict=True)]
        fits = x.dtype.kind in "biuf" and x.ndim > 1 and x.size and y.ndim > 0 and len(x) == len(y) and all(alike)
        if not (fits and np.isfinite(x).all()):
            raise ValueError(
                f"x must be finite numbers [n, …] and y as many, n; got {x.dtype} {x.shape} and {y.dtype} {y.shape} in {path}."
            )
    x = np.concatenate([x for x, _ in parts])
    inputs = torch.tensor(x.astype(np.float32 if np.can_cast(x.dtype, np.float32) else np.float64))
    targets = _targets(np.concatenate([y for _, y in parts]), kind)
    counts = [len(x) for x, _ in parts]
    split = (torch.arange(counts[0]), torch.arange(counts[0], sum(counts))) if len(parts) == 2 else None
    return inputs[:, None] if inputs.ndim == 2 else inputs, targets, split  # a series of one channel
