"""Groups of records, and records that are exchanged, by the triangle inequality; epsilon by a confirmed search."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import final

import numpy as np

from lastiterate.curves.curve import UP, Curve, check_delta, check_epsilon, from_log, log_powers
from lastiterate.curves.roots import first_within
from lastiterate.run.arrays import Array

NEARBY = 1e-3
"""How far below an epsilon it is seen, relatively, whether the bound rises there."""
FARTHEST = 1e7
"""Epsilons beyond it are not looked for."""


@final
@dataclass(frozen=True)
class Grouped(Curve):
    """Group privacy by the triangle inequality: delta_k(k e) <= delta(e) (1 + e^e + ... + e^((k - 1) e)).

    Where delta falls more slowly than powers of e^e rise, what holds at a smaller epsilon holds as well.
    """

    curve: Curve
    size: int

    def delta(self, epsilon: float) -> float:
        check_epsilon(epsilon)
        return from_log(self.log_delta(epsilon))

    def profile(self, epsilons: Array) -> Array:
        return np.array([[from_log(log) for log in logs] for logs in self.log_profile(epsilons)])

    def log_profile(self, epsilons: Array) -> Array:
        parts = epsilons / self.size * (1 - 2.0**-52)  # rounded down, where delta is larger
        logs = self.at_parts(np.concatenate((parts, parts * (1 - NEARBY))))
        logs, before = logs[: parts.size], logs[parts.size :]
        if (rising := logs > before + 1e-9).any():
            lowest, least = _lowest(self)
            logs = np.where(rising & (parts > lowest), np.minimum(logs, least), logs)
        logs = np.minimum(logs, 0.0)
        return np.stack([logs, logs], axis=1)

    def at_parts(self, parts: Array) -> Array:
        """log of the bound, which may exceed 1, where each of the ``size`` records has an epsilon of ``parts``."""
        powers = np.array([log_powers(float(part), self.size) for part in parts])
        # a power and what it multiplies may both be far beyond doubles: their logarithms add up
        return self.curve.log_profile(parts).max(axis=1) + powers

    def epsilon(self, delta: float) -> float:
        check_delta(delta)
        return confirmed_epsilon(self, delta)

    def rdp(self, alpha: float) -> float:
        c = max(0, math.ceil(math.log2(self.size)))  # Mironov 2017, Proposition 2
        return 3**c * self.curve.rdp(alpha * 2**c) * UP if alpha >= 2 else self.rdp(2.0)

    def group(self, size: int) -> Grouped:
        return Grouped(self.curve, self.size * size)


@lru_cache(maxsize=256)
def _lowest(curve: Grouped) -> tuple[float, float]:
    """About where the bound of one record's epsilon is least, and its log there; it holds at every larger epsilon."""
    grid, lowest = np.geomspace(1e-3, FARTHEST, 160), (0.0, 0.0)
    for _ in range(4):
        logs = curve.at_parts(grid)
        best = int(logs.argmin())
        low, high = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, grid.size - 1)])
        lowest = float(grid[best]), float(logs[best])
        grid = np.concatenate((np.linspace(low, high, 24), grid[best : best + 1]))
    return lowest


def confirmed_epsilon(curve: Curve, delta: float) -> float:
    """An epsilon that was itself seen to have at most ``delta``; infinite where none is found below ``FARTHEST``."""
    return search_epsilon(curve.delta, delta)


def search_epsilon(deltas: Callable[[float], float], delta: float) -> float:
    """The same for a function of epsilon."""
    low, high = 0.0, 0.25
    while deltas(high) > delta:
        low, high = high, 2 * high
        if high > FARTHEST:
            return math.inf
    return first_within(deltas, delta, low, high, 1e-9)
