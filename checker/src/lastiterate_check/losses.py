"""Privacy losses of pairs (P, Q) that dominate a step, rounded to the safe side and composed.

A pair is given by its cells: for losses between k h and (k + 1) h the probability of the cell under
P and under Q. The likelihood ratio Y = dP/dQ is spread, within its cell, to both ends so that its
mean under Q is kept: that raises every E_Q[(Y - g)_+], so that the rounded pair dominates (P, Q) in
both orders (connect the dots: Doroshenko et al. 2022). Both orders are composed apart, each by the
probabilities of its first member, so that no difference is ever taken.

Composition is a product of discrete Fourier transforms of the tilted law: masses times e^(t loss),
t chosen for the epsilon that is asked (exponential tilting). Tilted, the part that matters has a
probability of ordinary size, so that the rounding of the transforms, bounded below, is small beside
it for every delta. What wraps around from above is bounded by Chernoff's inequality and added; what
wraps around from below is counted where it lands, which adds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
from scipy.special import ndtr

from lastiterate_check.balls import Curve

Array = np.ndarray
REACH = 11.5
"""Normal variables are followed this far; P[N > REACH] is below 1e-30."""
RELATIVE = 1e-12
"""Relative error allowed to a probability of a cell: scipy's ndtr is good to 3e-13 (a test
compares it with balls)."""
FINE = 0.02
"""Width of cells, in standard deviations of the loss of a step: the spread adds at most (h/2)^2
to its variance."""
LONGEST = 2**21
"""Points of a transform; wider windows get wider cells."""


@dataclass(frozen=True)
class Cells:
    """Cells k = first, first + 1, ... of width h: probabilities under P and Q; what lies beyond,
    under P and Q."""

    first: int
    p: Array
    q: Array
    p_above: float = 0.0
    q_below: float = 0.0
    p_at_zero: float = 0.0  #: probability, under P and Q alike, of a loss of exactly 0
    back: Cells | None = None  #: other cells for the order in which the record is added


Pair = Callable[[float], Cells]
"""From the width h to the cells."""


def dot(one: Array, two: Array) -> float:
    """The sum of products, in one thread: libraries of linear algebra start more for it."""
    return float(np.einsum("i,i->", one, two))


def between(low: Array, high: Array) -> Array:
    """P[low < N(0, 1) < high] without cancellation: from the tail that both ends lie in."""
    flip = low > 0
    return np.maximum(ndtr(np.where(flip, -low, high)) - ndtr(np.where(flip, -high, low)), 0.0)


def sampled(rate: float, z: float) -> Pair:
    """(1 - q) N(0, 1) + q N(1/z, 1) against N(0, 1): a Poisson-sampled Gaussian step; rate 1 is
    a Gaussian one."""
    m = 1 / z

    def cells(h: float) -> Cells:
        low = max(math.log1p(-rate) if rate < 1 else -math.inf, -m * REACH - m * m / 2)
        high = float(
            np.logaddexp(
                math.log1p(-rate) if rate < 1 else -math.inf,
                math.log(rate) + m * (m + REACH) - m * m / 2,
            )
        )
        first, last = math.floor(low / h), math.ceil(high / h)
        edge = crossing(rate, m, np.arange(first, last + 1) * h)
        edge[0], edge[-1] = -math.inf, math.inf
        q = between(edge[:-1], edge[1:])
        return Cells(first, (1 - rate) * q + rate * between(edge[:-1] - m, edge[1:] - m), q)

    return cells


def crossing(rate: float, m: float, loss: Array) -> Array:
    """The x at which 1 - q + q exp(m x - m^2/2) = e^loss; -inf where it is larger everywhere."""
    if rate == 1:
        return loss / m + m / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        # log(e^loss - 1 + q), from the larger part: stable for small and for large losses
        grown = np.where(
            loss < 30, np.log(np.maximum(np.expm1(np.minimum(loss, 30)) + rate, 0)), loss
        )
    return (grown - math.log(rate)) / m + m / 2


def drawn_subset(rate: float, z: float, replaced: bool) -> Pair:
    """Batches of a fixed size (docs/theorems/fixed-size): each order's curve as a part of a known
    pair.

    Losses below 0 have the curve q delta_{1/z}(log(1 + (e^e - 1)/q)), that of (1 - q) N(0) + q
    N(1/z) against N(0), in the other order. Losses above 0 have the same under replace-one; under
    zero-out that of q N(2/z) + (1 - q) N(0) against q N(1/z) + (1 - q) N(0), which begins higher at
    epsilon 0 than the other order does: both orders agree there, so the convex hull leaves out
    losses below ``x``, where the tangent from epsilon 0 touches.
    """
    m = 1 / z

    def cells(h: float) -> Cells:
        other = sampled(rate, z)(h)
        cut = -other.first
        down_p, down_q = (
            other.p[cut:],
            other.q[cut:],
        )  # cells 0, 1, ... of the pair that is looked at backwards
        if replaced:
            up_p, up_q = down_p, down_q
        else:
            up_p, up_q = _removed(rate, m, h, float(down_p.sum() - down_q.sum()))
        zero = max(0.0, 1 - float(up_q.sum() + down_p.sum()))
        p = np.concatenate((down_q[::-1], up_p))
        return Cells(-down_q.size, p, np.concatenate((down_p[::-1], up_q)), p_at_zero=zero)

    return cells


def _removed(rate: float, m: float, h: float, at_zero: float) -> tuple[Array, Array]:
    """Cells 0, 1, ... of q N(2m) + (1 - q) N(0) against q N(m) + (1 - q) N(0), from the tangent
    point on."""
    top = math.log(rate) + 2 * m * (2 * m + REACH) - 2 * m * m - math.log1p(-rate)
    count = max(1, math.ceil(max(top, m * (3 * m / 2 + REACH)) / h)) + 1
    gamma = np.exp(np.minimum(np.arange(count + 1) * h, 600.0))
    a, b, c = (
        rate * math.exp(-2 * m * m),
        gamma * rate * math.exp(-m * m / 2),
        (gamma - 1) * (1 - rate),
    )
    edge = (
        np.log((b + np.sqrt(b * b + 4 * a * c)) / (2 * a)) / m
    )  # the larger root of a y^2 - b y - c, y = e^(m x)
    low, high = float(edge[0]), float(edge[0]) + 40.0

    def difference(x: float) -> float:
        return rate * float(between(np.array([x - 2 * m]), np.array([x - m]))[0])

    for _ in range(
        100
    ):  # the tangent point, from below: what lies above it is then no less than at_zero
        middle = (low + high) / 2
        low, high = (middle, high) if difference(middle) >= at_zero else (low, middle)
    edge = np.maximum(edge, low)
    edge[-1] = math.inf
    common = between(edge[:-1], edge[1:])
    return (
        rate * between(edge[:-1] - 2 * m, edge[1:] - 2 * m) + (1 - rate) * common,
        rate * between(edge[:-1] - m, edge[1:] - m) + (1 - rate) * common,
    )


def mixture(weights: Array, shifts: Array) -> Pair:
    """sum_k weights[k] N(shifts[k], 1) against N(0, 1), shifts >= 0; weights that are missing
    from 1 are lost."""
    missing = max(0.0, 1 - float(weights.sum())) + 1e-15

    def cells(h: float) -> Cells:
        top = float(shifts.max()) + REACH
        ends = mixture_loss(weights, shifts, np.array([-REACH - 1.0, top]))
        first, last = math.floor(float(ends[0]) / h), math.ceil(float(ends[1]) / h)
        edge = mixture_crossing(weights, shifts, np.arange(first, last + 1) * h, top)
        edge[0], edge[-1] = -math.inf, math.inf
        p = sum(
            (
                w * between(edge[:-1] - m, edge[1:] - m)
                for w, m in zip(weights, shifts, strict=True)
            ),
            np.zeros(edge.size - 1),
        )
        return Cells(first, p, between(edge[:-1], edge[1:]), p_above=missing, q_below=missing)

    return cells


def mixture_loss(weights: Array, shifts: Array, x: Array) -> Array:
    """log sum_k weights[k] exp(shifts[k] x - shifts[k]^2/2), which grows with x."""
    terms = np.log(weights) + shifts * (x[:, None] - shifts / 2)
    top = terms.max(axis=1)
    return top + np.log(np.exp(terms - top[:, None]).sum(axis=1))


def mixture_crossing(weights: Array, shifts: Array, loss: Array, top: float) -> Array:
    """The x at which ``mixture_loss`` is ``loss``, good to RELATIVE; beyond both ends, an end."""
    x = np.linspace(-REACH - 2, top + 1, 3000)
    values = mixture_loss(weights, shifts, x)
    found = np.interp(loss, values, x)
    for _ in range(3):  # Newton's method; the slope is a mean of shifts
        terms = np.log(weights) + shifts * (found[:, None] - shifts / 2)
        terms = np.exp(terms - terms.max(axis=1)[:, None])
        slope = np.maximum((terms @ shifts) / terms.sum(axis=1), 1e-12)
        step = (loss - mixture_loss(weights, shifts, found)) / slope
        found = np.clip(found + np.clip(step, -0.05, 0.05), -REACH - 2, top + 1)
    return found


@dataclass(frozen=True)
class Side:
    """One order: masses of the first member at losses (first + i) h, and the mass of an infinite
    loss."""

    first: int
    mass: Array
    infinite: float


def sides(cells: Cells, h: float) -> tuple[Side, Side]:
    """Both orders of a pair, spread to the ends of the cells."""
    if cells.back is not None:
        return sides(replace(cells, back=None), h)[0], sides(cells.back, h)[1]
    lows = (cells.first + np.arange(cells.p.size)) * h
    forward = _spread(cells.p, cells.q, lows, h)
    backward = _spread(cells.q[::-1], cells.p[::-1], -(lows[::-1] + h), h)
    # what lies below the cells moves up to the lowest end: its first member's mass there is e^end
    # times the second's
    forward[0] += cells.q_below * math.exp(min(cells.first * h, 0.0))
    backward[0] += cells.p_above * math.exp(min(-(lows[-1] + h), 0.0))
    for masses, zero in ((forward, -cells.first), (backward, cells.first + cells.p.size)):
        if cells.p_at_zero:
            masses[zero] += cells.p_at_zero
    return (
        Side(cells.first, forward * (1 + RELATIVE), cells.p_above),
        Side(-(cells.first + cells.p.size), backward * (1 + RELATIVE), cells.q_below),
    )


def _spread(p: Array, q: Array, lows: Array, h: float) -> Array:
    """The masses of P at the ends of its cells.

    With r = P/(Q e^low) in [1, e^h] the share u = (r - 1)/(e^h - 1) of Q goes up. r is good to
    RELATIVE, so u is raised by RELATIVE / h: more of Q at a larger ratio only raises E_Q[(Y -
    g)_+].
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        r = np.exp(np.clip(np.log(p) - np.log(q) - lows, 0.0, h))
    r = np.where(np.isnan(r), math.exp(h), r)
    share = np.minimum((r - 1) / math.expm1(h) + RELATIVE / h + 1e-15, 1.0)
    # share = 1 moves everything: then P may grow to e^h Q, which is P itself where r = e^h
    masses = np.zeros(p.size + 1)
    masses[1:] += share * p * (math.exp(h) / r)
    masses[:-1] += (1 - share) * p / r
    return masses


