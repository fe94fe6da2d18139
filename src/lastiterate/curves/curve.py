"""Privacy curves, groups and exchanges of records, and guarantees that hold up to a probability."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, final

import numpy as np

from lastiterate.curves.roots import first_within
from lastiterate.errors import InputError
from lastiterate.run import serialization
from lastiterate.run.validation import Array, check_interval, nonnegative

# Privacy curves: what an adversary may learn, as delta(epsilon), epsilon(delta) and Renyi
# divergence.  **Guarantee:** every returned value is an upper end; searches return the side on
# which the guarantee holds.

UP = 1 + 1e-12
"""Inflation of closed forms made of a few correctly rounded, well-conditioned operations."""
LEAST_DELTA = 1e-300
"""The smallest delta that is asked for: below it doubles lose their digits."""
TINY = 1e-305
"""The value of a positive delta that is smaller still. Curves that add up many of them stay below
``LEAST_DELTA``, so that an epsilon is found there too."""


class Curve(ABC):
    """An upper bound on the privacy loss of a mechanism, in both directions of the neighbouring
    pair.

    Every value is rounded up; logarithms are natural.
    """

    @abstractmethod
    def delta(self, epsilon: float) -> float:
        """Upper bound on delta at ``epsilon`` >= 0."""

    def directions(self, epsilon: float) -> tuple[float, float]:
        """The same for each order of the pair: the record is in the first data set alone, and in
        the second alone."""
        delta = self.delta(epsilon)
        return delta, delta

    def profile(self, epsilons: Array) -> Array:
        """``directions`` at every one of rising ``epsilons``; shape (points, 2)."""
        return np.array([self.directions(float(epsilon)) for epsilon in epsilons])

    def log_profile(self, epsilons: Array) -> Array:
        """Logarithms of ``profile``: what groups multiply by e^epsilon. Curves whose deltas fall
        below ``TINY`` where they still count give the logarithms themselves."""
        return log_of(np.maximum(self.profile(epsilons), TINY))

    def log_delta(self, epsilon: float) -> float:
        """The logarithm of an upper bound on delta; finite where delta is too small for a double."""
        return float(self.log_profile(np.array([float(epsilon)])).max())

    @abstractmethod
    def epsilon(self, delta: float) -> float:
        """Upper bound on epsilon at ``delta`` in (0, 1); may be infinite."""

    @abstractmethod
    def rdp(self, alpha: float) -> float:
        """Upper bound on the Renyi divergence of order ``alpha`` > 1; infinite where unknown."""

    @abstractmethod
    def group(self, size: int) -> Curve:
        """A curve that holds for neighbours ``size`` records apart."""

    def replace_one_curve(self) -> Curve:
        """A curve for neighbours that differ by the exchange of one record, where this one is for a
        record that is zeroed, added or removed."""
        return self.group(2)

    def coarser(self) -> Curve:
        """A looser bound on the same mechanism that is cheaper to evaluate, for searches; the curve
        itself if it is cheap. Twice coarser is cheaper still."""
        return self

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready form; ``curve_from_dict`` reads it back."""
        return serialization.encode(self)


