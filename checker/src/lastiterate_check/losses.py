"""Privacy losses of pairs (P, Q) that dominate a step, rounded to the safe side and composed.

A pair is given by its cells: for losses between k h and (k + 1) h the probability of the cell under
P and under Q. The likelihood ratio Y = dP/dQ is spread, within its cell, to both ends so that its
mean under Q is kept: that raises every E_Q[(Y - g)_+], so that the rounded pair dominates (P, Q) in
both orders (connect the dots: Doroshenko et al. 2022). Both orders are composed apart, each by the
probabilities of its first member, so that no difference is ever taken.

Composition is a product of discrete Fourier transforms of the tilted law: masses times e^(t loss),
t chosen for the epsilon that is asked (exponential tilting). Tilted, the part that matters has a
probability of ordinary size, so that the rounding of the transforms, bounded below, is small
compared with it for every delta. What wraps around from above is bounded by Chernoff's inequality
and added; what wraps around from below is counted where it lands, which adds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import ndtr

from lastiterate_check.curves import Curve
from lastiterate_check.run import Array, NotCovered

LEVELS = 256
"""Different noises that are distinguished in sampled steps; more are rounded down."""
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
    if rate == 1:
        return mixture(np.ones(1), np.array([1 / z]))
    return mixture(np.array([1 - rate, rate]), np.array([0.0, 1 / z]))


def few(noises: Array, least: float) -> list[tuple[float, int]]:
    """(noise, how often), rounded down to powers of 1.001 where they are many."""
    if float(noises.min()) < least:
        raise NotCovered("steps with next to no noise")
    if np.unique(noises).size > LEVELS:
        noises = np.exp(np.floor(np.log(noises) * 1000) / 1000) * (1 - 1e-12)
    values, counts = np.unique(noises, return_counts=True)
    return list(zip(values.tolist(), counts.tolist(), strict=True))


def mixture(weights: Array, shifts: Array) -> Pair:
    """sum_k weights[k] N(shifts[k], 1) against N(0, 1), shifts >= 0; weights that are missing
    from 1 are lost."""
    missing = max(0.0, 1 - math.fsum(weights)) + (1e-15 if weights.size > 2 else 0.0)

    def cells(h: float) -> Cells:
        top = float(shifts.max()) + REACH
        ends = mixture_loss(weights, shifts, np.array([-REACH - 1.0, top]))
        first, last = math.floor(float(ends[0]) / h), math.ceil(float(ends[1]) / h)
        edge = mixture_crossing(weights, shifts, np.arange(first, last + 1) * h, top)
        edge[0], edge[-1] = -math.inf, math.inf
        parts = zip(weights, shifts, strict=True)
        p = sum(w * between(edge[:-1] - m, edge[1:] - m) for w, m in parts)
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
    """The composition of ``pairs``, each so many times, and of a mu-Gaussian mechanism."""

    def __init__(self, pairs: Sequence[tuple[Pair, int]], mu: float = 0.0) -> None:
        self.pairs, self.mu = tuple((pair, count) for pair, count in pairs if count), mu

    def with_gaussian(self, mu: float) -> Losses:
        return Losses(self.pairs, math.hypot(self.mu, mu) * (1 + 1e-15))

    def orders(self, epsilon: float) -> tuple[float, float]:
        return tuple(order.delta(epsilon) for order in both_orders(self.pairs, self.mu))


@lru_cache(maxsize=8)
def both_orders(pairs: tuple[tuple[Pair, int], ...], mu: float) -> tuple[Order, Order]:
    """Both orders of a composition; candidates of a selection often share theirs."""
    pairs = (*pairs, *([(sampled(1.0, 1 / mu), 1)] if mu > 0 else []))

    def at(h: float) -> tuple[Order, Order]:
        both = [(sides(pair(h), h), count) for pair, count in pairs]
        return tuple(Order([(one[i], count) for one, count in both], h) for i in (0, 1))

    def fine(h: float) -> float:
        """A share of the deviation of one step's loss, as cells of this width show it."""
        both = at(h)
        deviations = [order.moments(order.tilted(0.0, order.parts)[1])[1] for order in both]
        return FINE * max(deviations) / math.sqrt(both[0].steps)

    h = 0.05
    while (wanted := fine(h)) < h / 8:
        h = max(wanted, h / 64)
    return at(min(h, wanted))


