"""Shift allocations in a bounded domain for steps with a modulus of continuity instead of a Lipschitz constant.

Two states at distance z are at most w(z) apart after the two maps of any step, w(z) >= z nondecreasing. Restarted at
the diameter, z_tau = D, or from z_0 = 0, every path to z_T = 0 with a_t = w(z_{t-1}) - z_t >= 0 gives
mu^2 = sum_t a_t^2 / v. Proof: docs/theorems/bounded-domain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from lastiterate.run.arrays import Array
from lastiterate.run.run import Run

LONGEST = 2000
"""Steps from the end among which a path is looked for."""
PATHS = 80
"""Paths that are tried at once, distinguished by their last shift."""


@dataclass(frozen=True)
class Modulus:
    """w(z) = z + min(growth z^exponent + shift, most); 0 < exponent <= 1, ``most`` infinite if unknown."""

    growth: float
    exponent: float
    shift: float
    most: float = math.inf

    def __call__(self, z: Array) -> Array:
        return z + np.minimum(self.growth * z**self.exponent + self.shift, self.most)

    def slope(self, z: Array) -> Array:
        """Derivative of w, with 1 at 0, where it may be infinite."""
        rises = (z > 0) & (self.growth * z**self.exponent + self.shift < self.most)
        with np.errstate(divide="ignore"):
            return 1 + np.where(rises, self.growth * self.exponent * z ** (self.exponent - 1), 0.0)

    def inverse(self, y: Array) -> Array:
        """About the z >= 0 with w(z) = y, by Newton's method in a bracket; no bound rests on its precision."""
        low, high, z = np.zeros_like(y), y, y
        for _ in range(12):
            value = self(z) - y
            low, high = np.where(value <= 0, z, low), np.where(value > 0, z, high)
            z = z - value / self.slope(z)
            z = np.where((low < z) & (z < high), z, (low + high) / 2)
        return low


def scaled_mu(modulus: Modulus, run: Run) -> float:
    """mu of the last iterate of a constant run whose every step has this modulus."""
    deviation = run.first_step * run.first_noise
    unit = _unit_mu(modulus, run.steps, run.domain.diameter())
    return unit / deviation if deviation > 0 else math.inf


@lru_cache(maxsize=64)
def _unit_mu(modulus: Modulus, steps: int, diameter: float) -> float:
    """At noise 1 on the iterate: mu is inversely proportional to it, so that a search computes this once.

    Without a restart the path z_t = 0 absorbs w(0) at every step; it is the better one for short runs.
    """
    charged = math.sqrt(steps) * float(modulus(np.array(0.0))) * (1 + 1e-14)
    return min(restarted_mu(modulus, 1.0, steps, diameter), charged)


def restarted_mu(modulus: Modulus, v: float, steps: int, diameter: float) -> float:
    """The least mu over the paths that are tried; v > 0. The last step alone, from D to 0, is among them.

    Backwards from the last shift a_T the best path obeys a_t = a_{t+1} w'(z_t) (one more unit of shift at t saves w'
    units at t + 1), so that paths differ in a_T only; the first state that would lie beyond D is put at D.
    """
    top = float(modulus(np.array(diameter)))
    best, low, high = top * top, _least_shift(modulus, diameter), top
    for _ in range(2):
        tried = np.geomspace(low, high, PATHS)
        costs = _costs(modulus, tried, steps, diameter, best)
        best = min(best, float(costs.min()))
        middle, width = float(tried[np.argmin(costs)]), (high / low) ** (2 / PATHS)
        low, high = middle / width, min(middle * width, top)
    return math.sqrt(best / v) * (1 + 1e-11)


def _least_shift(modulus: Modulus, diameter: float) -> float:
    """A last shift so small that paths which end with less are longer than ``LONGEST``, or begin below D."""
    return max(float(modulus(np.array(diameter / LONGEST))) / 4, 1e-12 * diameter)


def _costs(modulus: Modulus, last_shifts: Array, steps: int, diameter: float, worth: float) -> Array:
    """sum of a_t^2 of every path; infinite where it does not begin at D within the run, or exceeds ``worth``.

    Every a_t is computed forwards from the states, and w is inflated for the rounding of a difference that may cancel.
    """
    z, shift = np.zeros_like(last_shifts), last_shifts.copy()
    cost, open_ = np.zeros_like(z), np.ones(z.shape, dtype=bool)
    for _ in range(min(steps, LONGEST)):
        before = np.minimum(modulus.inverse(z + shift), diameter)
        before = np.where(diameter - before < 1e-9 * diameter, diameter, before)
        paid = np.maximum(modulus(before) * (1 + 1e-14) - z, 0.0)
        cost = np.where(open_, cost + paid**2, cost)
        worth = min(worth, float(cost[~open_].min(initial=math.inf)))
        stuck = open_ & ((before <= z) | (cost > worth))  # a shift that does not even make up for what w adds
        cost = np.where(stuck, math.inf, cost)
        open_ = open_ & (before < diameter) & ~stuck
        if not open_.any():
            break
        shift, z = shift * modulus.slope(before), before
    return np.where(open_, math.inf, cost)
