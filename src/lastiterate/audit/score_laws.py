"""The two laws of an attack's score, as the description has them: s (theta M + Z) + c, and what rates say of theta.

Z is a standard Gaussian and M what the record adds to the score in the steps that hold it (``drawn_moves``): where
nothing is drawn it is a number, and theta is the mu of the GDP test. Place c, scale s and theta are the trainer's.
Which error rates go together depends on theta alone, so confidence bounds on them give one on theta; and scores at a
smaller theta are those at a larger one, shrunk and with more noise, so that a lower bound on theta is one on epsilon.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lastiterate.audit.drawn_moves import Moves
from lastiterate.audit.statistics import ROUND, epsilon_at

MISFIT = 1e-6
"""Scores of a right trainer fit its laws worse than this with a smaller probability."""
BEND = 0.122
"""Half of the largest slope of the Gaussian density: moves with mean 0 change a rate by this times their variance."""
LEAST = 1e-290
"""Added to every rate, so that none is 0 because it is too small for a number."""
LARGEST = 1e6
"""A theta that no test needs to distinguish from a larger one."""


@dataclass(frozen=True, eq=False)
class ScoreLaws:
    """``moves``: what the record adds, in units that mean nothing; times ``present`` >= 0 with the record, ``absent``
    <= 0 without it or with the other one. ``words``: under what a bound of them holds."""

    moves: Moves
    present: float
    absent: float
    words: str

    def lower(self, rates: list[tuple[float, float]], delta: float) -> float:
        """The lower bound on epsilon that upper bounds on (fpr, fnr) give, if they hold."""
        return self.epsilon(max(self.theta(*pair) for pair in rates), delta)

    def theta(self, fpr: float, fnr: float) -> float:
        """The largest theta that is excluded, with all smaller ones, by rates as small as these; 0 if none is."""
        if not self.excluded(0.0, fpr, fnr):
            return 0.0
        low, high = 0.0, 1.0 / max(self._reach, 1e-300)
        while high < LARGEST / self._reach and self.excluded(high, fpr, fnr):
            low, high = high, 2 * high
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if self.excluded(middle, fpr, fnr) else (low, middle)
        return low * (1 - ROUND)

    def excluded(self, theta: float, fpr: float, fnr: float) -> bool:
        """Whether scores at ``theta`` have no threshold with rates as small as these."""
        return self._least_fnr(theta, fpr) > fnr

    def epsilon(self, theta: float, delta: float) -> float:
        """Epsilon at ``delta`` of the two laws, from below: what the best of many thresholds shows, were it known."""
        shifts, slack = theta * self.moves.values, self._slack(theta) + LEAST
        low, high = min(self.absent * shifts.max(), 0.0) - 9, max(self.present * shifts.max(), 0.0) + 9
        best = 0.0
        for _ in range(4):
            grid = np.linspace(low, high, 121)
            shown = epsilon_at(self._above(grid, self.absent * shifts) + slack,
                               self._above(-grid, -self.present * shifts) + slack, delta)
            place = int(np.argmax(shown))
            best = max(best, float(shown[place]))
            low, high = float(grid[max(place - 1, 0)]), float(grid[min(place + 1, grid.size - 1)])
        return best

    def fit(self, present: np.ndarray, absent: np.ndarray) -> bool:
        """Whether scores look as they should, with place, scale and theta from means and variances.

        Numbers that are chosen by the scores make them fit better: a right trainer fails with a smaller probability.
        """
        both, mean = ((present, self.present), (absent, self.absent)), self._mean
        move = max(0.0, float(present.mean() - absent.mean())) / (mean * (self.present - self.absent))
        place = float(np.mean([scores.mean() - move * factor * mean for scores, factor in both]))
        square = float(np.mean([scores.var() - (move * factor)**2 * self._variance for scores, factor in both]))
        scale = math.sqrt(max(square, 0.0))
        if not scale > 1e-9 * max(np.abs(present).max(), np.abs(absent).max()):
            return False  # no noise that numbers of this size could show
        return all(self._p((scores - place) / scale, factor * move / scale) >= MISFIT for scores, factor in both)

    def _p(self, scores: np.ndarray, factor: float) -> float:
        """Kolmogorov and Smirnov's p of scores that should be ``factor`` M + Z."""
        from scipy.stats import kstest  # pyright: ignore

        grid = np.linspace(float(scores.min()) - 1e-9, float(scores.max()) + 1e-9, 2000)
        below = self._above(-grid, -factor * self.moves.values) + self.moves.lost / 2
        return float(kstest(scores, lambda values: np.interp(values, grid, below)).pvalue)  # pyright: ignore

    def _least_fnr(self, theta: float, fpr: float) -> float:
        """The false negative rate at the threshold whose false positive rate is ``fpr``, from below."""
        from scipy.special import ndtri  # pyright: ignore

        shifts, slack = theta * self.moves.values, self._slack(theta)
        wanted = fpr + slack
        if wanted >= 1:
            return 0.0
        if self.absent == 0:
            threshold = -float(ndtri(wanted)) - ROUND
        else:
            low, high = float(self.absent * shifts.max()) - 40, 40.0
            for _ in range(60):
                middle = (low + high) / 2
                above = float(self._above(np.array([middle]), self.absent * shifts)[0])
                low, high = (middle, high) if above >= wanted else (low, middle)
            threshold = low
        return float(self._above(np.array([-threshold]), -self.present * shifts)[0]) - slack

    def _above(self, thresholds: np.ndarray, shifts: np.ndarray) -> np.ndarray:
        """P[shift + Z > threshold] at every threshold."""
        from scipy.special import ndtr  # pyright: ignore

        return np.array([float(self.moves.weights @ ndtr(shifts - threshold)) for threshold in thresholds])

    def _slack(self, theta: float) -> float:
        """By how much the grid of moves may have changed a rate."""
        widest = max(abs(self.present), abs(self.absent))
        return BEND * (theta * widest)**2 * self.moves.variance + self.moves.lost

    @property
    def _mean(self) -> float:
        return float(self.moves.weights @ self.moves.values)

    @property
    def _variance(self) -> float:
        return float(self.moves.weights @ self.moves.values**2) - self._mean**2

    @property
    def _reach(self) -> float:
        """How far the two laws lie apart at theta = 1, at most."""
        return (self.present - self.absent) * float(self.moves.values.max())
