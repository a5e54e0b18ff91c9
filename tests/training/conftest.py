"""What tests of training share."""

import pytest


@pytest.fixture
def types_without_draws(monkeypatch):
    """Checks of types in tests draw which entries they look at, and steps that draw on the CPU are not captured."""
    monkeypatch.setattr("random.getstate", lambda: 0)
