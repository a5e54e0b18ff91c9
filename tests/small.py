"""Tasks made small, for tests of what is done with them."""

from dataclasses import replace

from symbayes.data.load import load
from symbayes.data.task import Task


def load_few(name: str) -> Task:
    """An embedded task with its first hundred data."""
    task = load(name)
    few = [(inputs[:100], targets[:100]) for inputs, targets in (task.train, task.test)]
    return replace(task, train=few[0], test=few[1])
