"""One wrong line of a trainer: what is replaced in memory, and the run in which it matters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax

import lastiterate as li
from lastiterate.engine import external_gradients, loop, noise, random, trainer
from lastiterate.engine.samplers import by_bin, shuffle_by_words, shuffle_into_blocks, sort_by_bin

Patch = tuple[Any, str, Any]
"""Where, which name, and what stands there instead."""
NOISE = random.draw_normal_pairs, random.gaussian
"""Compiled programs that draw noise, and nothing else."""
DRAWING = random, random
"""The modules whose lines those hold."""
STEPS = (
    loop.advance,
    trainer.advance_many,
    trainer._begun,
    trainer._arrange_once,
    trainer._arrange_for_pass,
    shuffle_by_words,
    shuffle_into_blocks,
    by_bin,
    sort_by_bin,
    external_gradients._point,
    external_gradients._count_in_batch,
    external_gradients._query_many,
    external_gradients._finish_many,
    external_gradients.external_ended,
    external_gradients.external_noise,
    external_gradients.noise_of_models,
)
"""Compiled programs that hold the trainer's other lines."""


@dataclass(frozen=True)
class Bug:
    """A mistake in one line; ``run``: without the noise of its budget, or an estimator; ``about``:
    what is wrong."""

    name: str
    run: Any
    patches: tuple[Patch, ...]
    budget: float = 1.0

    def subject(self, delta: float = 1e-5) -> Any:
        """The run with the least noise that its certificate needs, or the estimator."""
        return (
            li.calibrate(self.run, epsilon=self.budget, delta=delta).run
            if type(self.run) is li.Run
            else self.run
        )


def stepping(function: Any) -> tuple[Patch, ...]:
    """``function`` in the place of a stretch of steps, of one model and of many."""
    return (trainer, "run_steps", function), (
        trainer,
        "advance",
        jax.jit(function, static_argnums=8),
    )


def forget(patches: tuple[Patch, ...]) -> None:
    """Compile the programs anew that hold what is replaced; all others are kept."""
    compiled = [
        module for module, _, _ in patches if module is not noise
    ]  # whose lines call programs
    drawing = [module for module in compiled if any(module is each for each in DRAWING)]
    for program in (NOISE if drawing else ()) + (STEPS if compiled else ()):
        program.clear_cache()


@contextmanager
def patched(*patches: Patch) -> Iterator[None]:
    """A trainer with some lines replaced; they stand again afterwards."""
    before = [
        (module, name, module[name] if isinstance(module, dict) else module.__dict__[name])
        for module, name, _ in patches
    ]
    forget(patches)
    try:
        for patch in patches:
            _put(*patch)
        yield
    finally:
        for patch in reversed(before):
            _put(*patch)
        forget(patches)


def _put(module: Any, name: Any, value: Any) -> None:
    if isinstance(module, dict):
        module[name] = value
    else:
        setattr(module, name, value)
