"""The replay attack: where the noise key can be guessed, train on both data sets with it again and compare.

It is the trainer's own choice of a key that is attacked, so models are fitted one by one, without a key.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from lastiterate import interrupts
from lastiterate.audit.neighbours import DataSet, Neighbours, execute
from lastiterate.audit.scoring import Progress, in_batches
from lastiterate.engine import Trainer, seeded_key
from lastiterate.run.run import Run

NAME = "replay"
GUESSES = tuple(range(100))
"""Seeds that are tried: small numbers, which people choose, and zero, which programs choose."""
TOLERANCE = 1e-9
"""Relative distance below which two models are the same; noise of its own keeps models far further apart."""


def scores(run: Run, neighbours: Neighbours, trials: int, progress: Progress | None = None,
           guesses: tuple[int, ...] = GUESSES, size: int = len(GUESSES)) -> tuple[np.ndarray, np.ndarray]:
    """+1 where a guessed key gives the model on the data set with the record, -1 where on the other one, else 0."""
    keys = np.stack([seeded_key(seed) for seed in guesses])
    both = (neighbours.with_record, neighbours.without_record)
    known = [last_of(run, in_batches(run, data_set, Trainer(run).fit_many, keys, size)) for data_set in both]
    began, verdicts = time.perf_counter(), (list[float](), list[float]())
    for place, data_set in enumerate(both):
        for index in range(trials):
            interrupts.check()
            verdicts[place].append(_verdict(_release(run, data_set), known))
            if progress is not None:
                done = place * trials + index + 1
                rate = done / max(time.perf_counter() - began, 1e-9)
                progress(done, 2 * trials, 60 * rate, (2 * trials - done) / rate)
    return np.array(verdicts[0]), np.array(verdicts[1])


def _release(run: Run, data_set: DataSet) -> np.ndarray:
    """One model as a user trains it."""
    def train(features: np.ndarray, target: object, _: object, absent: Sequence[int] = ()) -> np.ndarray:
        return Trainer(run).fit(features, target, absent=absent)

    return last_of(run, execute(run, data_set, train, None)[None])[0]


def last_of(run: Run, models: np.ndarray) -> np.ndarray:
    """Last iterates (models, k, d + 1) of what a run releases."""
    return models[:, -1] if run.release == "all" else models


def _verdict(model: np.ndarray, known: list[np.ndarray]) -> float:
    gaps = [float(np.abs(part - model).max(axis=tuple(range(1, part.ndim))).min()) for part in known]
    if min(gaps) > TOLERANCE * max(float(np.abs(model).max()), 1e-300):
        return 0.0
    return 1.0 if gaps[0] <= gaps[1] else -1.0
