"""The least multiple of a run's noise that is certified, with few questions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from lastiterate.accounting.roots import falling_root

NEARLY = 1 + 1e-6
"""Noise is found within this factor."""
QUADRUPLINGS = 40
"""Factors of 4 that are tried in either direction."""
FARTHEST = QUADRUPLINGS * math.log(4)


def excess_of(found: float, delta: float) -> float:
    """-log(log(found) / log(delta)), positive exactly where ``found`` is above ``delta``.

    Gaussian tails make it nearly a line in the logarithm of the noise: log(found) grows with the noise's square.
    """
    value = -math.log(math.log(min(max(found, 1e-300), 1 - 1e-9)) / math.log(delta))
    return min(value, 0.0) if found <= delta else max(value, 1e-300)


@dataclass
class Factors:
    """Which multiples of the noise are certified, by an ``excess`` that is asked seldom: bounds fall with the noise."""

    excess: Callable[[float], float]
    certified: float = math.inf  #: the least that was seen to be
    refused: float = 0.0  #: the largest that was not

    def seen(self, factor: float) -> float:
        value = self.excess(factor)
        if value <= 0:
            self.certified = min(self.certified, factor)
        else:
            self.refused = max(self.refused, factor)
        return value

    def within(self, factor: float) -> bool:
        """Asked only between the two ends that were seen."""
        if self.refused < factor < self.certified:
            return self.seen(factor) <= 0
        return factor >= self.certified

    def approach(self) -> None:
        """See both ends close to each other."""
        def seen(x: float) -> float:
            return self.seen(math.exp(min(max(x, -FARTHEST), FARTHEST)))

        root = falling_root(seen, 0.0, 2.0, tolerance=4e-7, tries=25, longest=4.0)
        if root is not None:
            self.seen(math.exp(root.at - 3e-7))


def least_factor(excess: Callable[[float], float]) -> float | None:
    """The end of ``bisected`` that is certified: ``excess`` of it was seen to be at most 0.

    It is the one that bisection alone would find, in a third of the questions. Where a bound grows with the noise, what
    was seen decides nothing and bisection asks about every factor.
    """
    factors = Factors(excess)
    factors.approach()
    found = bisected(factors.within)
    if found is None or found == factors.certified or excess(found) <= 0:
        return found
    return bisected(lambda factor: excess(factor) <= 0)


def bisected(within: Callable[[float], bool]) -> float | None:
    """Bisection on the logarithm of a factor; the end that is certified is returned (within 1e-6), if there is one."""
    low = high = 1.0
    for _ in range(QUADRUPLINGS):
        if within(high):
            break
        low, high = high, high * 4
    else:
        return None
    if low == high:
        for _ in range(QUADRUPLINGS):
            low = high / 4
            if not within(low):
                break
            high = low
        else:
            return high
    while high > low * NEARLY:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if within(middle) else (middle, high)
    return high
