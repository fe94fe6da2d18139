"""Closed forms as balls: Gaussian trade-offs, their mixtures, Renyi conversions, and curves made of
other curves.

Every ``delta`` is an upper end: closed forms are evaluated with python-flint's ball arithmetic at
160 bits and the upper end of the ball is returned. ``epsilon`` returns a number at which ``delta``
was evaluated, so that no rounding of the search can make it too small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from flint import arb, ctx

ctx.prec = 160
BEYOND = 1e6
"""An epsilon that no statement needs: a search gives up here."""
TOO_MANY = 1500
"""Parts of a mixture that are evaluated one by one; more are first rounded up to marks 0.02 %
apart."""


Array = np.ndarray


def up(value: arb | float) -> float:
    """The least float that is surely not below ``value``, or the next one."""
    if isinstance(value, float):
        return value
    top = value.mid() + value.rad()
    return math.nextafter(float(top), math.inf) if top.is_finite() else math.inf


def normal_tail(x: arb) -> arb:
    """P[N(0, 1) > x] as a ball."""
    return (x / arb(2).sqrt()).erfc() / 2


def gaussian_delta(mu: float | arb, epsilon: float) -> arb:
    """The curve of mu-Gaussian differential privacy at any real epsilon (Dong, Roth, Su 2022,
    Corollary 2.13)."""
    mu, e = arb(mu), arb(epsilon)
    return normal_tail(e / mu - mu / 2) - e.exp() * normal_tail(e / mu + mu / 2)


class Curve:
    """Upper bounds on delta for every epsilon >= 0; a class has ``delta`` or ``orders``."""

    def delta(self, epsilon: float) -> float:
        """Return an upper end of delta at ``epsilon``, in both orders of every pair."""
        return max(self.orders(epsilon))

    def orders(self, epsilon: float) -> tuple[float, float]:
        """Return upper ends of delta in both orders: the record removed, the record added."""
        both = self.delta(epsilon)
        return both, both

    def epsilon(self, delta: float, near: float | None = None) -> float:
        """Return an epsilon at which the curve was seen to be at most ``delta``, or infinity.

        ``near``: a guess. False position on log delta, within a factor of 1 + 1e-5.
        """

        def excess(epsilon: float) -> float:
            return math.log(max(self.delta(epsilon), 1e-300) / delta)

        low, high = (near * 0.98, near * 1.001) if near else (0.0, 1.0)
        if excess(low) <= 0:
            low, high = 0.0, low
            if excess(0.0) <= 0:
                return 0.0
        while excess(high) > 0:
            low, high = high, 2 * high
            if high > BEYOND:
                return math.inf
        at_low, at_high, turn = excess(low), excess(high), 0
        while high - low > 1e-5 * high and high > 1e-12 and turn < 100:
            turn += 1
            share = at_low / (at_low - at_high) if turn % 3 and at_low > at_high else 0.5
            middle = low + (high - low) * min(share + 0.002, 0.998)
            value = excess(middle)
            if value <= 0:
                high, at_high = middle, value
            else:
                low, at_low = middle, value
        return high

    def deltas(self, points: Array) -> list[float]:
        """Return ``delta`` at even points that begin at 0."""
        return [self.delta(epsilon) for epsilon in points.tolist()]

    def divergence(self, order: float) -> float:
        """Return a bound on the Renyi divergence of that order; infinite where none is known."""
        return math.inf

    def with_gaussian(self, mu: float) -> Curve:
        """Return the curve of this and a mu-Gaussian mechanism on the same data."""
        raise NotImplementedError(f"a Gaussian mechanism composed with {type(self).__name__}")

    def group(self, size: int) -> Curve:
        """Return the curve for ``size`` records at once."""
        return self if size == 1 else Grouped(self, size)


class Mixture(Curve):
    """The pairs (J, N(mu_J, 1)) against (J, N(0, 1)), P[J = j] = weights[j].

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
        self.weights, self.mus = weight if weight.size == 1 else weight * (1 + 1e-12), mu
        self.mu = math.inf if self.lost else float(mu.max(initial=0.0))

    def sum_of(self, value: Callable[[float], arb], rest: float) -> arb:
        """The mean of value(mu) over the parts, as a ball, and ``rest``."""
        parts = zip(self.weights.tolist(), self.mus.tolist(), strict=True)
        return sum((weight * value(mu) for weight, mu in parts), arb(rest))

    def delta(self, epsilon: float) -> float:
        return min(1.0, up(self.sum_of(lambda mu: gaussian_delta(mu, epsilon), self.lost)))

    def with_gaussian(self, mu: float) -> Mixture:
        rest = max(0.0, 1 - float(self.weights.sum()) - self.lost)  # of parts with mu = 0
        weights = [*self.weights.tolist(), rest + 1e-12 if rest > 1e-9 else 0.0]
        return Mixture(weights, [*(np.hypot(self.mus, mu) * (1 + 1e-15)).tolist(), mu], self.lost)

    def divergence(self, order: float) -> float:
        if self.lost:
            return math.inf
        twice = arb(order) * (order - 1)
        rest = max(0.0, 1 - float(self.weights.sum()))
        moment = self.sum_of(lambda mu: (twice * arb(mu) ** 2 / 2).exp(), rest)
        return max(0.0, up(moment.log() / (arb(order) - 1)))

    def group(self, size: int) -> Curve:
        if size == 1 or self.mu == 0:
            return self
        whole = Gaussian(arb(self.mu) * size)  # a mixture is as private as its worst part
        return whole if self.mus.size == 1 else Best([whole, Grouped(self, size)])


