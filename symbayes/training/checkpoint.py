"""Training that is kept on the way: from its checkpoint it goes on to the same numbers; and Ctrl-C, which asks it to end."""

import hashlib
import json
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Generic

import torch
from torch import Generator, Tensor

from symbayes.data.folders import holds, locked, read_folder, write_folder
from symbayes.data.source import TensorSource
from symbayes.data.storage import DAMAGE, error_words, from_json, parse_json
from symbayes.training.live import LiveFile
from symbayes.training.record import Record, read_history, write_history
from symbayes.training.trainer import NUMBERS, TENSORS, Part, Problem, S, Trainer, damaged_state

#: What a checkpoint has beside a state: what it is of, and records, under other names than those of a result, which may lie in
#: the same folder. And the lock of who trains there.
PROBLEM, RECORDS, RUNNING = "checkpoint.json", "checkpoint.jsonl", ".running"
FORMAT = 1


@dataclass(frozen=True)
class Checkpoint:
    """Where training is kept while it goes on.

    Args:
        folder: For the last checkpoint, which the next one replaces as a whole; for one training at a time.
        every: Seconds from one to the next, each after an epoch; 0 for all epochs.
        resume: Whether to go on from the checkpoint that is there; from the start, if there is none.
    """

    folder: Path
    every: float = 60.0
    resume: bool = False

    def __post_init__(self) -> None:
        if not self.every >= 0:
            raise ValueError(f"Seconds between checkpoints must be 0 or more, got {self.every}.")

    @contextmanager
    def opened(self, trainer: Trainer[S], generator: Generator, beside: Mapping[str, Part]) -> Iterator["Kept[S]"]:
        """It for one training, with the folder locked.

        Args:
            trainer: What trains.
            generator: From which it draws.
            beside: What else is to be kept, of plain values.

        Raises:
            BusyError: If another process trains there.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(
            self.folder / RUNNING,
            f"Another process is training in {self.folder}. Wait until it ends, or name another folder.",
        ):
            yield Kept(self, trainer, generator, beside)


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder holds a checkpoint, whole or not."""
    return holds(folder, PROBLEM)


def parts_of(folder: Path) -> list[Path]:
    """The folder of a training, and those below it, of what came first or beside it."""
    return [folder, *sorted(path for path in folder.glob("*/") if path.is_dir())]


@dataclass(frozen=True)
class _About:
    format: int
    problem: dict[str, str]
    beside: dict[str, dict[str, Any]]
    #: Of torch, which sums are rounded by.
    threads: int


class Kept(Generic[S]):
    """The checkpoint of a training that is under way; as `Checkpoint.opened` makes it."""

    def __init__(self, at: Checkpoint, trainer: Trainer[S], generator: Generator, beside: Mapping[str, Part]) -> None:
        self.at, self.trainer, self.generator, self.beside = at, trainer, generator, beside
        self._problem = describe(trainer.problem, generator.initial_seed())
        self._saved, self.live = time.monotonic(), LiveFile(at.folder, trainer.problem)

    def begin(self) -> tuple[S, list[Record]]:
        """The state to go on from, and the records of epochs before.

        Raises:
            ValueError: If there is a checkpoint that is damaged or of another training, or one that was not asked for.
        """
        folder = self.at.folder
        if not is_checkpoint(folder):
            self.live.forget()
            return self.trainer.init(self.generator), []
        if not self.at.resume:
            raise ValueError(
                f"{folder} holds the checkpoint of a training, which a new one would replace. Go on from it by resume=True "
                "(--resume), or name another folder, or remove this one."
            )
        try:
            contents = read_folder(folder, (TENSORS, NUMBERS, RECORDS, PROBLEM))
            about: _About = from_json(parse_json(contents.files[PROBLEM], PROBLEM, finite=False), _About, PROBLEM)
            if about.format != FORMAT:
                raise ValueError(f"it has format {about.format}; this version reads format {FORMAT}")
            history = list(read_history(contents.files[RECORDS], RECORDS))
        except (OSError, *DAMAGE) as error:
            raise damaged_state(folder, error) from error
        for name in {**about.problem, **self._problem}:
            before, now = (found.get(name, "none") for found in (about.problem, self._problem))
            if before != now:
                raise ValueError(
                    f"The training in {folder} must go on with the {name} it began with, {before}; got {now}. Give the same, "
                    "or name another folder for a new training."
                )
        if about.threads != torch.get_num_threads():
            warnings.warn(
                f"The training in {folder} began with {about.threads} threads of torch and goes on with "
                f"{torch.get_num_threads()}, so that sums are rounded otherwise. For the same numbers use as many: "
                f"torch.set_num_threads({about.threads}).",
                stacklevel=2,
            )
        state = self.trainer.parse(contents, folder, self.generator)  # others may draw from it afterwards
        if len(history) != state.epoch or about.beside.keys() != self.beside.keys():
            raise damaged_state(folder, ValueError("its records are not those of its state"))
        for name, part in self.beside.items():
            part.load_state_dict(about.beside[name])
        self.live.offer(history, now=True)
        return state, history

    def offer(self, state: S, history: list[Record], *, now: bool = False) -> None:
        """Save the state if it is time, or asked for; where it cannot be saved that is said, and the last one stays."""
        if not now and time.monotonic() - self._saved < self.at.every:
            return
        about = {
            "format": FORMAT,
            "problem": self._problem,
            "beside": {name: part.state_dict() for name, part in self.beside.items()},
            "threads": torch.get_num_threads(),
        }
        files = {RECORDS: write_history(history), PROBLEM: json.dumps(about, indent=1)}
        try:
            write_folder(self.at.folder, self.trainer.files(state) | files)
        except OSError as error:  # no reason to lose what is being trained
            warnings.warn(
                f"The checkpoint in {self.at.folder} could not be replaced after epoch {state.epoch} ({error_words(error)}). "
                "Training goes on; make room, so that the next one can be saved.",
                stacklevel=2,
            )
        self._saved = time.monotonic()