@final
@dataclass(frozen=True)
class EpsDelta(Curve):
    """A single (epsilon, delta) guarantee and what follows from it."""

    at_epsilon: float
    at_delta: float

    def __post_init__(self) -> None:
        check_epsilon(self.at_epsilon)
        check_interval("delta", self.at_delta, 0, 1)

    def delta(self, epsilon: float) -> float:
        check_epsilon(epsilon)
        if epsilon >= self.at_epsilon:
            return self.at_delta
        # a pair at (e0, d0): P(A) - e^e Q(A) <= d0 + (e^e0 - e^e) Q(A), and Q(A) <= (1 - d0)/(1 +
        # e^e0) at the corner; both powers are divided by e^e0, which may be beyond a double
        share = -math.expm1(epsilon - self.at_epsilon) / (1 + math.exp(-self.at_epsilon))
        return min(1.0, (self.at_delta + share * (1 - self.at_delta)) * UP)

    def log_profile(self, epsilons: Array) -> Array:
        return log_of(self.profile(epsilons))  # a delta of 0 is exact

    def epsilon(self, delta: float) -> float:
        check_delta(delta)
        return self.at_epsilon if delta >= self.at_delta else math.inf

    def rdp(self, alpha: float) -> float:
        # Bun and Steinke 2016, Proposition 3.3: pure epsilon-DP is epsilon^2/2-zCDP
        return (
            min(self.at_epsilon, alpha * self.at_epsilon**2 / 2) * UP
            if self.at_delta == 0
            else math.inf
        )

    def group(self, size: int) -> EpsDelta:
        total = log_powers(self.at_epsilon, size)
        log_delta = math.log(self.at_delta) + total if self.at_delta > 0 else -math.inf
        return EpsDelta(size * self.at_epsilon * UP, from_log(log_delta))


@final
@dataclass(frozen=True)
class BestOf(Curve):
    """Several bounds on one mechanism: the smallest at every point."""

    curves: tuple[Curve, ...]

    def delta(self, epsilon: float) -> float:
        return min(curve.delta(epsilon) for curve in self.curves)

    def profile(self, epsilons: Array) -> Array:
        least = np.min([curve.profile(epsilons).max(axis=1) for curve in self.curves], axis=0)
        return np.stack([least, least], axis=1)

    def epsilon(self, delta: float) -> float:
        return min(curve.epsilon(delta) for curve in self.curves)

    def log_profile(self, epsilons: Array) -> Array:
        least = np.min([curve.log_profile(epsilons).max(axis=1) for curve in self.curves], axis=0)
        return np.stack([least, least], axis=1)

    def rdp(self, alpha: float) -> float:
        return min(curve.rdp(alpha) for curve in self.curves)

    def group(self, size: int) -> BestOf:
        return BestOf(tuple(curve.group(size) for curve in self.curves))

    def replace_one_curve(self) -> BestOf:
        return BestOf(tuple(curve.replace_one_curve() for curve in self.curves))

    def coarser(self) -> BestOf:
        return BestOf(tuple(curve.coarser() for curve in self.curves))


def log_powers(epsilon: float, size: int) -> float:
    """log(1 + e^epsilon + ... + e^((size - 1) epsilon)), rounded up: what a group multiplies delta
    by.

    (e^(size epsilon) - 1) / (e^epsilon - 1) with e^((size - 1) epsilon) taken out of it; no power
    overflows. Exponents are good to 2^-52 of themselves.
    """
    if epsilon <= 0:
        return math.log(size) + 1e-14
    whole, one = -math.expm1(-size * epsilon), -math.expm1(-epsilon)
    rest = math.log(whole / one) if one > 0 else math.log(size)
    return (size - 1) * epsilon + rest + 1e-14 + 1e-15 * size * epsilon


def log_of(deltas: Array) -> Array:
    """Logarithms of deltas, rounded up by more than their last bits: of deltas above ``TINY`` they
    are below 1000."""
    with np.errstate(divide="ignore"):
        return np.minimum(np.log(deltas) + 2e-13, 0.0)


def from_log(log_delta: float) -> float:
    """The delta of this logarithm, rounded up; 0 for minus infinity alone."""
    if log_delta == -math.inf:
        return 0.0
    return max(TINY, min(1.0, math.exp(min(log_delta, 0.0)) * UP))


def check_counts(
    counts: tuple[int, ...], values: tuple[float, ...], name: str, *, least: int = 1
) -> None:
    """Refuse values that are not numbers >= 0, or have not one positive count each."""
    if len(values) != len(counts) or len(counts) < least or not all(n >= 1 for n in counts):
        raise InputError("counts", f"need one positive entry for every {name}", counts)
    if not all(value >= 0 for value in values):
        raise InputError(f"{name}s", "must be numbers >= 0", values)