class Losses(Curve):
    """The composition of ``pairs``, each so many times, with a mu-Gaussian mechanism beside them.

    ``deviation``: of one step's loss, about, from which the width of the cells follows.
    """

    def __init__(self, pairs: Sequence[tuple[Pair, int]], mu: float = 0.0) -> None:
        self.pairs, self.mu = tuple((pair, count) for pair, count in pairs if count), mu

    def with_gaussian(self, mu: float) -> Losses:
        return Losses(self.pairs, math.hypot(self.mu, mu) * (1 + 1e-15))

    @cached_property
    def _all(self) -> list[tuple[Pair, int]]:
        return [*self.pairs, *([(sampled(1.0, 1 / self.mu), 1)] if self.mu > 0 else [])]

    @cached_property
    def h(self) -> float:
        """The width of cells: a fiftieth of the deviation of one step, from a first look on
        wider cells."""
        h = 0.05
        for _ in range(3):
            variance = sum(
                count * max(_variance(side, h) for side in sides(pair(h), h))
                for pair, count in self._all
            )
            steps = sum(count for _, count in self._all)
            wanted = FINE * math.sqrt(variance / steps)
            if wanted > h / 8:
                return min(h, wanted)
            h = max(wanted, h / 64)
        return h

    @cached_property
    def _orders(self) -> tuple[Order, Order]:
        both = [(sides(pair(self.h), self.h), count) for pair, count in self._all]
        return (
            Order([(one, count) for (one, _), count in both], self.h),
            Order([(two, count) for (_, two), count in both], self.h),
        )

    def orders(self, epsilon: float) -> tuple[float, float]:
        one, two = self._orders
        return one.delta(epsilon), two.delta(epsilon)

    def delta(self, epsilon: float) -> float:
        return max(self.orders(epsilon))


