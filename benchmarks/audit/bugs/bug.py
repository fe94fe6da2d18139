"""One wrong line of a trainer: what is replaced in memory, and the run in which it matters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import lastiterate as li
from lastiterate.audit import checkpoints
from lastiterate.engine import external_gradients, external_noise, loop, trainer
from lastiterate.engine.samplers.bins import by_bin, sorted_by_bin
from lastiterate.engine.samplers.permuted import by_words
from lastiterate.engine.samplers.reshuffled import into_fresh_blocks

Patch = tuple[Any, str, Any]
"""Where, which name, and what stands there instead."""
PROGRAMS = (loop.advance, loop.advance_in_place, loop.advance_exactly, loop.trace, trainer._many, by_words,
            into_fresh_blocks, by_bin, sorted_by_bin, checkpoints._onward, checkpoints._started,
            external_gradients._asked, external_gradients.ended_outside, external_gradients._asked_many,
            external_gradients._ended_many, external_noise._units, external_noise._noise_of, external_noise.noise_many)
"""Compiled programs that hold the trainer's lines."""


@dataclass(frozen=True)
class Bug:
    """A mistake in one line; ``run``: without the noise of its budget, or an estimator; ``about``: what is wrong."""

    name: str
    run: Any
    patches: tuple[Patch, ...]
    budget: float = 1.0

    def subject(self, delta: float = 1e-5) -> Any:
        """The run with the least noise that its certificate needs, or the estimator."""
        return li.calibrate(self.run, epsilon=self.budget, delta=delta).run if type(self.run) is li.Run else self.run


def stepping(function: Any) -> tuple[Patch, ...]:
    """``function`` in the place of a stretch of steps, of one model and of many."""
    return tuple((trainer, name, function) for name in ("advance", "advance_in_place"))


def forget() -> None:
    """Compile the trainer's programs anew; all others are kept."""
    for program in PROGRAMS:
        program.clear_cache()


@contextmanager
def patched(*patches: Patch) -> Iterator[None]:
    """A trainer with some lines replaced; they stand again afterwards."""
    before = [(module, name, module[name] if isinstance(module, dict) else module.__dict__[name])
              for module, name, _ in patches]
    forget()
    try:
        for patch in patches:
            _put(*patch)
        yield
    finally:
        for patch in reversed(before):
            _put(*patch)
        forget()


def _put(module: Any, name: Any, value: Any) -> None:
    if isinstance(module, dict):
        module[name] = value
    else:
        setattr(module, name, value)
