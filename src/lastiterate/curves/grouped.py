"""Groups of records, and records that are exchanged, by the triangle inequality; epsilon by a confirmed search."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from lastiterate.curves.curve import UP, Curve, EpsDelta, check_delta
from lastiterate.curves.roots import first_within


@final
@dataclass(frozen=True)
class Grouped(Curve):
    """Group privacy by the triangle inequality: delta_k(k e) <= delta(e) (1 + e^e + ... + e^((k - 1) e))."""

    curve: Curve
    size: int

    def delta(self, epsilon: float) -> float:
        part = epsilon / self.size
        return EpsDelta(part, self.curve.delta(part)).group(self.size).at_delta

    def epsilon(self, delta: float) -> float:
        check_delta(delta)
        return confirmed_epsilon(self, delta)

    def rdp(self, alpha: float) -> float:
        c = max(0, math.ceil(math.log2(self.size)))  # Mironov 2017, Proposition 2
        return 3**c * self.curve.rdp(alpha * 2**c) * UP if alpha >= 2 else self.rdp(2.0)

    def group(self, size: int) -> Grouped:
        return Grouped(self.curve, self.size * size)


def confirmed_epsilon(curve: Curve, delta: float) -> float:
    """An epsilon that was itself seen to have at most ``delta``; infinite where none is found below 1e5."""
    low, high = 0.0, 0.25
    while curve.delta(high) > delta:
        low, high = high, 2 * high
        if high > 1e5:
            return math.inf
    return first_within(curve.delta, delta, low, high, 1e-9)
