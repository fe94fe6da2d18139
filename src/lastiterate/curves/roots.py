"""Roots of falling functions: one search, whose result is itself checked."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

Excess = Callable[[float], float]
"""The falling function; a point holds where it is <= 0."""
Point = tuple[float, float]
"""A point, and the excess that was seen there."""


@dataclass(frozen=True)
class Root:
    """A point where the function was seen to be <= 0, and about how steeply (> 0) it falls there."""

    at: float
    slope: float


def smallest_true(
    holds: Callable[[float], bool], low: float, high: float, tolerance: float = 1e-12
) -> float:
    """A point where ``holds`` is true, within ``tolerance`` (relative, and absolute near 0) of
    where it turns true.

    The returned point was itself evaluated as true; infinite where ``holds(high)`` is false.
    Nothing is known but the side: it is found by halves.
    """
    if holds(low):
        return low
    if not holds(high):
        return math.inf
    ends = (low, math.inf), (high, -math.inf)
    return _narrow_bracket(
        lambda x: -math.inf if holds(x) else math.inf, *ends, relative=tolerance, absolute=1e-300
    )[1][0]


def first_within(
    values: Callable[[float], float],
    level: float,
    low: float,
    high: float,
    tolerance: float = 1e-12,
) -> float:
    """Return where ``values``, which fall, are at most ``level``; infinite where they exceed it at
    ``high``.

    It is ``smallest_true`` of that, evaluated a third as often.
    """

    def excess(x: float) -> float:
        value = values(x)
        away = math.log(max(value, 1e-300) / max(level, 1e-300))
        return min(away, -1e-300) if value <= level else max(away, 1e-300)

    above = excess(low)
    if above < 0:
        return low
    below = excess(high)
    if not below <= 0:  # NaN certifies nothing either
        return math.inf
    ends = (low, above), (high, below)
    return _narrow_bracket(excess, *ends, relative=tolerance, absolute=1e-300)[1][0]


def find_falling_root(
    excess: Excess,
    start: float,
    slope: float,
    *,
    enough: float,
    tries: int,
    longest: float,
    farthest: float,
    least: float,
) -> Root | None:
    """Search from ``start`` until -enough < excess <= 0, the bracket is ``least`` wide, or
    ``tries`` are used up.

    ``slope``: a guess of how steeply it falls. Secants until both signs were seen, no step longer
    than ``longest`` (all half longer at each), between -``farthest`` and ``farthest``. ``None``
    where no point with excess <= 0 was seen.
    """
    seen: dict[bool, Point] = {}  # by whether the excess is <= 0
    x, stretch = start, 1.0
    last: Point | None = None
    for tried in range(1, tries + 1):
        value = excess(x)
        if last is not None and (last[1] - value) / (x - last[0]) > 0:
            slope = (last[1] - value) / (x - last[0])
        seen[value <= 0] = last = x, value
        if len(seen) == 2:
            low, high = _narrow_bracket(
                excess, seen[False], seen[True], absolute=least, enough=enough, tries=tries - tried
            )
            return Root(high[0], (low[1] - high[1]) / (high[0] - low[0]))
        move = (value + enough / 2) / slope + (-least if value <= 0 else least)
        x = min(max(x + stretch * min(max(move, -longest), longest), -farthest), farthest)
        if x == last[0] or -enough < value <= 0:
            break
        stretch *= 1.5
    return Root(seen[True][0], slope) if True in seen else None


def _narrow_bracket(
    excess: Excess,
    low: Point,
    high: Point,
    *,
    relative: float = 0.0,
    absolute: float,
    enough: float = 0.0,
    tries: int = 10_000,
) -> tuple[Point, Point]:
    """Both ends of a bracket, ``low`` above 0 and ``high`` not, drawn together around where the
    excess is -enough / 2.

    Secants. The end that stays counts half (the Illinois rule); a point keeps half the tolerance
    away from both ends, so that the second of two next to the root closes the bracket; where four
    points have not halved the bracket, or the excess is infinite, its middle comes next.
    """
    weights = [low[1] + enough / 2, -high[1] - enough / 2]
    widths, stayed = [high[0] - low[0]], -1
    for _ in range(tries):
        width = absolute + relative * high[0]
        if widths[-1] <= width or -enough < high[1] <= 0:
            break
        slow = len(widths) > 4 and widths[-1] > widths[-5] / 2
        share = weights[0] / sum(weights) if not slow and sum(weights) < math.inf else 0.5
        point = min(max(low[0] + share * widths[-1], low[0] + width / 2), high[0] - width / 2)
        if not low[0] < point < high[0]:
            break
        value = excess(point)
        stays = 0 if value <= 0 else 1
        low, high = (low, (point, value)) if stays == 0 else ((point, value), high)
        weights[1 - stays] = value + enough / 2 if stays else -value - enough / 2
        weights[stays] /= 2 if stays == stayed else 1
        stayed = stays
        widths.append(high[0] - low[0])
    return low, high
