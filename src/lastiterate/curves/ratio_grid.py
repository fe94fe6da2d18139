"""Laws of likelihood ratios on free grids: means of many copies, rounded by mean-preserving spreads.

A pair (P, Q) is the law of Y = dP/dQ under Q, and delta in either order is the mean of a convex function of Y: of
(Y - e^eps)_+ for P against Q, of (1 - e^eps Y)_+ for Q against P. Moving the mass of a point to its two neighbours on a
grid with its mean preserved raises the mean of every convex function: the rounded pair dominates in both orders at
once, and dominance survives averages of independent ratios and adaptive composition (Jensen, one factor at a time).

**Guarantee:** every law here dominates the exact one up to floating point: masses up to a relative ``mass_error``, and
the ratios at which they stand up to a relative ``ratio_error``. All sums are of non-negative terms, so that no
cancellation makes the errors larger; a weight that is slightly wrong is the right one of a ratio slightly moved.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from lastiterate.curves.ratio_nodes import FAR_TRIMMED, TRIMMED, first_nodes, nodes_of_mean
from lastiterate.run.arrays import Array

UNIT = 2.0**-53
_ROWS = 16
"""Rows of products that are added in one go."""


@dataclass(frozen=True, eq=False)
class RatioGrid:
    """Law of dP/dQ: Q-mass ``mass[i]`` at ``value[i]`` (increasing), P-mass ``lost`` where the ratio is infinite.

    sum(mass) = 1 and sum(mass value) + lost = 1, up to the errors. ``trimmed``: what means of it lose at either end.
    """

    value: Array
    mass: Array
    lost: float
    mass_error: float
    ratio_error: float
    trimmed: float = TRIMMED

    def mixed(self, share: float) -> RatioGrid:
        """The law of ``share`` Y + 1 - ``share``."""
        return replace(self, value=share * self.value + (1 - share), lost=share * self.lost,
                       ratio_error=self.ratio_error + 4 * UNIT)

    def variances(self) -> tuple[float, float]:
        """Of the finite losses log(dP/dQ), under P and under Q."""
        keep = self.value > 0
        loss, q = np.log(self.value[keep]), self.mass[keep]
        p = q * self.value[keep]
        p, q = p / p.sum(), q / q.sum()
        return float((p * (loss - (p * loss).sum()) ** 2).sum()), float((q * (loss - (q * loss).sum()) ** 2).sum())


def lognormal(a: float, nodes: Array, trimmed: float = TRIMMED) -> RatioGrid:
    """Y = exp(a x - a^2/2) with x normal under Q, on 0 and e^``nodes`` (increasing).

    What lies above the last node stays there under Q, and the P-mass that is missing then is lost.
    """
    value = np.concatenate([[0.0], np.exp(nodes)])
    z = nodes / a + a / 2
    mass, wrong = _cells(z, z, a, trimmed)
    weighed, off = _cells(z - a, z, a, trimmed)  # the P-masses
    up = np.clip((weighed[:-1] - mass[:-1] * value[:-1]) / np.diff(value), 0.0, mass[:-1])
    out = np.append(mass[:-1] - up, mass[-1])
    out[1:] += up
    # a difference of tails good to 1e-12 each
    lost = max(0.0, float(weighed[-1] - mass[-1] * value[-1])) + 1e-6 * float(weighed[-1])
    return RatioGrid(value, out, lost, wrong + 4 * UNIT, wrong + off + 8 * UNIT, trimmed)


def _cells(at: Array, z: Array, a: float, trimmed: float) -> tuple[Array, float]:
    """Normal masses below, between and above ``at``, and the largest relative error of those between.

    Differences of tails on the nearer side; scipy's are good to 8 u (1 + z^2), and ``at`` to what rounding moves it.
    """
    from scipy.special import ndtr  # pyright: ignore

    low: Array = ndtr(at)
    high: Array = ndtr(-at)
    left = at[1:] <= 0
    inner = np.where(left, np.diff(low), -np.diff(high))
    tail = np.where(left, low[1:], high[:-1])
    size = np.abs(at) + np.abs(z)
    relative = 8 * UNIT * (1 + size**2) + 4 * UNIT * (1 + size) * (1 + a * size) / a
    wrong = tail * np.maximum(relative[1:], relative[:-1]) / np.maximum(inner, 1e-300)
    seen = inner > 1e-6 * trimmed
    return np.concatenate([low[:1], inner, high[-1:]]), float(wrong[seen].max(initial=0.0))


def mean_of_copies(a: float, count: int, size: int, *, far: bool = False) -> RatioGrid:
    """The mean of ``count`` independent exp(a x - a^2/2), x normal, on grids of about ``size`` nodes.

    Means of 1, 2, 4, ... copies along the binary digits of ``count``, each rounded to a grid of its own.
    """
    one = lognormal(a, first_nodes(a, count, size, far=far), FAR_TRIMMED if far else TRIMMED)
    total, have = one, 1
    for digit in bin(count)[3:]:
        total, have = mean_of_two(total, total, 0.5, count / (2 * have), size), 2 * have
        if digit == "1":
            total, have = mean_of_two(total, one, have / (have + 1), count / (have + 1), size), have + 1
    return total


def mean_of_two(one: RatioGrid, two: RatioGrid, weight: float, rest: float, size: int) -> RatioGrid:
    """``weight`` Y + (1 - ``weight``) Y' for independent Y and Y', on a grid for a mean of ``rest`` copies of it."""
    trimmed = max(one.trimmed, two.trimmed)
    value = np.concatenate([[0.0], np.exp(nodes_of_mean(one, two, weight, rest, size, trimmed))])
    gap, count, top = np.diff(value), value.size, value[-1]
    total = np.zeros(count)
    lost = weight * one.lost + (1 - weight) * two.lost
    other = (1 - weight) * two.value
    alike = one is two and weight == 0.5  # then a pair counts for both of its orders
    for start in range(0, one.value.size, _ROWS):
        rows, columns = slice(start, start + _ROWS), slice(start if alike else 0, None)
        at = (weight * one.value[rows, None] + other[None, columns]).ravel()
        masses = one.mass[rows, None] * two.mass[None, columns]
        if alike:
            masses[:, _ROWS:] *= 2
        mass = masses.ravel()
        cell = np.minimum(np.searchsorted(value, at, side="right") - 1, count - 2)
        raised = mass * np.minimum((at - value[cell]) / gap[cell], 1.0)
        total += np.bincount(cell, mass - raised, count)
        total += np.bincount(cell + 1, raised, count)
        above = at > top
        if above.any():
            lost += float((mass[above] * (at[above] - top)).sum()) * (1 + 1e-6)
    terms = _ROWS * two.value.size + 2 * one.value.size / _ROWS + 16
    return RatioGrid(value, total, lost, one.mass_error + two.mass_error + terms * UNIT,
                     max(one.ratio_error, two.ratio_error) + 8 * UNIT, trimmed)
