"""The root of a falling function whose evaluations are costly, approached from the side where it is not positive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Root:
    """A point where the function was seen to be <= 0, and about how steeply (> 0) it falls there."""

    at: float
    slope: float


def falling_root(excess: Callable[[float], float], start: float, slope: float, *, tolerance: float, tries: int,
                 longest: float, least: float = 1e-7) -> Root | None:
    """Search from ``start`` until -tolerance < excess <= 0, the bracket is ``least`` wide, or ``tries`` are used up.

    ``slope``: a guess of how steeply it falls. Secants until both signs were seen, no step longer than ``longest`` (and
    half more at each), then regula falsi with halved weights (Illinois). ``None`` where no point with excess <= 0 was
    seen.
    """
    ends: dict[bool, tuple[float, float]] = {}  # by whether the value is <= 0: the point, and the weight of its value
    x, stretch = start, 1.0
    last: tuple[float, float] | None = None
    for _ in range(tries):
        value = excess(x)
        if last is not None and x != last[0] and (last[1] - value) / (x - last[0]) > 0:
            slope = (last[1] - value) / (x - last[0])
        again = last is not None and (last[1] <= 0) == (value <= 0)
        last, good = (x, value), value <= 0
        if again and (not good) in ends:
            ends[not good] = (ends[not good][0], ends[not good][1] / 2)  # it stayed again
        ends[good] = last
        both = len(ends) == 2
        if (good and value > -tolerance) or (both and ends[True][0] - ends[False][0] < least):
            break
        if both:
            x = _between(ends[False], ends[True], tolerance)
        else:
            move = (value + tolerance / 2) / slope + (-least if good else least)
            x += stretch * min(max(move, -longest), longest)
            stretch *= 1.5
    return Root(ends[True][0], slope) if True in ends else None


def _between(bad: tuple[float, float], good: tuple[float, float], tolerance: float) -> float:
    """Where the chord reaches -tolerance / 2, kept off both ends."""
    low, high = bad[1] + tolerance / 2, good[1] + tolerance / 2
    share = low / (low - high) if high < 0 else 0.5
    return bad[0] + (good[0] - bad[0]) * min(max(share, 0.02), 0.98)
