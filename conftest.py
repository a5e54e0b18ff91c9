"""Fixtures of all tests: a seeded generator, hypothesis without deadlines; shapes are checked once in each test."""

import os
from collections.abc import Callable, Iterator
from functools import wraps
from types import CodeType, FunctionType
from typing import Any

import jaxtyping
import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
os.environ.pop("COLUMNS", None)  # a console that is made under it keeps that width
settings.register_profile("suite", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("suite")

#: The calls of each function whose shapes are checked in a test: checking takes longer than most of what is checked.
_CALLS = float(os.environ.get("CHECKED_CALLS", "1"))
_checks: dict[CodeType, int] = {}
_jaxtyped = jaxtyping.jaxtyped


def _check_first_calls(*, typechecker: Any) -> Callable[[Any], Any]:
    """As `jaxtyping.jaxtyped`, for the first calls of a function in each test."""
    check = _jaxtyped(typechecker=typechecker)

    def decorate(function: Any) -> Any:
        if not isinstance(function, FunctionType):
            return check(function)
        code, checked = function.__code__, None

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal checked
            done = _checks.get(code, 0)
            if done >= _CALLS:
                return function(*args, **kwargs)
            _checks[code] = done + 1
            checked = checked or check(function)
            return checked(*args, **kwargs)

        return call

    return decorate


jaxtyping.jaxtyped = _check_first_calls


@pytest.fixture
def generator() -> torch.Generator:
    """Seeded, for a test that draws."""
    return torch.Generator().manual_seed(0)


@pytest.fixture(autouse=True)
def _seeded_modules() -> Iterator[None]:
    """Torch modules draw initial weights from the global generator."""
    _checks.clear()
    with torch.random.fork_rng():
        torch.random.manual_seed(0)
        yield
