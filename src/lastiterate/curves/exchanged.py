"""Replace-one from zero-out (or add-remove): one record is removed and another one added, through the best split.

For any x, H_eps(A || C) <= H_x(A || B) + e^x H_{eps - x}(B || C): with B the data without either record, delta(eps)
<= min over 0 <= x <= eps of removed(x) + e^x added(eps - x). Each order of a pair counts with its own curve; for a
Gaussian mechanism 2 mu is exact and better.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import final

import numpy as np

from lastiterate.curves.curve import LEAST_DELTA, Curve, check_delta, check_epsilon, from_log
from lastiterate.curves.grouped import Grouped
from lastiterate.curves.roots import first_within
from lastiterate.errors import InputError
from lastiterate.run.arrays import Array

POINTS = 400
"""Epsilons in a part of the table of both orders; between them the curves lie below their chords in e^epsilon."""
REACH = 3.0
"""The first part reaches to this many times the epsilon of one record at a typical delta."""
PARTS = 4
"""The table ends after so many parts, which are computed where they are asked for: beyond it the last value counts."""
TYPICAL = (1e-6, 1e-3, 0.1, 0.5)
"""Deltas of which the first that has an epsilon says how wide the table is: a curve has one, whatever it is asked."""


@final
@dataclass(frozen=True)
class Exchanged(Curve):
    """``curve`` for one record that is exchanged instead of zeroed, added or removed.

    **Guarantee:** both directions read one table, so that ``delta(epsilon(d))`` is at most d.
    """

    curve: Curve

    def delta(self, epsilon: float) -> float:
        check_epsilon(epsilon)
        return from_log(self.log_delta(epsilon))

    def profile(self, epsilons: Array) -> Array:
        return np.array([[from_log(log) for log in logs] for logs in self.log_profile(epsilons)])

    def log_profile(self, epsilons: Array) -> Array:
        logs = np.array([_through_best_split(_table(self.curve, _parts(self.curve, float(epsilon))), float(epsilon))
                         for epsilon in epsilons])
        return np.stack([logs, logs], axis=1)

    def epsilon(self, delta: float) -> float:
        check_delta(delta)
        one = self.curve.epsilon(max(delta / 2, LEAST_DELTA))
        if math.isinf(one):
            return math.inf
        high, last = 2 * one + 1e-9, 2 * max(_end(self.curve), 2 * one) + 1
        while self.delta(high) > delta:
            high *= 1.1
            if high > last:
                return math.inf
        return first_within(self.delta, delta, 0.0, high, 1e-9)

    def rdp(self, alpha: float) -> float:
        return self.curve.group(2).rdp(alpha)

    def group(self, size: int) -> Grouped:
        return Grouped(self, size)

    def exchanged(self) -> Curve:
        raise InputError("curve", "is for an exchange already", type(self.curve).__name__)

    def coarser(self) -> Exchanged:
        return Exchanged(self.curve.coarser())


@lru_cache(maxsize=256)
def _width(curve: Curve) -> float:
    """The epsilon at which the first part of the table ends."""
    epsilons = (curve.epsilon(delta) for delta in TYPICAL)
    return REACH * next((e for e in epsilons if math.isfinite(e)), 1.0) + 1e-9


def _end(curve: Curve) -> float:
    """The last epsilon of the whole table."""
    return _width(curve) * PARTS**1.5


def _parts(curve: Curve, epsilon: float) -> int:
    """How many parts reach beyond ``epsilon``: whatever else is computed changes nothing below it."""
    share = min(epsilon / _width(curve), float(PARTS**2))
    return min(PARTS, math.floor(share ** (2 / 3) * (1 + 1e-12)) + 1)


@lru_cache(maxsize=128)
def _part(curve: Curve, number: int) -> tuple[Array, Array]:
    """Epsilons i^1.5, i in units of a part, and log delta of both orders; shapes (POINTS,), (POINTS, 2)."""
    grid = _width(curve) * (number + np.arange(1, POINTS + 1) / POINTS) ** 1.5
    return grid, curve.log_profile(grid)


@lru_cache(maxsize=32)
def _table(curve: Curve, parts: int) -> tuple[Array, Array, Array]:
    """Epsilons from 0 on, denser near 0, and log delta of both orders."""
    begin = (np.zeros(1), curve.log_profile(np.zeros(1)))
    grids, deltas = zip(begin, *(_part(curve, number) for number in range(parts)), strict=True)
    # delta never increases: what rounding adds at one epsilon need not count beyond it
    falling = np.minimum.accumulate(np.concatenate(deltas), axis=0)
    return np.concatenate(grids), falling[:, 0], falling[:, 1]


def _through_best_split(table: tuple[Array, Array, Array], epsilon: float) -> float:
    """log of the min over tabled x <= epsilon of removed(x) + e^x added(epsilon - x), and with the roles of the grid
    exchanged. All in logarithms: neither e^x overflows nor what it multiplies underflows."""
    grid, removed, added = table
    first = grid[: int(np.searchsorted(grid, epsilon, side="right"))]
    rest = np.maximum(epsilon * (1 - 1e-15) - first, 0.0)  # rounded down, where delta is larger
    one = np.logaddexp(removed[: first.size], first + _chord(grid, added, rest))
    two = np.logaddexp(_chord(grid, removed, rest), epsilon - first + added[: first.size])
    return min(0.0, float(min(one.min(), two.min())) + 1e-12 + 1e-15 * epsilon)


def _chord(grid: Array, logs: Array, at: Array) -> Array:
    """log of the values between nodes, on chords in e^epsilon; the last one beyond them."""
    node = np.minimum(np.searchsorted(grid, at, side="right") - 1, grid.size - 1)
    after = np.minimum(node + 1, grid.size - 1)
    left, right = np.maximum(at - grid[node], 0.0), np.maximum(grid[after] - at, 0.0)
    # shares (e^w - e^t) / (e^w - 1) and (e^t - 1) / (e^w - 1) of the ends, t <= w, divided by e^w
    with np.errstate(divide="ignore", invalid="ignore"):
        whole = np.log(-np.expm1(-(left + right)))
        before = np.where(after > node, np.log(-np.expm1(-right)) - whole, 0.0)
        behind = np.where(after > node, np.log(-np.expm1(-left)) - right - whole, -math.inf)
    return np.logaddexp(before + logs[node], behind + logs[after])