def describe(problem: Problem, seed: int) -> dict[str, str]:
    """What makes a training the same training, beside the settings of its trainer; numbers by their digests.

    Data that lie in memory are compared number by number; of a Dataset or DataLoader it is known how many there are.
    """
    model, data, weight = problem.model, problem.data, next(problem.model.parameters())
    likelihood, prior = problem.likelihood, problem.prior
    # What is learned is taken from the checkpoint, what is fixed must be the same.
    learns = any(parameter.requires_grad for parameter in likelihood.parameters())
    noise = "" if learns else "".join(f" {value:g}" for value in likelihood.noise().tolist())
    kinds = [f"{name} {type(module).__name__}" for name, module in model.named_modules()]
    tensors = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}  # not extra state
    shapes = [f"{name} {tuple(value.shape)} {value.dtype}" for name, value in tensors.items()]
    learned = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    found = {
        "model": f"{type(model).__name__} {_digest(repr((kinds, shapes, learned)).encode())}",
        "data": f"{data.size} data",
        "likelihood": f"{type(likelihood).__name__}{dict(likelihood.settings())}{noise and f' of noise{noise}'}",
        "prior": f"{type(prior).__name__} of precision {prior.precision:g}, learning {prior.learn or 'all'}",
        "precision": str(problem.precision),
        "seed": str(seed),
        "device": weight.device.type,
        "version of torch": torch.__version__,
        "version of symbayes": _version(),
    }
    if isinstance(data, TensorSource):
        found["data"] = f"{data.size} data {_digest(*_pieces(data.inputs), *_pieces(data.targets))}"
        found["augmentation"] = "none" if data.augment is None else _words(data.augment)
    return found


def _version() -> str:
    try:
        return version("symbayes")
    except PackageNotFoundError:  # run from a checkout
        return "unknown"


def _words(value: object) -> str:
    """What there is to say of an object in every process: not where it lies in memory."""
    own = type(value).__repr__ is not object.__repr__
    return repr(value) if own else type(value).__name__


def _pieces(values: Tensor) -> tuple[bytes, memoryview]:
    """The form of values, and the values, which are not copied."""
    plain = values.detach().cpu().contiguous()
    return f"{tuple(plain.shape)} {plain.dtype}".encode(), plain.flatten().view(torch.uint8).numpy().data


def _digest(*contents: bytes | memoryview) -> str:
    whole = hashlib.sha256()
    for content in contents:
        whole.update(content)
    return whole.hexdigest()[:16]


@contextmanager
def asked_to_stop(words: str) -> Iterator[Callable[[], bool]]:
    """Let Ctrl-C ask, once, and stop at once when it comes again; where a program has its own way with it, that is left.

    Args:
        words: What to say when it comes.
    """
    usual = signal.default_int_handler
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is not usual:
        yield lambda: False
        return
    asked = False

    def note(*_: Any) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, usual)
        with suppress(OSError):  # who asks may have closed it
            os.write(2, f"\n{words}\n".encode())  # what prints may be under way itself

    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, usual)