def Gaussian(mu: float | arb) -> Mixture:
    """mu-Gaussian differential privacy; ``mu`` is rounded up where it is given as a ball."""
    return Mixture([1.0], [up(mu)])


class Renyi(Curve):
    """Renyi divergence at most ``slope * alpha`` at every order, or ``table`` (order: bound) where
    that is given.

    delta = exp((alpha - 1)(r - epsilon)) min(1, (1 - 1/alpha)^alpha / (alpha - 1)) at any order:
    Mironov 2017, Proposition 3; Canonne, Kamath, Steinke 2020, Proposition 12. It is at most
    sqrt(r / 2), too, since no order's divergence lies below that of order 1 (Pinsker).
    """

    def __init__(self, slope: float = math.inf, table: dict[float, float] | None = None) -> None:
        self.slope, self.table = slope, table
        # the exponent is flat at its least: orders 0.2 % apart are as good as all of them
        self.orders_tried = np.array(list(table)) if table else 1 + np.geomspace(1e-6, 1e9, 17000)
        self.bounds = np.array(list(table.values())) if table else slope * self.orders_tried

    def divergence(self, order: float) -> float:
        if not self.table:
            return up(arb(self.slope) * order)
        return min((r for a, r in self.table.items() if a >= order), default=math.inf)

    def delta(self, epsilon: float) -> float:
        if not np.isfinite(self.bounds).any():
            return 1.0
        orders = self.orders_tried
        rough = orders * np.log1p(-1 / orders) - np.log(orders - 1)
        best = int(np.argmin((orders - 1) * (self.bounds - epsilon) + np.minimum(rough, 0)))
        order = arb(float(orders[best]))
        bound = arb(float(self.bounds[best])) if self.table else arb(self.slope) * order
        better = ((1 - 1 / order) ** order / (order - 1)).min(arb(1))
        total = (arb(float(self.bounds.min())) / 2).sqrt()  # of variation: Pinsker's inequality
        return min(1.0, up(((order - 1) * (bound - epsilon)).exp() * better), up(total))

    def with_gaussian(self, mu: float) -> Renyi:
        more = arb(mu) ** 2 / 2
        if not self.table:
            return Renyi(up(arb(self.slope) + more))
        return Renyi(table={a: up(arb(r) + more * a) for a, r in self.table.items()})

    def group(self, size: int) -> Curve:
        """Bun and Steinke 2016, Proposition 1.9: size^2 times the slope."""
        return Curve.group(self, size) if self.table else Renyi(up(arb(self.slope) * size**2))


