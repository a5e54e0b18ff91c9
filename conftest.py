"""Fixtures of all tests: a seeded generator, and hypothesis without deadlines."""

import os
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
os.environ.pop("COLUMNS", None)  # a console that is made under it keeps that width
settings.register_profile("suite", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("suite")


@pytest.fixture
def generator() -> torch.Generator:
    """Seeded, for a test that draws."""
    return torch.Generator().manual_seed(0)


@pytest.fixture(autouse=True)
def _seeded_modules() -> Iterator[None]:
    """Torch modules draw initial weights from the global generator."""
    with torch.random.fork_rng():
        torch.random.manual_seed(0)
        yield
