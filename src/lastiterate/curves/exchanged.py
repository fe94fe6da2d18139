"""Replace-one from zero-out (or add-remove): one record is removed and another one added, through the best split.

For any x, H_eps(A || C) <= H_x(A || B) + e^x H_{eps - x}(B || C): with B the data without either record, delta(eps)
<= min over 0 <= x <= eps of removed(x) + e^x added(eps - x). Each order of a pair counts with its own curve; for a
Gaussian mechanism 2 mu is exact and better.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, final

import numpy as np

from lastiterate.curves.curve import Curve, check_delta, check_epsilon
from lastiterate.curves.grouped import Grouped
from lastiterate.curves.tails import smallest_true
from lastiterate.errors import InputError
from lastiterate.run.arrays import Array

POINTS = 400
"""Epsilons at which both orders are tabled; between them the curves lie below their chords in e^epsilon."""
FARTHEST = 6.0
"""The table ends at this many times the epsilon of one record: beyond it the last value counts."""


@final
@dataclass(frozen=True)
class Exchanged(Curve):
    """``curve`` for one record that is exchanged instead of zeroed, added or removed."""

    curve: Curve

    def delta(self, epsilon: float) -> float:
        check_epsilon(epsilon)
        end = 2.0 ** math.ceil(math.log2(max(epsilon, 1e-9)))  # one table answers many questions
        return _through_best_split(_table(self.curve, end), epsilon)

    def epsilon(self, delta: float) -> float:
        check_delta(delta)
        one = self.curve.epsilon(delta / 2)
        if math.isinf(one):
            return math.inf
        table, high = _table(self.curve, FARTHEST * one + 1e-9), 2 * one + 1e-9
        while _through_best_split(table, high) > delta:
            high *= 1.1
            if high > 2 * FARTHEST * one + 1:
                return math.inf
        return smallest_true(lambda e: _through_best_split(table, e) <= delta, 0.0, high, 1e-9)

    def rdp(self, alpha: float) -> float:
        return self.curve.group(2).rdp(alpha)

    def group(self, size: int) -> Grouped:
        return Grouped(self, size)

    def exchanged(self) -> Curve:
        raise InputError("curve", "is for an exchange already", type(self.curve).__name__)

    def coarser(self) -> Exchanged:
        return Exchanged(self.curve.coarser())

    def to_dict(self) -> dict[str, Any]:
        return {"type": "Exchanged", "curve": self.curve.to_dict()}


@lru_cache(maxsize=32)
def _table(curve: Curve, end: float) -> tuple[Array, Array, Array]:
    """Epsilons from 0 to ``end``, denser near 0, and both orders' deltas."""
    grid = end * np.linspace(0.0, 1.0, POINTS) ** 1.5
    found = np.array([curve.directions(float(e)) for e in grid])
    # delta never increases: what rounding adds at one epsilon need not count beyond it
    return grid, np.minimum.accumulate(found[:, 0]), np.minimum.accumulate(found[:, 1])


def _through_best_split(table: tuple[Array, Array, Array], epsilon: float) -> float:
    """min over tabled x <= epsilon of removed(x) + e^x added(epsilon - x), and with the roles of the grid exchanged."""
    grid, removed, added = table
    first = grid[: int(np.searchsorted(grid, epsilon, side="right"))]
    rest = np.maximum(epsilon - first, 0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        one = removed[: first.size] + np.exp(first) * _chord(grid, added, rest)
        two = _chord(grid, removed, rest) + np.exp(rest) * added[: first.size]
    return min(1.0, float(min(np.nanmin(one), np.nanmin(two))) * (1 + 1e-12))


def _chord(grid: Array, values: Array, at: Array) -> Array:
    """Values between nodes, on chords in e^epsilon; the last one beyond them."""
    node = np.minimum(np.searchsorted(grid, at, side="right") - 1, grid.size - 1)
    after = np.minimum(node + 1, grid.size - 1)
    width = np.maximum(np.minimum(grid[after] - grid[node], 700.0), 1e-300)
    share = np.minimum(np.expm1(np.minimum(at - grid[node], width)) / np.expm1(width), 1.0)
    return values[node] + np.where(after > node, share, 0.0) * (values[after] - values[node])
