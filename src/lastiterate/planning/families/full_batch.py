"""Full batches: with momentum and falling steps, or plainly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from lastiterate.planning.families.asked import Asked, falling
from lastiterate.run.run import Run
from lastiterate.run.step_sizes import Steps
from lastiterate.run.updates import HeavyBall

STEPS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
FRICTIONS = tuple(2.0**-j for j in range(1, 7))  #: 1 - momentum
FORGOTTEN = 8  #: memories of the momentum that a run must last: shorter ones do worse than their prediction
PLAIN_STEPS = tuple(round(8 * 2 ** (j / 2)) for j in range(26))


def accelerated(asked: Asked) -> Iterator[Run]:
    """Momentum, steps that fall linearly."""
    for one, steps, friction in product(asked.clips, STEPS, FRICTIONS):
        if steps * friction >= FORGOTTEN:
            yield replace(one.empty, steps=steps, step_size=Steps(falling(one.first, steps)), clip=one.clip,
                          noise=one.composed(steps), update=HeavyBall(1 - friction))


def plain(asked: Asked) -> Iterator[Run]:
    """Constant steps."""
    for one, steps in product(asked.clips, PLAIN_STEPS):
        yield replace(one.empty, steps=steps, noise=one.composed(steps), clip=one.clip)