def check_mixture(weights: tuple[float, ...], values: tuple[float, ...]) -> None:
    """Refuse weights that are no probabilities of as many values."""
    if len(weights) != len(values) or not values:
        raise InputError("weights", "need one entry for every mu", len(weights))
    if not all(weight >= 0 for weight in weights) or abs(math.fsum(weights) - 1) > 1e-12:
        raise InputError("weights", "must be non-negative and sum to 1", math.fsum(weights))


def check_epsilon(epsilon: float) -> None:
    """Refuse an epsilon below 0."""
    nonnegative("epsilon", epsilon)


def check_delta(delta: float) -> None:
    """Refuse a delta outside (0, 1), and one that is too small for arithmetic."""
    if not 0 < delta < 1:
        raise InputError(
            "delta",
            "must lie strictly between 0 and 1",
            delta,
            "choose less than 1/n, such as 1e-6",
        )
    if delta < LEAST_DELTA:
        raise InputError(
            "delta",
            f"must be at least {LEAST_DELTA:g}",
            delta,
            "choose less than 1/n, such as 1e-6",
        )


# Groups and exchanges of records by the triangle inequality.

NEARBY = 1e-3
"""How far below an epsilon it is seen, relatively, whether the bound rises there."""
FARTHEST = 1e7
"""Epsilons beyond it are not looked for."""


@final
@dataclass(frozen=True)
class Grouped(Curve):
    """Group privacy by the triangle inequality: delta_k(k e) <= delta(e) (1 + e^e + ... + e^((k -
    1) e)).

    Where delta falls more slowly than powers of e^e rise, what holds at a smaller epsilon holds as
    well.
    """

    curve: Curve
    size: int

    def __post_init__(self) -> None:
        if not self.size >= 1:
            raise InputError("size", "must be at least 1", self.size)

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
        """log of the bound, which may exceed 1, where each of the ``size`` records has an epsilon
        of ``parts``."""
        powers = np.array([log_powers(float(part), self.size) for part in parts])
        # a power and what it multiplies may both be far beyond doubles: their logarithms add up
        return self.curve.log_profile(parts).max(axis=1) + powers

    def epsilon(self, delta: float) -> float:
        check_delta(delta)
        return confirm_epsilon(self, delta)

    def rdp(self, alpha: float) -> float:
        c = max(0, math.ceil(math.log2(self.size)))  # Mironov 2017, Proposition 2
        return 3**c * self.curve.rdp(alpha * 2**c) * UP if alpha >= 2 else self.rdp(2.0)

    def group(self, size: int) -> Grouped:
        return Grouped(self.curve, self.size * size)


@lru_cache(maxsize=256)
def _lowest(curve: Grouped) -> tuple[float, float]:
    """About where the bound of one record's epsilon is least, and its log there; it holds at every
    larger epsilon."""
    grid, lowest = np.geomspace(1e-3, FARTHEST, 160), (0.0, 0.0)
    for _ in range(4):
        logs = curve.at_parts(grid)
        best = int(logs.argmin())
        low, high = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, grid.size - 1)])
        lowest = float(grid[best]), float(logs[best])
        grid = np.concatenate((np.linspace(low, high, 24), grid[best : best + 1]))
    return lowest


def confirm_epsilon(curve: Curve, delta: float) -> float:
    """An epsilon that was itself seen to have at most ``delta``; infinite where none is found below
    ``FARTHEST``."""
    return search_epsilon(curve.delta, delta)


def search_epsilon(deltas: Callable[[float], float], delta: float) -> float:
    """The same for a function of epsilon."""
    low, high = 0.0, 0.25
    while not deltas(high) <= delta:  # NaN is no delta
        low, high = high, 2 * high
        if high > FARTHEST:
            return math.inf
    return first_within(deltas, delta, low, high, 1e-9)


