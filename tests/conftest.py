"""Shared fixtures: a seeded generator, and hypothesis without deadlines."""

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("suite", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("suite")


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture(autouse=True)
def _seeded_modules():
    """Torch modules draw initial weights from the global generator."""
    with torch.random.fork_rng():
        torch.random.manual_seed(0)
        yield
