"""Where the nodes of a grid for likelihood ratios go: which they are matters to accuracy and speed alone.

Numbers of a law are rounded to ``DIGITS`` binary digits before nodes are placed by them: where the last bits of another
processor's logarithms decided between two places, its bounds differed by parts in a million, and no certificate of the
one could be verified on the other.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from lastiterate.run.arrays import Array

TRIMMED = 1e-19
"""About the Q-mass below a grid and the P-mass above it, which become losses of -infinity and +infinity."""
TAIL = 9.5
"""Standard deviations of the normal law on the first grid; beyond it lie 1e-21."""
FAR_TRIMMED, FAR_TAIL = 1e-40, 13.5
"""Both for deltas that are as small as what is trimmed."""
POWER, EVEN = 0.18, 0.3
"""Nodes per interval go with mass^POWER (1/3 is best for the variance, less is better for tails); a share ``EVEN`` is
spread evenly over the logarithms."""
RARE, SPARED = 1e-7, 16
_GROUPS, _PAIRS, _EVENLY = 128, 40, 200
DIGITS = 20


class Law(Protocol):
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
    return _refined(a * z - a * a / 2, np.exp(-(middle**2) / 2), np.exp(-((middle - a) ** 2) / 2), count, size)


def nodes_of_mean(one: Law, two: Law, weight: float, rest: float, size: int, trimmed: float = TRIMMED) -> Array:
    """For the mean of two ratios, from some hundred groups of either law."""
    (y, q, low, high), (v, r, down, top) = _grouped(one), _grouped(two)
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
    return _refined(edges, np.diff(q_below), np.diff(p_below), rest, size)


def _grouped(law: Law) -> tuple[Array, Array, Array, Array]:
    """Mean ratios and masses of groups of neighbouring positive nodes, and the ends of the groups, all rounded."""
    value, mass = law.value[1:], np.maximum(law.mass[1:], 1e-300)
    starts = np.arange(0, value.size, max(1, value.size // _GROUPS))
    total = np.add.reduceat(mass, starts)
    last = np.append(starts[1:], value.size) - 1
    means = np.add.reduceat(mass * value, starts) / total
    return _short_ratios(means), _short(total), _short_ratios(value[starts]), _short_ratios(value[last])


def _short_ratios(ratios: Array) -> Array:
    """Near 1 the digits of what they are away from it: many copies with much noise have all of their means there."""
    near = np.abs(ratios - 1) < 0.5
    return np.where(near, 1 + _short(ratios - 1), _short(ratios))


def _short(numbers: Array) -> Array:
    fraction, power = np.frexp(numbers)
    return np.ldexp(np.round(np.ldexp(fraction, DIGITS)), power - DIGITS)


def _refined(edges: Array, q: Array, p: Array, rest: float, size: int) -> Array:
    """``size`` nodes from the first to the last of ``edges`` (logarithms of ratios), by what rounding costs there.

    Of the ratio the mean of ``rest`` copies will be taken: beside others of total t, a move of log y moves the loss by
    y / (t + y); ``rest`` copies are drawn under Q, one of them under P instead. ``q``, ``p``: masses of the intervals,
    in any unit.
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
    """Logarithm of a total of ``rest`` - 1 copies that they hardly ever stay below: their largest, or the sum of those
    without the ``SPARED`` largest."""
    if rest <= 1:
        return -math.inf
    below: Array = np.cumsum(q) / q.sum()
    place = int((below < RARE ** (1 / (rest - 1))).sum())
    largest = float(x[min(place, x.size - 1)])
    if rest <= 2 * SPARED:
        return largest
    kept = below <= 1 - SPARED / rest
    return max(largest, math.log(float((q[kept] * np.exp(x[kept])).sum()) / float(q.sum()) * rest + 1e-300))
