"""Tasks in processes of their own, some at a time: one that dies costs its task, and Ctrl-C ends all of them."""

import os
import pickle
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, Generic, TypeVar

import torch

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Told(Generic[K]):
    """What a task says while it is at work."""

    task: K
    what: Any


@dataclass(frozen=True)
class Ended(Generic[K]):
    """A task that is done.

    Args:
        task: Which.
        value: What its function returned.
        error: What it raised instead, or a `DiedError`.
    """

    task: K
    value: Any = None
    error: BaseException | None = None


class DiedError(RuntimeError):
    """A process that ended without a word; the message says what to do."""


def run_apart(
    work: Callable[..., Any], tasks: Mapping[K, tuple[Any, ...]], jobs: int, threads: int = 1
) -> Iterator[Told[K] | Ended[K]]:
    """Call a function for every task in a process of its own; what it tells and gives, as it comes.

    At Ctrl-C no other task begins, those at work are asked to end, once, and it is raised here when they have; at another they
    are ended. They are also ended if the caller does not want to hear more.

    Args:
        work: Called with a function that tells, and the arguments of a task; it must be possible to pickle.
        tasks: Arguments by task.
        jobs: Tasks at a time.
        threads: Of torch, in each process.
    """
    waiting, running = deque(tasks.items()), dict[Connection, tuple[K, SpawnProcess]]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                task, arguments = waiting.popleft()
                running |= _start(task, work, arguments, threads)
            for ready in wait(list(running)):
                assert isinstance(ready, Connection)
                task, process = running[ready]
                try:
                    kind, *rest = pickle.loads(ready.recv_bytes())
                except (EOFError, OSError):
                    kind, rest = "ended", [None, _died(process)]
                if kind == "told":
                    yield Told(task, rest[0])
                    continue
                del running[ready]
                _end(ready, process)
                yield Ended(task, *rest)
    except KeyboardInterrupt:
        for _, process in running.values():
            with suppress(ProcessLookupError):
                os.kill(process.pid or 0, signal.SIGINT)
        for ready, (_, process) in running.items():
            _drain(ready)
            process.join()
        raise
    finally:
        for ready, (_, process) in running.items():
            process.terminate()
            _end(ready, process)


def _start(task: K, work: Callable[..., Any], arguments: tuple[Any, ...], threads: int) -> dict[Connection, Any]:
    ours, theirs = get_context("spawn").Pipe(duplex=False)
    process = get_context("spawn").Process(target=_alone, args=(theirs, work, arguments, threads), daemon=True)
    process.start()
    theirs.close()  # so that it ends with the process
    return {ours: (task, process)}


def _alone(pipe: Connection, work: Callable[..., Any], arguments: tuple[Any, ...], threads: int) -> None:
    """A task, in its process."""
    if sys.platform != "win32":
        os.setpgrp()  # Ctrl-C in a terminal comes to the first process alone, which passes it on, once
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    try:
        answer: tuple[Any, ...] = ("ended", work(lambda what: _send(pipe, ("told", what)), *arguments), None)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except Exception as error:
        answer = ("ended", None, error)
    _send(pipe, answer)


def _send(pipe: Connection, news: tuple[Any, ...]) -> None:
    """As bytes: a pipe of its own accord would send tensors as memory of this process, which may have ended when it is read."""
    pipe.send_bytes(pickle.dumps(news))


def _end_with_parent() -> None:
    """Do not outlive the first process, which nobody would hear from any more."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _died(process: SpawnProcess) -> DiedError:
    process.join()
    return DiedError(
        f"its process was killed (exit code {process.exitcode}), perhaps for want of memory. Use fewer processes, or try again"
    )


def _drain(ready: Connection) -> None:
    """Hear a process to its end, so that it does not wait to be heard."""
    with suppress(EOFError, OSError):
        while True:
            ready.recv_bytes()


def _end(ready: Connection, process: SpawnProcess) -> None:
    ready.close()
    process.join()
