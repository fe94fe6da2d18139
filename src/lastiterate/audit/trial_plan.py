"""How many models an audit trains, in which batches and from which seed."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from lastiterate.audit.canaries import Neighbours, Train, execute
from lastiterate.audit.end_to_end import alone
from lastiterate.engine import keys_from_seed
from lastiterate.engine.linear_gradients import AT_ONCE
from lastiterate.engine.samplers import sampler_of
from lastiterate.errors import InputError
from lastiterate.run.run import Run

PAIRS = 2
"""Pairs that models are spent on."""
MEMORY = 2**29
"""Bytes that a batch of models may take, about, when its size is not given."""


@dataclass(frozen=True)
class TrialPlan:
    """How many models, from which seed, in which batches; every data set has keys of its own, and
    so has its pilot."""

    trials: int
    pilot: int
    batch_models: int
    seed: int
    rate: float = 0.0  #: models per second, 0 where it was not measured

    def keys(self, data_set: int, *, counted: bool) -> Any:
        """One key per model. Spare ones at the end fill up batches, so that programs are compiled
        for one size only."""
        words = np.random.SeedSequence([self.seed, data_set, int(counted)]).generate_state(1)
        count = (self.trials if counted else self.pilot) + self.batch_models
        return keys_from_seed(int(words[0]) & 0x7FFFFFFF, count)


def batch_size(run: Run, width: int) -> int:
    """Models whose training fits in ``MEMORY``, about: scores and residuals of a chunk, parameters,
    a secret order."""
    plan, k = sampler_of(run.batching, run.n, AT_ONCE).layout, run.loss.outputs or 1
    numbers = 6 * k * (plan.rows + width + 1)
    if run.release == "all":
        numbers += run.steps * k * (width + 1)
    if run.batching.drawn in ("once", "each pass"):
        numbers += 2 * plan.slots * (width + 3)
    return int(min(max(MEMORY // (8 * numbers), 16), 2**16))


# How fast models are trained, measured on synthetic data.

MINUTE = 60.0
"""Seconds that an audit takes by default, about."""
FEWEST, MOST_SECONDS = 100, 50_000
"""Trials by default, at least and at most."""
FIRST, GROWTH, GAIN = 16, 4, 1.15
"""Models at once in the first measurement, the factor to the next one, and the speed-up that it
must bring for the search to continue: large batches save calls, small ones stay in the cache."""
LONG_ENOUGH, AT_MOST, SOON = 0.2, 2.0, 10.0
"""Seconds after which a measurement counts; that a batch may take, so that progress is shown so
often; that are soon over, so that another program is not worth its compilation."""


def measure_rate(
    run: Run, neighbours: Neighbours, train: Train, most: int, models: int | None
) -> tuple[float, int]:
    """Models per second, and how many at once are trained fastest; at most ``most``. Compilation is
    left out.

    ``models``: how many there will be, if that is known; where they are done soon, nothing faster
    is looked for. The keys are of no use to the audit: models that are counted take no part in what
    is decided here.
    """
    size = min(FIRST, most)
    best, kept = rate(run, neighbours, train, size), size
    while (
        size < most and GROWTH * size < best * AT_MOST and (models is None or models > SOON * best)
    ):
        size = min(GROWTH * size, most)
        speed = rate(run, neighbours, train, size)
        if speed < GAIN * best:
            break
        best, kept = speed, size
    return best, kept


def rate(run: Run, neighbours: Neighbours, train: Train, size: int) -> float:
    """Models per second in batches of ``size``."""
    keys = keys_from_seed(0, size)
    execute(run, neighbours.with_record, train, keys)  # compiled here
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < LONG_ENOUGH:
        execute(run, neighbours.with_record, train, keys)
        done += size
    return done / (time.perf_counter() - began)


def trials_for(speed: float) -> int:
    """Trials of each data set, with their pilots, that ``MINUTE`` holds; two digits are enough."""
    trials = min(max(MINUTE * speed / 2.2, FEWEST), MOST_SECONDS)
    return int(float(f"{trials:.2g}"))


# Pilots of every pair, the models that count, and how many at once.

PILOTS, COUNTED = 15.0, 30.0
"""Seconds that pilots and the models that count may take by default, about, at the speed that is
measured."""
FEW, MANY, MOST_AT_ONCE = 200, 8000, 100_000
"""Models per data set of a pilot, at least and at most, and models that count, at most, where many
pairs are tried."""
LEAST = 4
"""Pairs that are tried even where models are slow."""
WORK, SMALLEST, LARGEST = 2e8, 16, 4096
"""Approximate multiplications in one batch of models, and its least and largest number of models.
There is one size for everything, because each size is a compilation of its own."""


def plan_trials(
    run: Run,
    pairs: tuple[Neighbours, ...],
    train: Train,
    trials: int | None,
    batch_models: int | None,
    seed: int,
    most: int,
) -> tuple[TrialPlan, tuple[Neighbours, ...]]:
    """The plan, and the pairs that there is time for; ``most``: models at once, at most."""
    if batch_models is not None and batch_models < 1:
        raise InputError("batch_models", "must be an integer >= 1", batch_models)
    if len(pairs) == 1:
        return _audit_pair(run, pairs[0], train, trials, batch_models, seed, most), pairs
    if trials is not None:
        pairs = pairs[:LEAST] if alone(run) or models_at_once(run, pairs[0]) < FEW else pairs
        pilot = min(max(trials // 4, min(FEW, max(trials // 2, 50))), MANY)
        size = (
            min(most, pilot, models_at_once(run, pairs[0]))
            if batch_models is None
            else batch_models
        )
        return TrialPlan(trials, pilot, min(size, trials), seed), pairs
    size = min(most, models_at_once(run, pairs[0])) if batch_models is None else batch_models
    per_minute = rate(run, pairs[0], train, size)
    pairs = pairs[: max(LEAST, int(per_minute * PILOTS / (2 * FEW)))]
    pilot = int(min(max(per_minute * PILOTS / (2 * len(pairs)), FEW // 2), MANY))
    count = int(min(max(per_minute * COUNTED / (2 * PAIRS), FEWEST), MOST_AT_ONCE))
    return TrialPlan(int(float(f"{count:.2g}")), pilot, size, seed), pairs


def models_at_once(run: Run, pair: Neighbours) -> int:
    """Models in a batch: long runs on many records few, short ones many."""
    records, *shape = pair.with_record.features.shape
    each = (
        run.steps
        * min(records, run.batching.expected_batch(run.n))
        * (math.prod(shape) + 1)
        * (run.loss.outputs or 1)
    )
    return int(min(max(WORK / each, SMALLEST), LARGEST))


def _audit_pair(
    run: Run,
    pair: Neighbours,
    train: Train,
    trials: int | None,
    batch_models: int | None,
    seed: int,
    most: int,
) -> TrialPlan:
    """One pair: a pilot of a tenth of the trials, at least 200 (or half of them) and at most 4,000."""
    size = most if batch_models is None else batch_models
    if trials is None:
        rate, fastest = measure_rate(run, pair, train, size, None)
        trials, size = trials_for(rate), fastest if batch_models is None else size
    pilot = min(max(trials // 10, min(200, max(trials // 2, 50))), 4000)
    if batch_models is None:
        size = min(size, max(pilot, trials // 10))
    return TrialPlan(trials, pilot, min(size, trials), seed)
