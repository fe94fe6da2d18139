"""The numbers of a report's pictures: the trade-off of tests, and epsilon over steps."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lastiterate.accounting.certificate import Certificate, account
from lastiterate.accounting.stated import true_positive_rate
from lastiterate.curves.curve import Curve
from lastiterate.curves.lower_bound import LowerBound
from lastiterate.errors import InputError
from lastiterate.theorems.theorem import Applies, Kind

RATES = tuple(
    sorted({*(10 ** (-4 + i / 8) for i in range(32)), 0.001, 0.01, 0.1, *(i / 20 for i in range(3, 20)), 1.0})
)
"""False-positive rates at which a report states what a test can reach."""
GRID = tuple(i / 16 for i in range(200))
"""Epsilons at which a lower bound is read, 0 first."""
COUNTS = 12
"""Numbers of steps at which a report accounts for the run."""


@dataclass(frozen=True)
class Test:
    """At ``rate`` false positives: what no test exceeds, and what some test reaches for the worst loss of the class."""

    rate: float
    at_most: float
    at_least: float | None


def tests(curve: Curve, lower: LowerBound | None, delta: float) -> tuple[Test, ...]:
    """Certified and reached true-positive rates at all of ``RATES``."""
    deltas = None if lower is None else [lower.delta(epsilon) for epsilon in GRID]
    return tuple(Test(rate, 1.0 if rate == 1 else true_positive_rate(curve, rate, delta),
                      None if deltas is None else reached(deltas, rate)) for rate in RATES)


def reached(deltas: list[float], rate: float) -> float:
    """A true-positive rate that the best test has at least, given lower bounds ``deltas`` on its delta at ``GRID``.

    The best rate is the least of e^epsilon rate + delta(epsilon) over all epsilon. Between two points of the grid the
    first term is at least its left value and the second at least its right one; left of 0, where slopes are below 1,
    the test that is best at 0 and the one that always says yes give (1 - delta(0)) rate + delta(0).
    """
    pairs = zip(GRID, (*deltas[1:], 0.0), strict=True)
    least = min(math.exp(epsilon) * rate + after for epsilon, after in pairs)
    return max(rate, min(least, (1 - deltas[0]) * rate + deltas[0]) * (1 - 1e-9))


def strongest(certificate: Certificate, delta: float) -> LowerBound | None:
    """The lower bound that says most at ``delta``."""
    bounds = [v.result.bound for v in certificate.verdicts if isinstance(v.result, Applies)
              and isinstance(v.result.bound, LowerBound)]
    return max(bounds, key=lambda bound: bound.epsilon(delta), default=None)


FAMILIES = ("last iterate", "sampling", "composition")


def family(name: str) -> str:
    """What a theorem charges for: every step, the drawing of batches, or the last iterate alone."""
    if name.startswith("composition"):
        return "composition"
    return "sampling" if name.endswith(("-pld", "-rdp", "-amplified")) else "last iterate"


@dataclass(frozen=True)
class Line:
    """Epsilon over steps, where it is finite: of a theorem, of the best of a family, or of the best lower bound."""

    name: str
    kind: Kind
    steps: tuple[int, ...]
    epsilons: tuple[float, ...]


def over_steps(certificate: Certificate, delta: float, counts: int = COUNTS) -> tuple[Line, ...]:
    """One line per family, and one of what some loss of the class leaks, up to the run's own number of steps."""
    run = certificate.run
    counts = counts // 2 if certificate.expensive else counts
    grid = sorted({max(1, round(run.steps ** (i / (counts - 1)))) for i in range(counts)})
    lines: dict[str, dict[int, float]] = {}
    for count in grid:
        try:
            at = certificate if count == run.steps else account(run.shortened(count), at_least=certificate.at_least)
        except InputError:  # no statement about that few steps: the line begins later
            continue
        for verdict in at.certifying:
            line, epsilon = lines.setdefault(family(verdict.theorem.name), {}), at.curve(verdict).epsilon(delta)
            if math.isfinite(epsilon):
                line[count] = min(line.get(count, math.inf), epsilon)
        if 0 < (lower := at.lower(delta)) < math.inf:  # infinite before the first noise
            lines.setdefault("lower bound", {})[count] = lower
    order = [name for name in (*FAMILIES, "lower bound") if lines.get(name)]
    return tuple(Line(name, "lower" if name == "lower bound" else "upper", tuple(lines[name]),
                      tuple(lines[name].values())) for name in order)
