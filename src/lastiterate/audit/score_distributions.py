"""The two distributions of an attack's score that the description of a run implies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lastiterate.audit import learned_scores
from lastiterate.audit.canaries import DataSet, Neighbours, Train
from lastiterate.audit.scores import CERTAIN, MoveDistribution, moves
from lastiterate.audit.statistics import ROUND, epsilon_at
from lastiterate.engine.preprocessing import clip_rows
from lastiterate.engine.random import Key
from lastiterate.run.losses import HuberRidge
from lastiterate.run.run import Run

# The two distributions of an attack's score, as the description gives them: s (theta M + Z) + c,
# and what rates say of theta.  Z is a standard Gaussian and M what the record adds to the score in
# the steps that hold it (``drawn_moves``): where nothing is drawn it is a number, and theta is the
# mu of the GDP test. Location c, scale s and theta are the trainer's. Which error rates go together
# depends on theta alone, so confidence bounds on them give one on theta; and scores at a smaller
# theta are those at a larger one, shrunk and with more noise, so that a lower bound on theta is one
# on epsilon.

MISFIT = 1e-6
"""Scores of a correct trainer fit its distributions worse than this with a smaller probability."""
BEND = 0.122
"""Half of the largest slope of the Gaussian density: moves with mean 0 change a rate by this times
their variance."""
LEAST = 1e-290
"""Added to every rate, so that none is 0 because it is too small for a number."""
LARGEST = 1e6
"""A theta that no test needs to distinguish from a larger one."""


@dataclass(frozen=True, eq=False)
class ScoreLaws:
    """``moves``: what the record adds, in units that mean nothing; times ``present`` >= 0 with the
    record, ``absent`` <= 0 without it or with the other one. ``words``: under what a bound of them
    holds."""

    moves: MoveDistribution
    present: float
    absent: float
    words: str

    def lower(self, rates: list[tuple[float, float]], delta: float) -> float:
        """The lower bound on epsilon that upper bounds on (fpr, fnr) give, if they hold."""
        return self.epsilon(max(self.theta(*pair) for pair in rates), delta)

    def theta(self, fpr: float, fnr: float) -> float:
        """The largest theta that is excluded, with all smaller ones, by rates as small as these; 0
        if none is."""
        if not self.excludes(0.0, fpr, fnr):
            return 0.0
        low, high = 0.0, 1.0 / max(self._reach, 1e-300)
        while high < LARGEST / self._reach and self.excludes(high, fpr, fnr):
            low, high = high, 2 * high
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if self.excludes(middle, fpr, fnr) else (low, middle)
        return low * (1 - ROUND)

    def excludes(self, theta: float, fpr: float, fnr: float) -> bool:
        """Whether scores at ``theta`` have no threshold with rates as small as these."""
        return self._least_fnr(theta, fpr) > fnr

    def epsilon(self, theta: float, delta: float) -> float:
        """Return epsilon at ``delta`` of the two distributions, from below: what the best of many
        thresholds shows, were it known."""
        shifts, slack = theta * self.moves.values, self._slack(theta) + LEAST
        low, high = (
            min(self.absent * shifts.max(), 0.0) - 9,
            max(self.present * shifts.max(), 0.0) + 9,
        )
        best = 0.0
        for _ in range(4):
            grid = np.linspace(low, high, 121)
            shown = epsilon_at(
                self._above(grid, self.absent * shifts) + slack,
                self._above(-grid, -self.present * shifts) + slack,
                delta,
            )
            place = int(np.argmax(shown))
            best = max(best, float(shown[place]))
            low, high = float(grid[max(place - 1, 0)]), float(grid[min(place + 1, grid.size - 1)])
        return best

    def fit(self, present: np.ndarray, absent: np.ndarray) -> bool:
        """Return whether scores look as they should, with location, scale and theta from means and
        variances.

        Numbers that are chosen by the scores make them fit better: a right trainer fails with a
        smaller probability.
        """
        both, mean = ((present, self.present), (absent, self.absent)), self._mean
        move = max(0.0, float(present.mean() - absent.mean())) / (
            mean * (self.present - self.absent)
        )
        place = float(np.mean([scores.mean() - move * factor * mean for scores, factor in both]))
        square = float(
            np.mean(
                [scores.var() - (move * factor) ** 2 * self._variance for scores, factor in both]
            )
        )
        scale = math.sqrt(max(square, 0.0))
        if not scale > 1e-9 * max(np.abs(present).max(), np.abs(absent).max()):
            return False  # no noise that numbers of this size could show
        return all(
            self._p((scores - place) / scale, factor * move / scale) >= MISFIT
            for scores, factor in both
        )

    def _p(self, scores: np.ndarray, factor: float) -> float:
        """Kolmogorov and Smirnov's p of scores that should be ``factor`` M + Z."""
        from scipy.stats import kstest  # pyright: ignore

        grid = np.linspace(float(scores.min()) - 1e-9, float(scores.max()) + 1e-9, 2000)
        below = self._above(-grid, -factor * self.moves.values) + self.moves.lost / 2
        return float(kstest(scores, lambda values: np.interp(values, grid, below)).pvalue)  # pyright: ignore

    def _least_fnr(self, theta: float, fpr: float) -> float:
        """The false negative rate at the threshold whose false positive rate is ``fpr``, from
        below."""
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

        return np.array(
            [float(self.moves.weights @ ndtr(shifts - threshold)) for threshold in thresholds]
        )

    def _slack(self, theta: float) -> float:
        """By how much the grid of moves may have changed a rate."""
        widest = max(abs(self.present), abs(self.absent))
        return BEND * (theta * widest) ** 2 * self.moves.variance + self.moves.lost

    @property
    def _mean(self) -> float:
        return float(self.moves.weights @ self.moves.values)

    @property
    def _variance(self) -> float:
        return float(self.moves.weights @ self.moves.values**2) - self._mean**2

    @property
    def _reach(self) -> float:
        """The largest distance of the two distributions at theta = 1."""
        return (self.present - self.absent) * float(self.moves.values.max())


