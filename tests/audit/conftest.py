"""Patches of the trainer need fresh compiled programs, before and after."""

import jax
import pytest


@pytest.fixture
def patched(monkeypatch):
    """Apply one of the patches in broken.py."""

    def apply(module, name, value):
        jax.clear_caches()
        monkeypatch.setattr(module, name, value)

    yield apply
    monkeypatch.undo()
    jax.clear_caches()
