"""Distributions of likelihood ratios on free grids, and where the nodes go."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from lastiterate.run.validation import Array

# The nodes of a grid for likelihood ratios: their choice matters to accuracy and speed alone.
# Values of a distribution are rounded to ``DIGITS`` binary digits before nodes are placed by them:
# where the last bits of another processor's logarithms decided between two positions, its bounds
# differed by parts in a million, and no certificate of the one could be verified on the other.

TRIMMED = 1e-19
"""About the Q-mass below a grid and the P-mass above it, which become losses of -infinity and
+infinity."""
TAIL = 9.5
"""Standard deviations of the normal distribution on the first grid; beyond it lies 1e-21."""
FAR_TRIMMED, FAR_TAIL = 1e-40, 13.5
"""Both for deltas that are as small as what is trimmed."""
POWER, EVEN = 0.18, 0.3
"""Nodes per interval go with mass^POWER (1/3 is best for the variance, less is better for tails); a
share ``EVEN`` is spread evenly over the logarithms."""
RARE, SPARED = 1e-7, 16
_GROUPS, _PAIRS, _EVENLY = 128, 40, 200
DIGITS = 20


class RatioMasses(Protocol):
    """Q-masses at increasing ratios."""

    @property
    def value(self) -> Array: ...

    @property
    def mass(self) -> Array: ...


def first_nodes(a: float, count: int, size: int, *, far: bool = False) -> Array:
    """For exp(a x - a^2/2), x normal, of which the mean of ``count`` copies will be taken."""
    tail = FAR_TAIL if far else TAIL
    z = np.linspace(-tail, tail + a, 1025)
    middle = (z[1:] + z[:-1]) / 2
    return _refine_nodes(
        a * z - a * a / 2, np.exp(-(middle**2) / 2), np.exp(-((middle - a) ** 2) / 2), count, size
    )


def nodes_of_mean(
    one: RatioMasses,
    two: RatioMasses,
    weight: float,
    rest: float,
    size: int,
    trimmed: float = TRIMMED,
) -> Array:
    """Return the nodes for the mean of two ratios, from some hundred groups of either
    distribution."""
    (y, q, low, high), (v, r, down, top) = _group_nodes(one), _group_nodes(two)
    at = np.add.outer(weight * y, (1 - weight) * v).ravel()
    order = np.argsort(at, kind="stable")
    mass = np.outer(q, r).ravel()[order]
    weighed = mass * at[order]
    inside = (np.cumsum(weighed[::-1])[::-1] > trimmed) & (np.cumsum(mass) > trimmed)
    order, mass, weighed = order[inside], mass[inside], weighed[inside]
    x = np.log(at[order])
    first = np.add.outer(weight * low, (1 - weight) * down).ravel()[order[: _PAIRS // 4]].min()
    last = np.add.outer(weight * high, (1 - weight) * top).ravel()[order].max()
    ends = math.log(first), math.log(last)
    edges = np.unique(np.concatenate([ends, x[_PAIRS:-_PAIRS:_PAIRS], np.linspace(*ends, _EVENLY)]))
    cuts = np.concatenate([[0], np.searchsorted(x, edges[1:-1]), [x.size]])
    q_below, p_below = (np.append(0.0, np.cumsum(part))[cuts] for part in (mass, weighed))
    return _refine_nodes(edges, np.diff(q_below), np.diff(p_below), rest, size)


def _group_nodes(law: RatioMasses) -> tuple[Array, Array, Array, Array]:
    """Mean ratios and masses of groups of neighbouring positive nodes, and the ends of the groups,
    all rounded."""
    value, mass = law.value[1:], np.maximum(law.mass[1:], 1e-300)
    starts = np.arange(0, value.size, max(1, value.size // _GROUPS))
    total = np.add.reduceat(mass, starts)
    last = np.append(starts[1:], value.size) - 1
    means = np.add.reduceat(mass * value, starts) / total
    return (
        _short_ratios(means),
        _short(total),
        _short_ratios(value[starts]),
        _short_ratios(value[last]),
    )


def _short_ratios(ratios: Array) -> Array:
    """Near 1 the digits of what they are away from it: many copies with much noise have all of
    their means there."""
    near = np.abs(ratios - 1) < 0.5
    return np.where(near, 1 + _short(ratios - 1), _short(ratios))


def _short(numbers: Array) -> Array:
    fraction, power = np.frexp(numbers)
    return np.ldexp(np.round(np.ldexp(fraction, DIGITS)), power - DIGITS)


def _refine_nodes(edges: Array, q: Array, p: Array, rest: float, size: int) -> Array:
    """``size`` nodes from the first to the last of ``edges`` (logarithms of ratios), by what
    rounding costs there.

    The mean of ``rest`` copies of the ratio will be taken. If the other copies have total t, a move
    of log y moves the loss by y / (t + y). ``rest`` copies are drawn under Q, one of them under P
    instead.
    ``q``, ``p``: masses of the intervals, in any unit.
    """
    middle = (edges[1:] + edges[:-1]) / 2
    moves = 1 / (1 + np.exp(np.clip(_others(middle, q, rest) - middle, -350.0, 350.0)))
    cost = (rest * q / q.sum() + p / p.sum()) * moves**2
    width = np.diff(edges)
    weight: Array = cost**POWER * width ** (1 - POWER)
    share: Array = (1 - EVEN) * weight / weight.sum() + EVEN * width / width.sum()
    total: Array = np.append(0.0, np.cumsum(share))
    nodes: Array = np.interp(np.linspace(0, float(total[-1]), size), total, edges)
    return nodes[np.append(True, np.diff(nodes) > 1e-14 * (1 + np.abs(nodes[1:])))]


def _others(x: Array, q: Array, rest: float) -> float:
    """Logarithm of a total of ``rest`` - 1 copies that they hardly ever stay below: their largest,
    or the sum of those without the ``SPARED`` largest."""
    if rest <= 1:
        return -math.inf
    below: Array = np.cumsum(q) / q.sum()
    place = int((below < RARE ** (1 / (rest - 1))).sum())
    largest = float(x[min(place, x.size - 1)])
    if rest <= 2 * SPARED:
        return largest
    kept = below <= 1 - SPARED / rest
    return max(
        largest, math.log(float((q[kept] * np.exp(x[kept])).sum()) / float(q.sum()) * rest + 1e-300)
    )


# Distributions of likelihood ratios on free grids: means of many copies, rounded by mean-preserving
# spreads. A pair (P, Q) is the distribution of Y = dP/dQ under Q, and delta in either order is the
# mean of a convex function of Y: of (Y - e^eps)_+ for P against Q, of (1 - e^eps Y)_+ for Q against
# P. Moving the mass of a point to its two neighbours on a grid with its mean preserved raises the
# mean of every convex function: the rounded pair dominates in both orders at once, and dominance
# survives averages of independent ratios and adaptive composition (Jensen, one factor at a time).
# **Guarantee:** every distribution here dominates the exact one up to floating point: masses up to
# a relative ``mass_error``, and the ratios at which they stand up to a relative ``ratio_error``.
# All sums are of non-negative terms, so that no cancellation makes the errors larger; a weight that
# is slightly wrong is the right one of a ratio slightly moved.

UNIT = 2.0**-53
_ROWS = 16
"""Rows of products that are added in one go."""


@dataclass(frozen=True, eq=False)
class RatioGrid:
    """Distribution of dP/dQ: Q-mass ``mass[i]`` at ``value[i]`` (increasing), P-mass ``lost`` where
    the ratio is infinite.

    sum(mass) = 1 and sum(mass value) + lost = 1, up to the errors. ``trimmed``: what means of it
    lose at either end.
    """

    value: Array
    mass: Array
    lost: float
    mass_error: float
    ratio_error: float
    trimmed: float = TRIMMED

    def mix(self, share: float) -> RatioGrid:
        """Return the distribution of ``share`` Y + 1 - ``share``."""
        return replace(
            self,
            value=share * self.value + (1 - share),
            lost=share * self.lost,
            ratio_error=self.ratio_error + 4 * UNIT,
        )

    def variances(self) -> tuple[float, float]:
        """Return the variances of the finite losses log(dP/dQ), under P and under Q."""
        keep = self.value > 0
        loss, q = np.log(self.value[keep]), self.mass[keep]
        p = q * self.value[keep]
        p, q = p / p.sum(), q / q.sum()
        return float((p * (loss - (p * loss).sum()) ** 2).sum()), float(
            (q * (loss - (q * loss).sum()) ** 2).sum()
        )


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
    """Normal masses below, between and above ``at``, and the largest relative error of those
    between.

    Differences of tails on the nearer side; scipy's are good to 8 u (1 + z^2), and ``at`` to what
    rounding moves it.
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
    """The mean of ``count`` independent exp(a x - a^2/2), x normal, on grids of about ``size``
    nodes.

    Means of 1, 2, 4, ... copies along the binary digits of ``count``, each rounded to a grid of its
    own.
    """
    one = lognormal(a, first_nodes(a, count, size, far=far), FAR_TRIMMED if far else TRIMMED)
    total, have = one, 1
    for digit in bin(count)[3:]:
        total, have = mean_of_two(total, total, 0.5, count / (2 * have), size), 2 * have
        if digit == "1":
            total, have = (
                mean_of_two(total, one, have / (have + 1), count / (have + 1), size),
                have + 1,
            )
    return total


def mean_of_two(one: RatioGrid, two: RatioGrid, weight: float, rest: float, size: int) -> RatioGrid:
    """``weight`` Y + (1 - ``weight``) Y' for independent Y and Y', on a grid for a mean of ``rest``
    copies of it."""
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
    return RatioGrid(
        value,
        total,
        lost,
        one.mass_error + two.mass_error + terms * UNIT,
        max(one.ratio_error, two.ratio_error) + 8 * UNIT,
        trimmed,
    )
