"""Closed forms as balls: Gaussian trade-offs, their mixtures, Renyi conversions, and curves made of
other curves.

Every ``delta`` is an upper end: closed forms are evaluated with python-flint's ball arithmetic at
160 bits and the upper end of the ball is returned. ``epsilon`` searches with ordinary floats and
then confirms the number that it returns with ``delta``, so that no rounding of the search can make
it too small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from flint import arb, ctx
from scipy.special import log_ndtr

ctx.prec = 160
BEYOND = 1e6
"""An epsilon that no statement needs: a search gives up here."""
TOO_MANY = 1500
"""Parts of a mixture that are evaluated one by one; more are first rounded up to marks 0.02 %
apart."""


def up(value: arb | float) -> float:
    """The least float that is surely not below ``value``, or the next one."""
    if isinstance(value, float):
        return value
    top = value.mid() + value.rad()
    return math.nextafter(float(top), math.inf) if top.is_finite() else math.inf


def down(value: arb) -> float:
    """The largest float that is surely not above ``value``, or the one before it."""
    bottom = value.mid() - value.rad()
    return math.nextafter(float(bottom), -math.inf) if bottom.is_finite() else -math.inf


def normal_tail(x: arb) -> arb:
    """P[N(0, 1) > x] as a ball."""
    return (x / arb(2).sqrt()).erfc() / 2


def gaussian_delta(mu: float | arb, epsilon: float) -> arb:
    """The curve of mu-Gaussian differential privacy at any real epsilon (Dong, Roth, Su 2022,
    Corollary 2.13)."""
    mu, e = arb(mu), arb(epsilon)
    return normal_tail(e / mu - mu / 2) - e.exp() * normal_tail(e / mu + mu / 2)


def rough_delta(mu: np.ndarray, epsilon: float) -> np.ndarray:
    """The same in floats: good to a few digits, for searches only."""
    first = log_ndtr(mu / 2 - epsilon / mu)
    second = epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    return -np.exp(first) * np.expm1(np.where(first > -1e5, np.minimum(second - first, 0), 0))


class Curve:
    """An upper bound on delta for every epsilon >= 0, in both orders of every pair of
    neighbours."""

    def delta(self, epsilon: float) -> float:
        """Return an upper end of delta at ``epsilon``."""
        raise NotImplementedError

    def orders(self, epsilon: float) -> tuple[float, float]:
        """Return upper ends of delta in both orders: the record removed, the record added."""
        both = self.delta(epsilon)
        return both, both

    def epsilon(self, delta: float, near: float | None = None) -> float:
        """Return an epsilon at which the curve was seen to be at most ``delta``, or infinity.

        ``near``: a guess, from which the search begins.
        """
        return least_epsilon(self.delta, delta, near)

    def divergence(self, order: float) -> float:
        """Return a bound on the Renyi divergence of that order; infinite where none is known."""
        return math.inf

    def with_gaussian(self, mu: float) -> Curve:
        """Return the curve of this and a mu-Gaussian mechanism on the same data."""
        raise NotImplementedError(f"a Gaussian mechanism beside {type(self).__name__}")

    def group(self, size: int) -> Curve:
        """Return the curve for ``size`` records at once."""
        return self if size == 1 else Grouped(self, size)


def least_epsilon(
    sure: Callable[[float], float], delta: float, near: float | None = None, close: float = 1e-5
) -> float:
    """The least epsilon that is found by false position on log delta; it was itself seen to
    hold."""
    low, high = 0.0, 1.0
    if near:
        high = near * 1.001
        low = near * 0.98 if sure(near * 0.98) > delta >= sure(high) else 0.0
    if low == 0.0 and sure(0.0) <= delta:
        return 0.0
    while sure(high) > delta:
        low, high = high, 2 * high
        if high > BEYOND:
            return math.inf
    at_low, at_high = (math.log(max(sure(x), 1e-300) / delta) for x in (low, high))
    for turn in range(100):
        if high - low <= close * high or high < 1e-12:
            break
        share = at_low / (at_low - at_high) if turn % 3 < 2 and at_low > at_high else 0.5
        middle = low + (high - low) * min(max(share + 0.002, 0.002), 0.998)
        value = math.log(max(sure(middle), 1e-300) / delta)
        if value <= 0:
            high, at_high = middle, value
        else:
            low, at_low = middle, value
    return high


class Mixture(Curve):
    """The pairs (J, N(mu_J, 1)) against (J, N(0, 1)), P[J = j] = weights[j]; one part is a Gaussian
    mechanism.

    Joint convexity (PROOFS I): delta(e) <= sum_j weights[j] delta_{mu_j}(e) in both orders.
    ``lost`` is the probability that nothing is known. Where there are many parts, their mu are
    rounded up.
    """

    def __init__(self, weights: Sequence[float], mus: Sequence[float], lost: float = 0.0) -> None:
        weight, mu = np.asarray(weights, dtype=float), np.asarray(mus, dtype=float)
        self.lost = lost + float(weight[~np.isfinite(mu)].sum())
        kept = (mu > 0) & np.isfinite(mu) & (weight > 0)
        weight, mu = weight[kept], np.maximum(mu[kept], 1e-9)
        if mu.size > TOO_MANY:
            marks = np.ceil(np.log(mu) / 2e-4 + 1e-3)
            values, place = np.unique(marks, return_inverse=True)
            weight, mu = np.bincount(place, weights=weight), np.exp(values * 2e-4)
        self.weights, self.mus = weight * (1 + 1e-12), mu

    @property
    def mu(self) -> float:
        """The largest mu of a part."""
        return math.inf if self.lost else float(self.mus.max(initial=0.0))

    def delta(self, epsilon: float) -> float:
        parts = zip(self.weights.tolist(), self.mus.tolist(), strict=True)
        total = sum((weight * gaussian_delta(mu, epsilon) for weight, mu in parts), arb(self.lost))
        return min(1.0, up(total))

    def epsilon(self, delta: float, near: float | None = None) -> float:
        """From a search in floats, confirmed by balls."""

        def rough(epsilon: float) -> float:
            inside = float(self.weights @ rough_delta(self.mus, epsilon)) if self.mus.size else 0.0
            return inside + self.lost

        found = least_epsilon(rough, delta, None, 1e-8)
        for raised in (0.0, 1e-9, 1e-7, 1e-6, 1e-5, 1e-4):
            if found < math.inf and self.delta(found * (1 + raised)) <= delta:
                return found * (1 + raised)
        return least_epsilon(self.delta, delta, near)

    def with_gaussian(self, mu: float) -> Mixture:
        if not self.mus.size or float(self.weights.sum()) < 1 - 1e-9:  # parts with mu = 0 come back
            rest = max(0.0, 1 - float(self.weights.sum()) - self.lost) + 1e-12
            return Mixture([*self.weights, rest], [*beside(self.mus, mu), mu], self.lost)
        return Mixture(self.weights.tolist(), beside(self.mus, mu).tolist(), self.lost)

    def divergence(self, order: float) -> float:
        if self.lost:
            return math.inf
        rest = max(0.0, 1 - float(self.weights.sum()))
        parts = zip(self.weights.tolist(), self.mus.tolist(), strict=True)
        grown = (w * (arb(order) * (order - 1) * arb(mu) ** 2 / 2).exp() for w, mu in parts)
        return max(0.0, up(sum(grown, arb(rest)).log() / (arb(order) - 1)))

    def group(self, size: int) -> Curve:
        return self if size == 1 else Best([Gaussian(self.mu * size), Grouped(self, size)])


def beside(mus: np.ndarray, mu: float) -> np.ndarray:
    """Two Gaussian mechanisms on the same data: mu adds in squares; raised above the rounding."""
    return np.hypot(mus, mu) * (1 + 1e-15)


class Gaussian(Mixture):
    """mu-Gaussian differential privacy; ``mu`` is rounded up where it is given as a ball."""

    def __init__(self, mu: float | arb) -> None:
        super().__init__([1.0], [up(arb(mu)) if isinstance(mu, arb) else mu])
        self.weights = np.ones_like(self.weights)  # exactly one part

    def with_gaussian(self, mu: float) -> Gaussian:
        return (
            Gaussian((arb(self.mu) ** 2 + arb(mu) ** 2).sqrt()) if math.isfinite(self.mu) else self
        )

    def group(self, size: int) -> Gaussian:
        return Gaussian(arb(self.mu) * size) if math.isfinite(self.mu) else self


class Renyi(Curve):
    """Renyi divergence at most ``slope * alpha`` at every order, or ``table`` (order: bound) where
    that is given.

    delta = exp((alpha - 1)(r - epsilon)) min(1, (1 - 1/alpha)^alpha / (alpha - 1)) at any order:
    Mironov 2017, Proposition 3; Canonne, Kamath, Steinke 2020, Proposition 12.
    """

    def __init__(self, slope: float = math.inf, table: dict[float, float] | None = None) -> None:
        self.slope, self.table = slope, table

    def divergence(self, order: float) -> float:
        if not self.table:
            return up(arb(self.slope) * order)
        return min((r for a, r in self.table.items() if a >= order), default=math.inf)

    def _at(self, alpha: float, epsilon: float) -> arb:
        order = arb(alpha)
        bound = arb(self.table[alpha]) if self.table else arb(self.slope) * order
        better = (1 - 1 / order) ** order / (order - 1)
        return ((order - 1) * (bound - epsilon)).exp() * (
            better if alpha > 1.5 else better.min(arb(1))
        )

    def _log(self, alpha: np.ndarray, epsilon: float) -> np.ndarray:
        bound = np.array([self.table[a] for a in alpha]) if self.table else self.slope * alpha
        better = alpha * np.log1p(-1 / alpha) - np.log(alpha - 1)
        return (alpha - 1) * (bound - epsilon) + np.minimum(better, 0)

    def _order(self, epsilon: float) -> float:
        if self.table:
            orders = np.array(list(self.table))
            return float(orders[int(np.argmin(self._log(orders, epsilon)))])
        gaps = np.geomspace(1e-6, 1e9, 4000)
        for width in (0.02, 1e-3, 1e-5):
            best = gaps[int(np.argmin(self._log(1 + gaps, epsilon)))]
            gaps = best * np.exp(np.linspace(-width, width, 400))
        return float(1 + gaps[int(np.argmin(self._log(1 + gaps, epsilon)))])

    def delta(self, epsilon: float) -> float:
        if self.slope == 0:
            return 0.0
        if not self.table and not math.isfinite(self.slope):
            return 1.0
        return min(1.0, up(self._at(self._order(epsilon), epsilon)))

    def with_gaussian(self, mu: float) -> Renyi:
        more = up(arb(mu) ** 2 / 2)
        if self.table:
            return Renyi(table={a: up(arb(r) + arb(more) * a) for a, r in self.table.items()})
        return Renyi(up(arb(self.slope) + more))

    def group(self, size: int) -> Curve:
        """Mironov 2017, Proposition 2: order alpha at 3^c times the bound of order 2^c alpha,
        size at most 2^c. A line at all orders has size^2 times its slope: Bun and Steinke 2016,
        Proposition 1.9.
        """
        if not self.table:
            return Renyi(up(arb(self.slope) * size**2))
        doubled = math.ceil(math.log2(size))
        kept = {a: r for a, r in self.table.items() if a >= 2 ** (doubled + 1)}
        return Renyi(table={a / 2**doubled: up(arb(3) ** doubled * r) for a, r in kept.items()})


class Failing(Curve):
    """``curve``, except with probability ``failure`` for either neighbour: failures add to
    delta."""

    def __init__(self, curve: Curve, failure: float) -> None:
        self.curve, self.failure = curve, failure

    def delta(self, epsilon: float) -> float:
        return min(1.0, (self.curve.delta(epsilon) + self.failure) * (1 + 1e-15))

    def orders(self, epsilon: float) -> tuple[float, float]:
        one, two = self.curve.orders(epsilon)
        return min(1.0, (one + self.failure) * (1 + 1e-15)), min(
            1.0, (two + self.failure) * (1 + 1e-15)
        )

    def epsilon(self, delta: float, near: float | None = None) -> float:
        left = delta * (1 - 1e-15) - self.failure * (1 + 1e-14)
        return self.curve.epsilon(left, near) if left > 0 else math.inf

    def with_gaussian(self, mu: float) -> Failing:
        return Failing(self.curve.with_gaussian(mu), self.failure)


class Best(Curve):
    """The smallest of several curves, each of which holds."""

    def __init__(self, curves: Sequence[Curve]) -> None:
        self.curves = tuple(curves)

    def delta(self, epsilon: float) -> float:
        return min(curve.delta(epsilon) for curve in self.curves)

    def orders(self, epsilon: float) -> tuple[float, float]:
        both = [curve.orders(epsilon) for curve in self.curves]
        return min(one for one, _ in both), min(two for _, two in both)

    def epsilon(self, delta: float, near: float | None = None) -> float:
        return min(curve.epsilon(delta, near) for curve in self.curves)

    def divergence(self, order: float) -> float:
        return min(curve.divergence(order) for curve in self.curves)

    def group(self, size: int) -> Curve:
        return Best([curve.group(size) for curve in self.curves])

    def with_gaussian(self, mu: float) -> Best:
        return Best([curve.with_gaussian(mu) for curve in self.curves])


class Worst(Curve):
    """One of several mechanisms, whichever: the one that a record is part of."""

    def __init__(self, curves: Sequence[Curve]) -> None:
        self.curves = tuple(curves)

    def delta(self, epsilon: float) -> float:
        return max(curve.delta(epsilon) for curve in self.curves)

    def epsilon(self, delta: float, near: float | None = None) -> float:
        return max(curve.epsilon(delta, near) for curve in self.curves)

    def divergence(self, order: float) -> float:
        return max(curve.divergence(order) for curve in self.curves)

    def with_gaussian(self, mu: float) -> Worst:
        return Worst([curve.with_gaussian(mu) for curve in self.curves])


class Grouped(Curve):
    """``size`` records one after the other: delta(k e) <= delta_1(e) (1 + e^e + ... + e^((k - 1)
    e))."""

    def __init__(self, curve: Curve, size: int) -> None:
        self.curve, self.size = curve, size

    def delta(self, epsilon: float) -> float:
        part = math.nextafter(epsilon / self.size, 0.0)
        one = self.curve.delta(part)
        if one == 0.0:
            return 0.0
        powers = (
            sum(((arb(part) * power).exp() for power in range(self.size)), arb(0))
            if self.size <= 64
            else ((arb(part) * self.size).exp() - 1) / (arb(part).exp() - 1)
            if part > 1e-9
            else arb(2 * self.size)
        )
        return min(1.0, up(powers * one))

    def group(self, size: int) -> Curve:
        return self if size == 1 else Grouped(self.curve, self.size * size)


class Exchanged(Curve):
    """One record removed, then another one added: delta(e) <= min over x of removed(x) + e^x
    added(e - x).

    The triangle inequality of hockey-stick divergences, in either order of the two steps; the
    splits that are tried are points of a grid, and each is valid.
    """

    def __init__(self, curve: Curve) -> None:
        self.curve = curve
        self.table = lru_cache(maxsize=4096)(curve.orders)

    def delta(self, epsilon: float) -> float:
        best, low, high = 1.0, 0.0, 1.0
        for count in (9, 7, 7, 7):
            shares = np.linspace(low, high, count)
            tried = [self._through(epsilon, float(share)) for share in shares]
            place = int(np.argmin(tried))
            best = min(best, tried[place])
            low, high = float(shares[max(0, place - 1)]), float(shares[min(count - 1, place + 1)])
        return best

    def _through(self, epsilon: float, share: float) -> float:
        first = epsilon * share
        rest = math.nextafter(epsilon - first, 0.0) if epsilon > first else 0.0
        removed, added = self.table(first)[0], self.table(rest)[1]
        return min(1.0, up(arb(removed) + arb(first).exp() * added))
