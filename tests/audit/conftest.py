"""Patches of the trainer need compiled programs of their own, before and after."""

import pytest

from lastiterate.engine import loop, trainer


def forget():
    """Compile the trainer's programs anew; all others are kept."""
    for program in (loop.advance, loop.trace, trainer._many):
        program.clear_cache()


@pytest.fixture
def patched(monkeypatch):
    """Apply one of the patches in broken.py."""

    def apply(module, name, value):
        forget()
        monkeypatch.setattr(module, name, value)

    yield apply
    monkeypatch.undo()
    forget()