# Replace-one from zero-out (or add-remove): one record is removed and another one added, through
# the best split.  For any x, H_eps(A || C) <= H_x(A || B) + e^x H_{eps - x}(B || C): with B the
# data without either record, delta(eps) <= min over 0 <= x <= eps of removed(x) + e^x added(eps -
# x). Each order of a pair counts with its own curve; for a Gaussian mechanism 2 mu is exact and
# better.

POINTS = 400
"""Epsilons in a part of the table of both orders; between them the curves lie below their chords in
e^epsilon."""
REACH = 3.0
"""The first part reaches to this many times the epsilon of one record at a typical delta."""
PARTS = 4
"""The table ends after so many parts, which are computed where they are asked for: beyond it the
last value counts."""
TYPICAL = (1e-6, 1e-3, 0.1, 0.5)
"""Deltas of which the first that has an epsilon says how wide the table is: a curve has one,
whatever it is asked."""


@final
@dataclass(frozen=True)
class Exchanged(Curve):
    """``curve`` for one record that is exchanged instead of zeroed, added or removed.

    **Guarantee:** both directions read one table, so that ``delta(epsilon(d))`` is at most d.
    """

    curve: Curve

    def delta(self, epsilon: float) -> float:
        check_epsilon(epsilon)
        return from_log(self.log_delta(epsilon))

    def profile(self, epsilons: Array) -> Array:
        return np.array([[from_log(log) for log in logs] for logs in self.log_profile(epsilons)])

    def log_profile(self, epsilons: Array) -> Array:
        logs = np.array(
            [
                _through_best_split(
                    _table(self.curve, _parts(self.curve, float(epsilon))), float(epsilon)
                )
                for epsilon in epsilons
            ]
        )
        return np.stack([logs, logs], axis=1)

    def epsilon(self, delta: float) -> float:
        check_delta(delta)
        one = self.curve.epsilon(max(delta / 2, LEAST_DELTA))
        if math.isinf(one):
            return math.inf
        high, last = 2 * one + 1e-9, 2 * max(_end(self.curve), 2 * one) + 1
        while self.delta(high) > delta:
            high *= 1.1
            if high > last:
                return math.inf
        return first_within(self.delta, delta, 0.0, high, 1e-9)

    def rdp(self, alpha: float) -> float:
        return self.curve.group(2).rdp(alpha)

    def group(self, size: int) -> Grouped:
        return Grouped(self, size)

    def replace_one_curve(self) -> Curve:
        raise InputError("curve", "is for an exchange already", type(self.curve).__name__)

    def coarser(self) -> Exchanged:
        return Exchanged(self.curve.coarser())


@lru_cache(maxsize=256)
def _width(curve: Curve) -> float:
    """The epsilon at which the first part of the table ends."""
    epsilons = (curve.epsilon(delta) for delta in TYPICAL)
    return REACH * next((e for e in epsilons if 0 < e < math.inf), 1.0) + 1e-9


def _end(curve: Curve) -> float:
    """The last epsilon of the whole table."""
    return _width(curve) * PARTS**1.5


def _parts(curve: Curve, epsilon: float) -> int:
    """Return how many parts reach beyond ``epsilon``: whatever else is computed changes nothing
    below it."""
    share = min(epsilon / _width(curve), float(PARTS**2))
    return min(PARTS, math.floor(share ** (2 / 3) * (1 + 1e-12)) + 1)


@lru_cache(maxsize=128)
def _part(curve: Curve, number: int) -> tuple[Array, Array]:
    """Epsilons i^1.5, i in units of a part, and log delta of both orders; shapes (POINTS,),
    (POINTS, 2)."""
    grid = _width(curve) * (number + np.arange(1, POINTS + 1) / POINTS) ** 1.5
    return grid, curve.log_profile(grid)


@lru_cache(maxsize=32)
def _table(curve: Curve, parts: int) -> tuple[Array, Array, Array]:
    """Epsilons from 0 on, denser near 0, and log delta of both orders."""
    begin = (np.zeros(1), curve.log_profile(np.zeros(1)))
    grids, deltas = zip(begin, *(_part(curve, number) for number in range(parts)), strict=True)
    # delta never increases: what rounding adds at one epsilon need not count beyond it
    falling = np.minimum.accumulate(np.concatenate(deltas), axis=0)
    return np.concatenate(grids), falling[:, 0], falling[:, 1]