# The distributions of an attack's scores on a pair of data sets, by the description; see
# ``score_laws``.

LINEAR = ("projection", learned_scores.NAME)
"""Attacks whose score is linear in what is released."""
FIXED = "both laws are Gaussian: the GDP test"
DRAWN = "both laws are Gaussian given the batches, which are drawn as described"


def find_score_laws(run: Run, pair: Neighbours, attack: str) -> ScoreLaws | None:
    """Return the distributions of the scores of ``attack`` if the trainer is correct; ``None``
    where they are not known.

    Where batches are drawn, how many of the other records a step holds moves the score as well: it
    must be no secret of its own, because they are as many as the remaining positions, or add
    nothing along the record's direction.
    """
    if not pair.gaussian or attack not in LINEAR:
        return None
    if run.batching.drawn == "never":
        return ScoreLaws(CERTAIN, 1.0, 0.0, FIXED)
    if pair.direction is None:
        return None
    own, instead = (
        pushes(run, part, pair.direction) for part in (pair.with_record, pair.without_record)
    )
    others, unit = np.delete(own, pair.record), float(own[pair.record])
    common = float(others[0]) if others.size else 0.0
    if unit <= 0 or (others != common).any() or (common and run.batching.independent):
        return None
    present, absent = (
        unit - common,
        float(instead[pair.record]) - common,
    )  # instead of another record
    if not present >= 0 >= absent or present == absent:
        return None
    drawn = moves(run, all_steps=attack == learned_scores.NAME)
    return None if drawn is None else ScoreLaws(drawn, present / unit, absent / unit, DRAWN)


def pushes(run: Run, data: DataSet, direction: np.ndarray) -> np.ndarray:
    """What each record adds along ``direction`` in a step that holds it, (n,): a clipped row on the
    side of its target where residuals are clamped, and a row itself where the loss is the stand-in
    of networks."""
    along = np.ravel(direction)
    rows = data.features.astype(np.float64)
    sizes = np.ones(len(rows))
    if isinstance(run.loss, HuberRidge):
        rows = np.column_stack(
            (clip_rows(data.features, run.loss.row_norm), np.full(len(rows), run.loss.intercept))
        )
        sizes = run.loss.residual_clip * np.sign(data.target)
    lengths = np.maximum(np.linalg.norm(rows, axis=1) * np.abs(sizes), 1e-300)
    added = (
        rows @ along * sizes * np.minimum(1.0, (np.inf if run.clip is None else run.clip) / lengths)
    )
    if data.absent is not None:
        added[data.absent] = 0.0
    return added


# Models of an audit, shared by the devices that JAX sees: each trains its part of every batch of
# them.


def spread_over_devices(train: Train) -> Train:
    """``train`` (with its ``absent``), whose keys lie on all devices of this process, equally many
    on each.

    A model is a function of its key and the data alone, so where it is computed is no part of what
    it is.
    """
    if jax.local_device_count() == 1:  # pyright: ignore
        return train

    def train_shared(
        features: np.ndarray, target: np.ndarray, keys: np.ndarray, absent: Sequence[int] = ()
    ) -> np.ndarray:
        return np.asarray(train(features, target, spread(keys), absent=absent))[: len(keys)]

    return train_shared


def spread(keys: Key) -> jax.Array:
    """Keys on all devices of this process, filled up with the first one to a multiple of their
    number."""
    devices, held = np.array(cast(Any, jax.local_devices())), np.asarray(keys)  # pyright: ignore
    filled = np.concatenate((held, np.repeat(held[:1], -len(held) % len(devices), axis=0)))
    with jax.enable_x64(True):
        return jax.device_put(
            filled, NamedSharding(Mesh(devices, ("models",)), PartitionSpec("models"))
        )  # pyright: ignore
