"""Calibration after the last step: noisy Newton rounds on slope and biases, folded into the released weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import jax
import numpy as np

from lastiterate.engine.calibration_queries import Queries
from lastiterate.engine.gaussian_noise import CALIBRATION, Key, normals, stream
from lastiterate.engine.growth import check_released
from lastiterate.engine.preparation.sliced_sums import each_sum
from lastiterate.engine.prepare import linear_loss
from lastiterate.run.probability_calibration import AssumedSlope, Calibration
from lastiterate.run.run import Run
from lastiterate.run.stable import typical_norm

LONGEST = 4.0
"""A round moves no parameter further."""

Noisy = Callable[[int, float, int, Iterable[np.ndarray]], np.ndarray]
"""``noisy(round, std, size, slices)``: the sum of all rows (m, size), of norm at most 1, with noise of that deviation.
"""
TOGETHER = 8
"""Slices whose vectors are computed together, at most: few numbers make short work of one,"""
NUMBERS = 1024
"""of so many in the vectors of a record together."""
Scored = Callable[[], Iterator[tuple[np.ndarray, np.ndarray]]]
"""Scores (m, k) and class indices (m,) of records in slices, in public order, as often as there are rounds."""


def calibrated(run: Run, weights: np.ndarray, scored: Scored, noisy: Noisy,
               together: Callable[[Iterator[np.ndarray]], Any] = iter) -> np.ndarray:
    """Weights (k, d + 1) with the slope and the biases that the run's calibration finds for ``scored``, the records'
    scores with ``weights``; themselves where it has none.

    ``together``: what sums over the slices of several processes take. Errors: weights whose squares overflow.

    **Guarantee:** what is computed of records are noisy sums of vectors of norm at most 1, one per record, each a
    function of that record and of what was released before; of units with several places, means over the places.
    """
    match run.calibration:
        case None:
            return weights
        case AssumedSlope(slope):
            return slope * weights
        case Calibration():
            pass
    with np.errstate(over="ignore"):  # the reach of scores is a root of squares
        check_released(weights.size * np.square(weights))
    queries = Queries(linear_loss(run), weights, typical_norm(run))
    parameters = queries.start
    for number, std in enumerate(run.calibration.stds.tolist()):
        total = noisy(number, std, queries.size, together(_vectors(run, queries, parameters, scored)))
        parameters = queries.within(parameters - newton_step(*queries.derivatives(total), queries.damping * std))
    return queries.folded(parameters)


def newton_step(gradient: np.ndarray, hessian: np.ndarray, damping: float) -> np.ndarray:
    """The step with ``damping`` added to the Hessian's eigenvalues, of which negative ones are noise."""
    values, vectors = np.linalg.eigh(hessian)
    step = vectors @ (vectors.T @ gradient / (np.maximum(values, 0.0) + damping))
    return step * min(1.0, LONGEST / max(float(np.abs(step).max()), 1e-300))


def _vectors(run: Run, queries: Queries, parameters: np.ndarray, scored: Scored) -> Iterator[np.ndarray]:
    slices, together = scored(), max(1, min(TOGETHER, NUMBERS // queries.size))
    while several := list(islice(slices, together)):
        values, target = map(np.concatenate, zip(*several, strict=True))
        yield queries.vectors(values, target, parameters) / run.rows_per_record


def drawn_rounds(key: Key) -> Noisy:
    """Sums in double precision with Gaussian noise from the key."""
    def noisy(number: int, std: float, size: int, slices: Iterable[np.ndarray]) -> np.ndarray:
        with jax.enable_x64(True):
            total = std * normals(stream(stream(key, CALIBRATION), number), 0, size)
        for part in each_sum(slices, lambda vectors: vectors.sum(axis=0)):
            total = total + part
        return total

    return noisy