class Failing(Curve):
    """``curve``, except with probability ``failure`` for either neighbour: failures add to
    delta."""

    def __init__(self, curve: Curve, failure: float) -> None:
        self.curve, self.failure = curve, failure

    def orders(self, epsilon: float) -> tuple[float, float]:
        one, two = self.curve.orders(epsilon)
        return tuple(min(1.0, (x + self.failure) * (1 + 1e-15)) for x in (one, two))

    def with_gaussian(self, mu: float) -> Failing:
        return Failing(self.curve.with_gaussian(mu), self.failure)


class Best(Curve):
    """The smallest of several curves, each of which holds; ``choose`` is max where one of them
    holds, whichever: that of the mechanism which a record is part of."""

    def __init__(self, curves: Sequence[Curve], choose: Callable = min) -> None:
        self.curves, self.choose = tuple(curves), choose

    def orders(self, epsilon: float) -> tuple[float, float]:
        both = [curve.orders(epsilon) for curve in self.curves]
        return self.choose(one for one, _ in both), self.choose(two for _, two in both)

    def epsilon(self, delta: float, near: float | None = None) -> float:
        return self.choose(curve.epsilon(delta, near) for curve in self.curves)

    def divergence(self, order: float) -> float:
        return self.choose(curve.divergence(order) for curve in self.curves)

    def with_gaussian(self, mu: float) -> Best:
        return Best([curve.with_gaussian(mu) for curve in self.curves], self.choose)

    def group(self, size: int) -> Curve:
        return Best([curve.group(size) for curve in self.curves], self.choose)


class Grouped(Curve):
    """``size`` records one after the other: delta(k e) <= delta_1(e) (1 + e^e + ... + e^((k - 1)
    e))."""

    def __init__(self, curve: Curve, size: int) -> None:
        self.curve, self.size = curve, size

    def delta(self, epsilon: float) -> float:
        part = max(math.nextafter(epsilon / self.size, 0.0), 0.0)
        powers = (arb(part) * self.size).expm1() / arb(part).expm1() if part else arb(self.size)
        return min(1.0, up(powers * self.curve.delta(part)))


class Exchanged(Curve):
    """One record removed, then another one added: delta(e) <= min over x of removed(x) + e^x
    added(e - x).

    The triangle inequality of hockey-stick divergences, in either order of the two steps; the
    splits that are tried are points of a grid, and each is valid.
    """

    def __init__(self, curve: Curve) -> None:
        self.table = lru_cache(maxsize=4096)(curve.orders)

    def delta(self, epsilon: float) -> float:
        best, low, high = 1.0, 0.0, 1.0
        for count in (9, 7, 7, 7):
            shares = np.linspace(low, high, count).tolist()
            tried = [self._through(epsilon, share) for share in shares]
            place = int(np.argmin(tried))
            best = min(best, tried[place])
            low, high = shares[max(0, place - 1)], shares[min(count - 1, place + 1)]
        return best

    def deltas(self, points: Array) -> list[float]:
        """Splits at the points themselves, whose sums miss the points by less than 1e-12."""
        removed, added = np.array([self.table(epsilon) for epsilon in points.tolist()]).T
        weights = np.exp(points)
        sums = (removed[: i + 1] + weights[: i + 1] * added[i::-1] for i in range(points.size))
        return [min(1.0, float(one.min()) * (1 + 1e-12) + 1e-12) for one in sums]

    def _through(self, epsilon: float, share: float) -> float:
        first = epsilon * share
        rest = max(0.0, math.nextafter(epsilon - first, 0.0))
        removed, added = self.table(first)[0], self.table(rest)[1]
        return min(1.0, up(arb(removed) + arb(first).exp() * added))
