"""How many models an audit trains: pilots of every pair, those that count, and how many at once."""

from __future__ import annotations

from lastiterate.audit import pace
from lastiterate.audit.neighbours import Neighbours, Train
from lastiterate.audit.portfolio import PAIRS
from lastiterate.audit.scoring import TrialPlan
from lastiterate.audit.whole import alone
from lastiterate.errors import InputError
from lastiterate.run.run import Run

PILOTS, COUNTED = 15.0, 30.0
"""Seconds that pilots and the models that count may take by default, about, at the speed that is measured."""
FEW, MANY, MOST = 200, 8000, 100_000
"""Models per data set of a pilot, at least and at most, and models that count, at most, where many pairs are tried."""
LEAST = 4
"""Pairs that are tried even where models are slow."""
WORK, SMALLEST, LARGEST = 2e8, 16, 4096
"""Multiplications in one batch of models, about, and the models in it, at least and at most: one size for everything,
because every size is compiled anew."""


def planned(run: Run, pairs: tuple[Neighbours, ...], train: Train, trials: int | None, batch_models: int | None,
            seed: int, most: int) -> tuple[TrialPlan, tuple[Neighbours, ...]]:
    """The plan, and the pairs that there is time for; ``most``: models at once, at most."""
    if batch_models is not None and batch_models < 1:
        raise InputError("batch_models", "must be a whole number >= 1", batch_models)
    if len(pairs) == 1:
        return _of_one(run, pairs[0], train, trials, batch_models, seed, most), pairs
    if trials is not None:
        pairs = pairs[:LEAST] if alone(run) or at_once(run, pairs[0]) < FEW else pairs
        pilot = min(max(trials // 4, min(FEW, max(trials // 2, 50))), MANY)
        size = min(most, pilot, at_once(run, pairs[0])) if batch_models is None else batch_models
        return TrialPlan(trials, pilot, min(size, trials), seed), pairs
    size = min(most, at_once(run, pairs[0])) if batch_models is None else batch_models
    rate = pace.rate(run, pairs[0], train, size)
    pairs = pairs[:max(LEAST, int(rate * PILOTS / (2 * FEW)))]
    pilot = int(min(max(rate * PILOTS / (2 * len(pairs)), FEW // 2), MANY))
    count = int(min(max(rate * COUNTED / (2 * PAIRS), pace.FEWEST), MOST))
    return TrialPlan(int(float(f"{count:.2g}")), pilot, size, seed), pairs


def at_once(run: Run, pair: Neighbours) -> int:
    """Models in a batch: long runs on many records few, short ones many."""
    records, width = pair.with_record.features.shape
    each = run.steps * min(records, run.batching.expected_batch(run.n)) * (width + 1) * (run.loss.outputs or 1)
    return int(min(max(WORK / each, SMALLEST), LARGEST))


def _of_one(run: Run, pair: Neighbours, train: Train, trials: int | None, batch_models: int | None, seed: int,
            most: int) -> TrialPlan:
    """One pair: a pilot of a tenth of the trials, at least 200 (or half of them) and at most 4,000."""
    size = most if batch_models is None else batch_models
    if trials is None:
        rate, fastest = pace.measured(run, pair, train, size, None)
        trials, size = pace.trials_for(rate), fastest if batch_models is None else size
    pilot = min(max(trials // 10, min(200, max(trials // 2, 50))), 4000)
    if batch_models is None:
        size = min(size, max(pilot, trials // 10))
    return TrialPlan(trials, pilot, min(size, trials), seed)
