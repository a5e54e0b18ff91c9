"""Processes that run tasks: one that dies costs its task, Ctrl-C ends all, and what is queued does not begin."""

import os
import signal
import threading
import time
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

from symbayes.cli.workers import DiedError, Ended, Told, run_apart


def work(tell, what, folder=None):
    tell("begun")
    if what == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "fails":
        raise KeyError("no such thing")
    if what == "tensors":
        return [torch.full((1000,), float(number)) for number in range(20)]
    if what == "waits":
        (folder / str(os.getpid())).touch()
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            (folder / "asked").touch()
            raise
    return os.getpid()


def test_a_process_that_dies_costs_its_task():
    news = list(run_apart(work, {name: (name,) for name in ("dies", "fails", "a")}, jobs=2))
    ended = {one.task: one for one in news if isinstance(one, Ended)}
    assert {one.task for one in news if isinstance(one, Told) and one.what == "begun"} == set(ended)
    assert isinstance(ended["dies"].error, DiedError)
    assert "exit code -9" in str(ended["dies"].error)
    assert isinstance(ended["fails"].error, KeyError)
    assert ended["a"].value not in (None, os.getpid())


def test_tensors_outlive_the_process_that_made_them():
    (ended,) = (one for one in run_apart(work, {"a": ("tensors",)}, jobs=1) if isinstance(one, Ended))
    assert [float(tensor.mean()) for tensor in ended.value] == list(range(20))


def test_ctrl_c_asks_those_at_work_to_end_and_begins_no_other(tmp_path):
    tasks = dict.fromkeys(("a", "queued"), ("waits", tmp_path))

    def interrupt():
        while not list(tmp_path.iterdir()):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        list(run_apart(work, tasks, jobs=1))
    thread.join()
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left[-1] == "asked"
    assert len(left) == 2  # the other never began
    with pytest.raises(ProcessLookupError):
        os.kill(int(left[0]), 0)


def lead(folder):
    """A process that has a worker."""
    list(run_apart(work, {"a": ("waits", folder)}, jobs=1))


def test_a_worker_does_not_outlive_the_first_process(tmp_path):
    first = get_context("spawn").Process(target=lead, args=(tmp_path,))
    first.start()
    while not list(tmp_path.iterdir()):
        time.sleep(0.05)
    worker = int(next(tmp_path.iterdir()).name)
    os.kill(worker, 0)
    first.kill()
    first.join()
    for _ in range(100):
        try:
            os.kill(worker, 0)
        except ProcessLookupError:
            return
        if Path(f"/proc/{worker}/stat").exists() and ") Z " in Path(f"/proc/{worker}/stat").read_text():
            return  # it is dead, and nobody has asked for its exit code
        time.sleep(0.05)
    pytest.fail("the worker lives on")