class Order:
    """One order of a composition: sums of independent losses, and the chance that one of them is
    infinite."""

    def __init__(self, parts: Sequence[tuple[Side, int]], h: float) -> None:
        self.h, self.parts, self.rough = h, [], []
        for side, count in parts:
            places = np.arange(side.mass.size) + side.first
            starts = np.arange(0, side.mass.size, -(-side.mass.size // 2000))
            mass = np.add.reduceat(side.mass, starts)  # on wider cells, for searches
            mean = np.add.reduceat(side.mass * places, starts) / np.maximum(mass, 1e-300)
            with np.errstate(divide="ignore"):
                self.parts.append((side.first, count, places, np.log(side.mass)))
                self.rough.append((side.first, count, mean, np.log(mass)))
        self.infinite = sum(count * side.infinite for side, count in parts) * (1 + 1e-9)
        self.steps = sum(count for _, count in parts)
        self.delta = lru_cache(maxsize=8192)(self._delta)

    def tilted(self, t: float, parts: list) -> tuple[float, list[Array]]:
        """log E e^(t L) of the sum, and of every part the law with masses times e^(t L)."""
        total, laws = 0.0, []
        for _, count, places, log_mass in parts:
            logs = t * self.h * places + log_mass
            top = float(logs.max())
            weight = np.exp(logs - top)
            whole = float(weight.sum())
            total += count * (top + math.log(whole))
            laws.append(weight / whole)
        return total, laws

    def moments(self, laws: list[Array]) -> tuple[float, float]:
        """The mean and the deviation of L, where its parts have these laws."""
        mean = variance = 0.0
        for (_, count, places, _), law in zip(self.parts, laws, strict=True):
            first = dot(law, places)
            mean += count * first * self.h
            variance += count * dot(law, (places - first) ** 2) * self.h**2
        return mean, math.sqrt(variance)

    def tilt(self, epsilon: float) -> float:
        """About the t >= 0 at which E e^(t (L - epsilon)) is least."""

        def bound(log_t: float) -> float:
            return self.tilted(math.exp(log_t), self.rough)[0] - math.exp(log_t) * epsilon

        found = minimize_scalar(bound, bounds=(-6, 13), method="bounded", options={"xatol": 0.02})
        return math.exp(found.x) if found.fun < 0 else 0.0

    def _delta(self, epsilon: float) -> float:
        h = self.h
        for t in (self.tilt(epsilon), 0.0):  # none where the rough law was too rough
            log_moment, laws = self.tilted(t, self.parts)
            if log_moment <= t * epsilon:
                break
        mean, wide = self.moments(laws)
        low, high = min(mean - 10 * wide, epsilon) - h, max(mean, epsilon) + 10 * wide + h
        small = 1e-7 * math.exp(min(0.0, log_moment - t * epsilon))
        while (beyond := self._beyond(high, t)) > small and high < epsilon + 400 * wide + 1e4 * h:
            high += 5 * wide + h
        size = min(LONGEST, 2 ** max(6, math.ceil(math.log2((high - low) / h + 2))))
        # the window holds losses (start + i) h; what lies above it is ``beyond``
        start = math.floor(high / h) - size + 1
        product, length, offset = np.ones(size // 2 + 1, dtype=complex), 0.0, 0
        for (first, count, places, _), law in zip(self.parts, laws, strict=True):
            folded = np.bincount((places - first) % size, weights=law, minlength=size)
            product *= np.fft.rfft(folded) ** count
            offset += count * first
            length += count * float(np.sqrt((folded**2).sum()))
        law = np.roll(np.fft.irfft(product, size), offset - start)
        excess = (start + np.arange(size)) * h - epsilon
        weight = np.exp(np.minimum(-t * excess, 0.0)) * -np.expm1(np.minimum(-excess, 0.0))
        # rounding of the transforms: each is good to 8 u log2(size) of the Euclidean norm (Higham
        # 2002, Theorem 24.2), moduli of transforms are at most 1, so errors of a product add up
        # over its factors
        rounding = 8 * 2.0**-53 * math.log2(size) * (length + 2) * float(np.sqrt((weight**2).sum()))
        inside = dot(weight, np.maximum(law, 0.0)) + rounding
        scale = math.exp(min(log_moment - t * epsilon, 700.0))
        rest = RELATIVE * self.steps + 1e-12  # masses and moments are good to RELATIVE
        return min(1.0, (inside * scale + beyond) * (1 + rest) + self.infinite)

    def _beyond(self, high: float, t: float) -> float:
        """P[L > high] by Chernoff's inequality: at the exponent that looks best."""
        tried = [t * factor for factor in (1.0, 1.2, 1.5, 2.0, 3.0)] + [4.0**k for k in range(8)]
        rough = [self.tilted(x, self.rough)[0] - x * high for x in tried]
        best = tried[int(np.argmin(rough))]
        return math.exp(min(0.0, self.tilted(best, self.parts)[0] - best * high))
