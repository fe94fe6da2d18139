"""How fast models are trained, measured on the audit's own made-up data, and how many of them a minute holds."""

from __future__ import annotations

import time

from lastiterate.audit.neighbours import Neighbours, Train, execute
from lastiterate.engine import seeded_keys
from lastiterate.run.run import Run

MINUTE = 60.0
"""Seconds that an audit takes by default, about."""
FEWEST, MOST = 100, 50_000
"""Trials by default, at least and at most."""
FIRST, GROWTH, GAIN = 16, 4, 1.15
"""Models at once in the first measurement, the factor to the next, and how much faster that must be to go on: large
batches save calls, small ones stay in the processor's cache."""
LONG_ENOUGH, AT_MOST, SOON = 0.2, 2.0, 10.0
"""Seconds after which a measurement counts; that a batch may take, so that progress is shown so often; that are soon
over, so that another program is not worth its compilation."""


def measured(run: Run, neighbours: Neighbours, train: Train, most: int, models: int | None) -> tuple[float, int]:
    """Models per second, and how many at once are trained fastest; at most ``most``. Compilation is left out.

    ``models``: how many there will be, if that is known; where they are done soon, nothing faster is looked for. The
    keys are of no use to the audit: models that are counted take no part in what is decided here.
    """
    size = min(FIRST, most)
    best, kept = rate(run, neighbours, train, size), size
    while size < most and GROWTH * size < best * AT_MOST and (models is None or models > SOON * best):
        size = min(GROWTH * size, most)
        speed = rate(run, neighbours, train, size)
        if speed < GAIN * best:
            break
        best, kept = speed, size
    return best, kept


def rate(run: Run, neighbours: Neighbours, train: Train, size: int) -> float:
    """Models per second in batches of ``size``."""
    keys = seeded_keys(0, size)
    execute(run, neighbours.with_record, train, keys)  # compiled here
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < LONG_ENOUGH:
        execute(run, neighbours.with_record, train, keys)
        done += size
    return done / (time.perf_counter() - began)


def trials_for(speed: float) -> int:
    """Trials of each data set, with their pilots, that ``MINUTE`` holds; two digits are enough."""
    trials = min(max(MINUTE * speed / 2.2, FEWEST), MOST)
    return int(float(f"{trials:.2g}"))