def _variance(side: Side, h: float) -> float:
    total = float(side.mass.sum())
    mean = dot(side.mass, np.arange(side.mass.size)) / total
    return dot(side.mass, (np.arange(side.mass.size) - mean) ** 2) / total * h * h


def _log(masses: Array) -> Array:
    with np.errstate(divide="ignore"):
        return np.log(masses)


class Order:
    """One order of a composition: sums of independent losses, and the chance that one of them is
    infinite."""

    def __init__(self, parts: Sequence[tuple[Side, int]], h: float) -> None:
        self.h, self.parts, self.rough = h, [], []
        for side, count in parts:
            places = np.arange(side.mass.size) + side.first
            self.parts.append((side, count, places, _log(side.mass)))
            width = -(-side.mass.size // 1500)
            end = max(0, side.mass.size - 300)  # single cells where large tilts look
            starts = np.append(np.arange(0, end, width), np.arange(end, side.mass.size))
            mass = np.add.reduceat(side.mass, starts)
            mean = np.add.reduceat(side.mass * places, starts) / np.maximum(mass, 1e-300)
            self.rough.append((side, count, mean, _log(mass)))
        self.infinite = sum(count * side.infinite for side, count in parts) * (1 + 1e-9)
        self.steps = sum(count for _, count in parts)
        self.delta = lru_cache(maxsize=256)(self._delta)

    def moments(self, t: float, parts: list | None = None) -> tuple[float, float, float]:
        """log E e^(t L) of the sum, and the mean and variance of L under the tilted law."""
        total = mean = variance = 0.0
        for _, count, places, log_mass in self.parts if parts is None else parts:
            logs = t * self.h * places + log_mass
            top = float(logs.max())
            weight = np.exp(logs - top)
            whole = float(weight.sum())
            first = dot(weight, places) / whole
            total += count * (top + math.log(whole))
            mean += count * first * self.h
            variance += count * dot(weight, (places - first) ** 2) / whole * self.h**2
        return total, mean, variance

    def tilt(self, epsilon: float) -> float:
        """About the t >= 0 at which E e^(t (L - epsilon)) is least: there the tilted mean is
        epsilon."""
        if self.moments(0.0, self.rough)[1] >= epsilon:
            return 0.0
        low, high = 0.0, 1.0
        while self.moments(high, self.rough)[1] < epsilon and high < 1e6:
            low, high = high, 4 * high
        for _ in range(30):
            middle = (low + high) / 2
            low, high = (
                (middle, high) if self.moments(middle, self.rough)[1] < epsilon else (low, middle)
            )
            if high - low < 0.02 * high:
                break
        # the mean may jump between both ends
        return min((low, high), key=lambda t: self.moments(t, self.rough)[0] - t * epsilon)

    def _delta(self, epsilon: float) -> float:
        h, t = self.h, self.tilt(epsilon)
        log_moment, mean, variance = self.moments(t)
        if log_moment > t * epsilon + 1:  # a tilt beyond the largest loss: without one
            t = 0.0
            log_moment, mean, variance = self.moments(t)
        wide = math.sqrt(variance)
        high = max(mean, epsilon) + 8 * wide + h
        small = 1e-7 * math.exp(min(0.0, log_moment - t * epsilon))
        while self._beyond(high, t, self.rough) > small and high < epsilon + 400 * wide + 1e4 * h:
            high += 2 * wide + h
        low = min(mean - 10 * wide, epsilon) - h
        size = 2 ** max(6, math.ceil(math.log2((high - low) / h + 2)))
        if size > LONGEST:
            size = LONGEST
            high = low + (size - 2) * h
        beyond = self._beyond(high, t)
        start = math.floor(high / h) - size + 1  # the window holds losses (start + i) h
        product, length, offset = np.ones(size // 2 + 1, dtype=complex), 0.0, 0
        for side, count, places, log_mass in self.parts:
            logs = t * h * places + log_mass
            top = float(logs.max())
            weight = np.exp(logs - top)
            weight /= weight.sum()
            folded = np.bincount((places - side.first) % size, weights=weight, minlength=size)
            product *= np.fft.rfft(folded) ** count
            offset += count * side.first
            length += count * float(np.sqrt((folded**2).sum()))
        law = np.fft.irfft(product, size)
        loss = (start + np.arange(size)) * h
        law = np.roll(law, offset - start)  # entry i is the loss (offset + i) h, whole turns apart
        above = loss > epsilon
        weight = np.where(
            above,
            np.exp(np.minimum(-t * (loss - epsilon), 0.0))
            * -np.expm1(np.minimum(epsilon - loss, 0.0)),
            0.0,
        )
        # rounding of the transforms: each is good to 8 u log2(size) of the Euclidean norm (Higham
        # 2002, Theorem 24.2), moduli of transforms are at most 1, so errors of a product add up
        # over its factors
        rounding = 8 * 2.0**-53 * math.log2(size) * (length + 2) * float(np.sqrt((weight**2).sum()))
        inside = dot(weight, np.maximum(law, 0.0)) + rounding
        scale = math.exp(min(log_moment - t * epsilon, 700.0))
        rest = RELATIVE * self.steps + 1e-12  # masses and moments are good to RELATIVE
        return min(1.0, (inside * scale + beyond) * (1 + rest) + self.infinite)

    def _beyond(self, high: float, t: float, parts: list | None = None) -> float:
        """P[L > high] by Chernoff's inequality: at the best of a few exponents."""
        exponents = [t * factor for factor in (1.0, 1.2, 1.5, 2.0, 3.0) if t > 0]
        exponents += [0.5 * 4.0**power for power in range(10)]
        bounds = [self.moments(s, self.rough)[0] - s * high for s in exponents]
        if parts is None:  # the best of them, and those near the tilt, without rounding of places
            near = {*sorted(range(len(bounds)), key=bounds.__getitem__)[:2], 0, 1}
            bounds = [self.moments(exponents[i])[0] - exponents[i] * high for i in near]
        return math.exp(min(0.0, *bounds))