def _through_best_split(table: tuple[Array, Array, Array], epsilon: float) -> float:
    """log of the min over tabled x <= epsilon of removed(x) + e^x added(epsilon - x), and with the
    roles of the grid exchanged. All in logarithms: neither e^x overflows nor what it multiplies
    underflows."""
    grid, removed, added = table
    first = grid[: int(np.searchsorted(grid, epsilon, side="right"))]
    rest = np.maximum(epsilon * (1 - 1e-15) - first, 0.0)  # rounded down, where delta is larger
    one = np.logaddexp(removed[: first.size], first + _chord(grid, added, rest))
    two = np.logaddexp(_chord(grid, removed, rest), epsilon - first + added[: first.size])
    return min(0.0, float(min(one.min(), two.min())) + 1e-12 + 1e-15 * epsilon)


def _chord(grid: Array, logs: Array, at: Array) -> Array:
    """log of the values between nodes, on chords in e^epsilon; the last one beyond them."""
    node = np.minimum(np.searchsorted(grid, at, side="right") - 1, grid.size - 1)
    after = np.minimum(node + 1, grid.size - 1)
    left, right = np.maximum(at - grid[node], 0.0), np.maximum(grid[after] - at, 0.0)
    # shares (e^w - e^t) / (e^w - 1) and (e^t - 1) / (e^w - 1) of the ends, t <= w, divided by e^w
    with np.errstate(divide="ignore", invalid="ignore"):
        whole = np.log(-np.expm1(-(left + right)))
        before = np.where(after > node, np.log(-np.expm1(-right)) - whole, 0.0)
        behind = np.where(after > node, np.log(-np.expm1(-left)) - right - whole, -math.inf)
    return np.logaddexp(before + logs[node], behind + logs[after])


# Guarantees that hold except with a stated probability.


@final
@dataclass(frozen=True)
class WithFailure(Curve):
    """``curve``, except with probability ``failure``.

    **Guarantee:** for both neighbours the mechanism differs on an event of probability at most
    ``failure`` from one that ``curve`` bounds. Hence delta(epsilon) <= curve's + failure, and
    failures of several mechanisms add up.
    """

    curve: Curve
    failure: float

    def __post_init__(self) -> None:
        if not 0 <= self.failure <= 1:
            raise InputError("failure", "must be a probability", self.failure)

    def delta(self, epsilon: float) -> float:
        check_epsilon(epsilon)
        return min(1.0, (self.curve.delta(epsilon) + self.failure) * UP)

    def directions(self, epsilon: float) -> tuple[float, float]:
        one, two = self.curve.directions(epsilon)
        return min(1.0, (one + self.failure) * UP), min(1.0, (two + self.failure) * UP)

    def profile(self, epsilons: Array) -> Array:
        return np.minimum(1.0, (self.curve.profile(epsilons) + self.failure) * UP)

    def log_profile(self, epsilons: Array) -> Array:
        logs = self.curve.log_profile(epsilons)
        if self.failure == 0:
            return logs
        return np.minimum(np.logaddexp(logs, math.log(self.failure)) + 1e-12, 0.0)

    def epsilon(self, delta: float) -> float:
        check_delta(delta)
        left = delta / UP - self.failure * UP  # what the curve may use, rounded down
        return self.curve.epsilon(left) if left >= LEAST_DELTA else math.inf

    def rdp(self, alpha: float) -> float:
        # nothing bounds the divergence on the event of failure
        return self.curve.rdp(alpha) if self.failure == 0 else math.inf

    def replace_one_curve(self) -> Exchanged:
        return Exchanged(self)

    def group(self, size: int) -> Grouped:
        return Grouped(self, size)

    def coarser(self) -> WithFailure:
        return replace(self, curve=self.curve.coarser())
