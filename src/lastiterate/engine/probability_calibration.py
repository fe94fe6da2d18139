"""Probability calibration: noisy Newton rounds on slope and biases after the last step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import islice
from typing import Any

import numpy as np
from scipy.special import expit  # pyright: ignore

from lastiterate.engine.linear_gradients import linear_loss
from lastiterate.engine.preprocessing import add_sums
from lastiterate.engine.random import CALIBRATION, Key, host_stream, normals
from lastiterate.engine.trainer import check_released
from lastiterate.run.losses import LinearLoss
from lastiterate.run.measured_smoothness import typical_norm
from lastiterate.run.probability_calibration import AssumedSlope, Calibration
from lastiterate.run.run import Run

# What one record adds to a round of calibration: the gradient and Hessian of its log loss by slope
# and biases. A record gives every class k a vector Psi_k of what its score is linear in, <Psi_k,
# w> in all, no two of them further apart than 1. With p the softmax of the scores and y the
# record's class, the gradient g is sum_k p_k Psi_k - Psi_y and the Hessian H the covariance of Psi
# under p, |g|^2 + 4 |H|^2 <= 1 in Frobenius norm, and with one output |g|^2 + 11.09 |H|^2 <= 1
# (docs/theorems/probabilities): where the one is long, the other is short. So both are parts of one
# vector of norm at most 1: the gradient, and 2 or 3.33 times the Hessian's entries (those off the
# diagonal once, times sqrt 2). Scores are h, those of the weights without their intercepts,
# clipped to a public reach S: one output    Psi_0 = 0, Psi_1 = (h/S, 1) / sqrt 2 K outputs
# Psi_k = (h_k/S / sqrt 2, e_k) / 2, h moved so that its largest and smallest entries are opposite.

OF_ONE, OF_SEVERAL = 3.33, 2.0
"""Factors of the Hessian, for one output and for several."""
UNIT = 1 - 2.0**-20
"""Vectors are scaled by it: more than float64 rounds."""
REACH, REACH_OF_SEVERAL = 2.5, 3.0
"""The reach in standard deviations of a score, if all directions of rows were equally likely."""
DIRECTIONS = 100
"""Number of columns beyond which rows have few more directions that matter."""
START, START_OF_SEVERAL = 0.5, 0.65
"""The slope that is assumed before anything is measured: scores of clipped gradients are too steep.
"""
DAMPING, DAMPING_OF_SEVERAL = 1.0, 3.0
"""Added to the Hessian's eigenvalues, in standard deviations of the gradient's noise: noise alone
moves a parameter by about the inverse at most. Many biases together do more harm than one."""
SLOPES = (0.02, 50.0)
"""Slopes that are released: one of the other sign would turn all answers around."""


@dataclass(frozen=True, eq=False)
class Queries:
    """The vectors of one model: a public function of its released ``weights`` (k, d + 1), its loss
    and the norm that rows typically have."""

    loss: LinearLoss
    weights: np.ndarray
    typical: float

    @property
    def several(self) -> bool:
        return len(self.weights) > 1

    @cached_property
    def biases(self) -> np.ndarray:
        """The term that the intercept adds to every score, (k,)."""
        return self.loss.intercept * self.weights[:, -1]

    @cached_property
    def reach(self) -> float:
        """S."""
        rows, columns = self.weights[:, :-1], self.weights.shape[1] - 1
        if self.several:
            squares = (rows**2).sum(1)
            apart = squares[:, None] + squares - 2 * rows @ rows.T
            longest = REACH_OF_SEVERAL / 2 * math.sqrt(max(float(apart.max()), 0.0))
        else:
            longest = REACH * float(np.linalg.norm(rows))
        return max(longest * self.typical / math.sqrt(min(columns, DIRECTIONS)), 1e-9)

    @property
    def parameters(self) -> int:
        """One slope and a bias for every output."""
        return len(self.weights) + 1

    @property
    def size(self) -> int:
        """Entries of a record's vector."""
        return self.parameters * (self.parameters + 3) // 2

    @property
    def damping(self) -> float:
        """The term that is added to the Hessian's eigenvalues, in standard deviations of the
        noise."""
        return DAMPING_OF_SEVERAL if self.several else DAMPING

    @property
    def _weight(self) -> float:
        return OF_SEVERAL if self.several else OF_ONE

    @cached_property
    def _of_classes(self) -> np.ndarray | None:
        """The weight of a record of each class, at most 1; the probabilities are then those of the
        weighted records."""
        weights = self.loss.class_weights
        return None if weights is None else np.array(weights)

    @property
    def _units(self) -> np.ndarray:
        """Units of the parameters w: factors that convert a slope and biases to them."""
        slope, bias = (2 * math.sqrt(2), 2.0) if self.several else (math.sqrt(2), math.sqrt(2))
        return np.array([slope * self.reach, *([bias] * len(self.weights))])

    @property
    def start(self) -> np.ndarray:
        """The parameters before the first round."""
        first = START_OF_SEVERAL if self.several else START
        return self._units * first * np.array([1.0, *self.biases])

    def within(self, parameters: np.ndarray) -> np.ndarray:
        """Parameters whose slope is one that is released."""
        clipped = parameters.copy()
        clipped[0] = np.clip(clipped[0], *(self._units[0] * np.array(SLOPES)))
        return clipped

    def fold_into_weights(self, parameters: np.ndarray) -> np.ndarray:
        """Weights (k, d + 1) whose scores are slope times the old ones, with the new biases."""
        slope, *biases = parameters / self._units
        return np.column_stack(
            (slope * self.weights[:, :-1], np.array(biases) / self.loss.intercept)
        )

    def vectors(self, scores: np.ndarray, target: np.ndarray, parameters: np.ndarray) -> np.ndarray:
        """One vector per record, (m, size), of scores (m, k) and class indices (m,).

        **Guarantee:** a function of that record and of released numbers, of Euclidean norm at most
        1.
        """
        reached = (
            np.ascontiguousarray((scores - self.biases).T) / self.reach
        )  # entries by rows: records in a row
        gradient, hessian = (_of_several if self.several else _of_one)(reached, target, parameters)
        first, second = np.triu_indices(self.parameters)
        weights = self._weight * np.where(first == second, 1.0, math.sqrt(2))
        vectors = UNIT * np.vstack((gradient, weights[:, None] * hessian))
        return (vectors if self._of_classes is None else self._of_classes[target] * vectors).T

    def derivatives(self, total: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Gradient (p,) and symmetric Hessian (p, p) of a noisy sum of vectors (size,)."""
        many = self.parameters
        hessian, above = np.zeros((many, many)), np.triu_indices(many)
        hessian[above] = total[many:] / self._weight
        hessian = (hessian + hessian.T) / np.where(np.eye(many, dtype=bool), 2.0, math.sqrt(2))
        return total[:many], hessian


def _of_one(
    reached: np.ndarray, target: np.ndarray, parameters: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Gradients (2, m) of one output against 0, and of Hessians the entries on and above the
    diagonal, (3, m)."""
    row = np.stack((np.clip(reached[0], -1, 1), np.ones(reached.shape[1]))) / math.sqrt(2)
    chance = expit(parameters[0] * row[0] + parameters[1] * row[1])  # no product rounds by place
    first, second = np.triu_indices(2)
    return (chance - target) * row, chance * (1 - chance) * row[first] * row[second]


def add_classes(values: np.ndarray) -> np.ndarray:
    """Return the sum over the first axis, entry after entry; NumPy's own order follows from the
    number of records."""
    return reduce(np.add, values)


def _of_several(
    reached: np.ndarray, target: np.ndarray, parameters: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Gradients (K + 1, m), and of Hessians (K + 1, K + 1) the entries on and above the diagonal,
    row by row."""
    classes, records = reached.shape
    row = np.clip(reached - (reached.max(axis=0) + reached.min(axis=0)) / 2, -1, 1) / math.sqrt(2)
    scores = (parameters[0] * row + parameters[1:, None]) / 2
    powers = np.exp(scores - scores.max(axis=0))
    chance = powers / add_classes(powers)
    residual = chance.copy()
    residual[target, np.arange(records)] -= 1
    apart = row - add_classes(chance * row)
    first, second = np.triu_indices(classes)
    biases = -chance[first] * chance[second]
    biases[first == second] += chance
    curved = np.vstack((add_classes(chance * apart**2), chance * apart, biases))
    return np.vstack((add_classes(residual * row), residual)) / 2, curved / 4


# Calibration after the last step: noisy Newton rounds on slope and biases, folded into the released
# weights.

LONGEST = 4.0
"""A round moves no parameter further."""

Noisy = Callable[[int, float, int, Iterable[np.ndarray]], np.ndarray]
"""``noisy(round, std, size, slices)``: the sum of all rows (m, size), of norm at most 1, with noise
of that deviation.
"""
TOGETHER = 8
"""Slices whose vectors are computed together, at most: few numbers make short work of one,"""
NUMBERS = 1024
"""of so many in the vectors of a record together."""
Scored = Callable[[], Iterator[tuple[np.ndarray, np.ndarray]]]
"""Scores (m, k) and class indices (m,) of records in slices, in public order, as often as there are
rounds."""


def calibrate_weights(
    run: Run,
    weights: np.ndarray,
    scored: Scored,
    noisy: Noisy,
    together: Callable[[Iterator[np.ndarray]], Any] = iter,
) -> np.ndarray:
    """Weights (k, d + 1) with the slope and the biases that the run's calibration finds for
    ``scored``, the records' scores with ``weights``; themselves where it has none.

    ``together``: what sums over the slices of several processes take. Errors: weights whose squares
    overflow.

    **Guarantee:** what is computed of records are noisy sums of vectors of norm at most 1, one per
    record, each a function of that record and of what was released before; of units with several
    positions, means over the positions.
    """
    match run.probability_calibration:
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
    for number, std in enumerate(run.probability_calibration.stds.tolist()):
        total = noisy(
            number, std, queries.size, together(_vectors(run, queries, parameters, scored))
        )
        parameters = queries.within(
            parameters - newton_step(*queries.derivatives(total), queries.damping * std)
        )
    return queries.fold_into_weights(parameters)


def newton_step(gradient: np.ndarray, hessian: np.ndarray, damping: float) -> np.ndarray:
    """The step with ``damping`` added to the Hessian's eigenvalues, of which negative ones are
    noise."""
    values, vectors = np.linalg.eigh(hessian)
    step = vectors @ (vectors.T @ gradient / (np.maximum(values, 0.0) + damping))
    return step * min(1.0, LONGEST / max(float(np.abs(step).max()), 1e-300))


def _vectors(
    run: Run, queries: Queries, parameters: np.ndarray, scored: Scored
) -> Iterator[np.ndarray]:
    slices, together = scored(), max(1, min(TOGETHER, NUMBERS // queries.size))
    while several := list(islice(slices, together)):
        values, target = map(np.concatenate, zip(*several, strict=True))
        yield queries.vectors(values, target, parameters) / run.rows_per_record


def make_rounds(key: Key) -> Noisy:
    """Sums in double precision with Gaussian noise from the key."""

    def noisy(number: int, std: float, size: int, slices: Iterable[np.ndarray]) -> np.ndarray:
        noise = std * normals(host_stream(key, CALIBRATION, number), 0, size)
        return add_sums(noise, slices, lambda vectors: vectors.sum(axis=0))

    return noisy
