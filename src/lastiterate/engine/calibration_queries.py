"""What one record adds to a round of calibration: the gradient and Hessian of its log loss by slope and biases.

A record gives every class k a vector Psi_k of what its score is linear in, <Psi_k, w> in all, no two of them further
apart than 1. With p the softmax of the scores and y the record's class, the gradient g is sum_k p_k Psi_k - Psi_y and
the Hessian H the covariance of Psi under p, |g|^2 + 4 |H|^2 <= 1 in Frobenius norm, and with one output |g|^2 +
11.09 |H|^2 <= 1 (docs/theorems/probabilities): where the one is long, the other is short. So both are parts of one
vector of norm at most 1: the gradient, and 2 or 3.33 times the Hessian's entries (those off the diagonal once, times
sqrt 2).

Scores are h, those of the weights without their intercepts, clipped to a public reach S:
one output    Psi_0 = 0, Psi_1 = (h/S, 1) / sqrt 2
K outputs     Psi_k = (h_k/S / sqrt 2, e_k) / 2, h moved so that its largest and smallest entries are opposite.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import expit, softmax  # pyright: ignore

from lastiterate.run.losses import LinearLoss

OF_ONE, OF_SEVERAL = 3.33, 2.0
"""What the Hessian is multiplied by, of one output and of several."""
UNIT = 1 - 2.0**-20
"""Vectors are scaled by it: more than float64 rounds."""
REACH, REACH_OF_SEVERAL = 2.5, 3.0
"""The reach in standard deviations of a score, were all rows' directions equally likely."""
DIRECTIONS = 100
"""Rows of more columns have not many more directions that weigh."""
START, START_OF_SEVERAL = 0.5, 0.65
"""The slope that is assumed before anything is measured: scores of clipped gradients are too steep."""
DAMPING, DAMPING_OF_SEVERAL = 1.0, 3.0
"""Added to the Hessian's eigenvalues, in standard deviations of the gradient's noise: noise alone moves a parameter by
about the inverse at most. Many biases together do more harm than one."""
SLOPES = (0.02, 50.0)
"""Slopes that are released: one of the other sign would turn all answers around."""


@dataclass(frozen=True, eq=False)
class Queries:
    """The vectors of one model: a public function of its released ``weights`` (k, d + 1), its loss and the norm that
    rows typically have."""

    loss: LinearLoss
    weights: np.ndarray
    typical: float

    @property
    def several(self) -> bool:
        return len(self.weights) > 1

    @cached_property
    def biases(self) -> np.ndarray:
        """What the intercept adds to every score, (k,)."""
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
        """What is added to the Hessian's eigenvalues, in standard deviations of the noise."""
        return DAMPING_OF_SEVERAL if self.several else DAMPING

    @property
    def _weight(self) -> float:
        return OF_SEVERAL if self.several else OF_ONE

    @cached_property
    def _of_classes(self) -> np.ndarray | None:
        """What a record of each class counts, at most 1; the probabilities are then those of the weighted records."""
        weights = self.loss.class_weights
        return None if weights is None else np.array(weights)

    @property
    def _units(self) -> np.ndarray:
        """Of the parameters w: what turns a slope and biases into them."""
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

    def folded(self, parameters: np.ndarray) -> np.ndarray:
        """Weights (k, d + 1) whose scores are slope times the old ones, with the new biases."""
        slope, *biases = parameters / self._units
        return np.column_stack((slope * self.weights[:, :-1], np.array(biases) / self.loss.intercept))

    def vectors(self, scores: np.ndarray, target: np.ndarray, parameters: np.ndarray) -> np.ndarray:
        """One vector per record, (m, size), of scores (m, k) and class indices (m,).

        **Guarantee:** a function of that record and of released numbers, of Euclidean norm at most 1.
        """
        reached = np.ascontiguousarray((scores - self.biases).T) / self.reach  # entries by rows: records in a row
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


def _of_one(reached: np.ndarray, target: np.ndarray, parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gradients (2, m) of one output against 0, and of Hessians the entries on and above the diagonal, (3, m)."""
    row = np.stack((np.clip(reached[0], -1, 1), np.ones(reached.shape[1]))) / math.sqrt(2)
    chance = expit(parameters @ row)
    first, second = np.triu_indices(2)
    return (chance - target) * row, chance * (1 - chance) * row[first] * row[second]


def _of_several(reached: np.ndarray, target: np.ndarray, parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gradients (K + 1, m), and of Hessians (K + 1, K + 1) the entries on and above the diagonal, row by row."""
    classes, records = reached.shape
    row = np.clip(reached - (reached.max(axis=0) + reached.min(axis=0)) / 2, -1, 1) / math.sqrt(2)
    chance = softmax((parameters[0] * row + parameters[1:, None]) / 2, axis=0)
    residual = chance.copy()
    residual[target, np.arange(records)] -= 1
    apart = row - (chance * row).sum(0)
    first, second = np.triu_indices(classes)
    biases = -chance[first] * chance[second]
    biases[first == second] += chance
    curved = np.vstack(((chance * apart**2).sum(0), chance * apart, biases))
    return np.vstack(((residual * row).sum(0), residual)) / 2, curved / 4
