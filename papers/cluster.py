"""Rows as jobs of a cluster, by submitit (the extra `cluster`): slurm, or processes of this machine.

Jobs see the folder of runs, where their checkpoints and figures are, and the working directory as it is when they begin.
"""

import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from symbayes.cli.workers import DiedError, Ended

K = TypeVar("K", bound=Hashable)
#: Seconds from one look at jobs to the next.
_PAUSE = 2.0


def parse_cluster(words: str) -> tuple[str, dict[str, int | str]]:
    """The cluster and its settings, such as slurm:gpus_per_node=1,timeout_min=600.

    Raises:
        ValueError: If submitit is not installed, or does not know such a cluster or setting.
    """
    name, _, rest = words.partition(":")
    given = dict[str, int | str]()
    for part in rest.split(",") if rest else ():
        key, equals, value = part.partition("=")
        if not (key and equals and value):
            raise ValueError(f"Settings of a cluster are name=value, with commas; got {part!r}.")
        given[key.strip()] = int(value) if value.strip().isdigit() else value.strip()
    _executor(name, given, Path("."))
    return name, given


def run_on_cluster(
    work: Callable[..., Any], tasks: Mapping[K, tuple[Any, ...]], cluster: str, folder: Path, pause: float = _PAUSE
) -> Iterator[Ended[K]]:
    """Call a function for every task in a job of its own; what it gives, as it comes. Jobs are cancelled if nobody waits.

    Args:
        work: Called with the arguments of a task.
        tasks: Arguments by task.
        cluster: As `parse_cluster` takes it.
        folder: For what jobs say.
        pause: Seconds from one look at them to the next.
    """
    executor = _executor(*parse_cluster(cluster), folder)
    waiting = {task: executor.submit(work, *arguments) for task, arguments in tasks.items()}
    try:
        while waiting:
            for task, job in list(waiting.items()):
                if job.done():
                    del waiting[task]
                    yield _ended(task, job)
            time.sleep(pause if waiting else 0)
    finally:
        for job in waiting.values():
            job.cancel()


def _ended(task: K, job: Any) -> Ended[K]:
    """What a job gave, or a word that it died."""
    from submitit.core.utils import FailedJobError, UncompletedJobError

    try:
        return Ended(task, job.result())
    except FailedJobError as error:
        return Ended(task, error=error)
    except UncompletedJobError:
        return Ended(task, error=DiedError(f"its job {job.job_id} ended without a result ({job.paths.stderr})"))


def _executor(name: str, given: Mapping[str, int | str], folder: Path) -> Any:
    try:
        import submitit
    except ImportError as error:
        raise ValueError("Rows are sent to a cluster by submitit: pip install submitit.") from error
    try:
        executor = submitit.AutoExecutor(folder=folder / "%j", cluster=name)
        executor.update_parameters(**given)
    except Exception as error:  # submitit raises what it likes
        raise ValueError(f"submitit must know the cluster {name!r} and all its settings; it says: {error}") from error
    return executor
