"""Renyi curves: conversion to (epsilon, delta), sums, sampled steps, and divergences from profiles."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, final

import numpy as np

from lastiterate.curves import subsampling
from lastiterate.curves.curve import UP, Curve, check_counts, check_delta, check_epsilon, from_log
from lastiterate.curves.gaussian import Gdp, log_sum_exp
from lastiterate.errors import InputError
from lastiterate.run.validation import Array, check_interval, nonnegative

# Renyi divergences from the curve delta(epsilon), for mechanisms that are known by it.  With both
# directions, f''-divergences are integrals of hockey sticks (Sason and Verdu 2016, Theorem 11), for
# t^alpha     D_alpha(P || Q) = log(1 + alpha (alpha - 1) int_0^inf (e^{(alpha-1) e} delta_{P||Q}(e)
# + e^{-alpha e}     delta_{Q||P}(e)) de) / (alpha - 1). delta decreases and is convex in e^e (in e
# it need not be): chords in e^e lie above it.

POINTS = 400
LEAST_DELTA = 1e-15
"""The least delta of a curve's own values; below it the ``mu``-GDP mechanism that dominates it is
used."""


def renyi_divergence(curve: Curve, alpha: float, mu: float) -> float:
    """Upper end of both directions' divergence of order ``alpha`` > 1 for a curve that is
    ``mu``-GDP besides."""
    if mu == 0 or math.isinf(mu) or alpha <= 1:
        return 0.0 if mu == 0 else math.inf
    return divergence_of(_profile(curve, mu), alpha, mu)


def divergence_of(
    profile: tuple[Array, Array, Array], alpha: float, mu: float, rate: float = 1.0
) -> float:
    """The same for a grid of epsilons from 0 on, and upper ends of delta in both orders there.

    Beyond the grid delta(e) <= ``rate`` delta_mu(log(1 + (e^e - 1) / rate)).
    """
    grid, one, two = profile
    tail = _log_tail(float(grid[-1]), alpha, mu, rate)
    larger = max(_order(grid, one, two, alpha, tail), _order(grid, two, one, alpha, tail))
    return min(alpha * mu * mu / 2, larger) * UP


def _log_tail(end: float, alpha: float, mu: float, rate: float) -> float:
    """log of alpha (alpha - 1) int_E^inf e^{(alpha-1) e} delta(e) de, rounded up.

    The integral with delta_mu is at most E[e^{(alpha-1) L}; L > E], L ~ N(mu^2/2, mu^2); log(1 +
    (e^e - 1) / rate) is at least e + s, s = log((1 - (1 - rate) e^-E) / rate).
    """
    from scipy.special import log_ndtr  # pyright: ignore

    s = math.log1p(-(1 - rate) * math.exp(-end)) - math.log(rate)
    beyond = float(log_ndtr((mu * mu * (alpha - 0.5) - end - s) / mu))
    return (
        math.log(rate)
        - (alpha - 1) * s
        + alpha * (alpha - 1) * mu * mu / 2
        + beyond
        + 1e-12 * alpha * alpha
    )


def _order(grid: Array, forward: Array, backward: Array, alpha: float, tail: float) -> float:
    end, factor = float(grid[-1]), math.log(alpha * (alpha - 1))
    rest = math.log(max(float(backward[-1]), 1e-300)) - alpha * end + math.log(alpha - 1)
    terms = [
        0.0,
        factor + _log_integral(grid, forward, alpha - 1),
        factor + _log_integral(grid, backward, -alpha),
    ]
    return log_sum_exp(np.array([*terms, tail, rest])) / (alpha - 1) + 1e-12 / (alpha - 1)


def _log_integral(grid: Array, values: Array, rate: float) -> float:
    """log of the integral of e^{rate e} against the chords of ``values`` in e^e, rounded up.

    A chord in e^e weighs the next value by (e^t - 1)/(e^w - 1) >= (t/w) (1 - 0.6 (w - t)) for t <=
    w <= 1, and 0 at least: a chord in e, with weights that are smaller by the factor 1 - 0.6 w,
    lies above it.
    """
    width = np.diff(grid)
    x = rate * width
    small = np.abs(x) < 1e-3
    safe = np.where(small, 1.0, x)
    with np.errstate(over="ignore"):
        # int_0^1 e^{x t - max(x, 0)} (1 - t) dt and the same with t
        top = np.maximum(safe, 0.0)
        whole = (np.exp(safe - top) - np.exp(-top)) / safe
        rising = np.exp(safe - top) / safe - whole / safe
        rising = np.where(
            small, np.exp(-np.maximum(x, 0.0)) * (0.5 + x / 3 + x * x / 8 + 1e-9), rising
        )
        whole = np.where(small, np.exp(-np.maximum(x, 0.0)) * (1 + x / 2 + x * x / 6 + 1e-9), whole)
    rising = rising * np.maximum(1 - 0.6 * width, 0.0)
    each = (
        np.maximum(whole - rising, 0.0) * values[:-1] + np.maximum(rising, 0.0) * values[1:]
    ) * width
    with np.errstate(divide="ignore"):
        return log_sum_exp(np.log(each) + rate * grid[:-1] + np.maximum(x, 0.0)) + 1e-9


@lru_cache(maxsize=32)
def _profile(curve: Curve, mu: float) -> tuple[Array, Array, Array]:
    """A grid of epsilons and both directions there."""
    end = mu * mu / 2 + mu * math.sqrt(-2 * math.log(LEAST_DELTA))
    grid = end * np.linspace(0.0, 1.0, POINTS + 1)
    deltas = curve.profile(grid)
    return grid, deltas[:, 0], deltas[:, 1]


# Renyi curves, the two rules that turn them into (epsilon, delta), and their sums.
#
# **Guarantee:** every returned value is an upper end.

LEAST_GAP = 1e-9
"""Orders are looked for from 1 + a part of this on: below, alpha - 1 has no digits left."""
LARGEST_EPSILON, MOST_GAP = 1e100, 1e100
"""Beyond them products of orders and epsilons overflow."""


@final
@dataclass(frozen=True)
class Rdp(Curve):
    """Renyi curve: at most ``slope * alpha`` at every order, and at most ``values[i]`` at
    ``orders[i]``.

    **Guarantee:** ``delta(epsilon(d))`` is at most d.
    """

    slope: float = math.inf
    orders: tuple[float, ...] = ()
    values: tuple[float, ...] = ()
    _GRID: ClassVar[Array] = np.exp(np.linspace(-4.0, 4.0, 801))

    def __post_init__(self) -> None:
        nonnegative("slope", self.slope)
        if len(self.orders) != len(self.values) or not all(a > 1 for a in self.orders):
            raise InputError("orders", "must exceed 1, with one value each", self.orders)
        if any(map(math.isnan, self.values)):
            raise InputError("values", "must be numbers", self.values)

    @classmethod
    def linear(cls, slope: float) -> Rdp:
        """epsilon(alpha) = slope * alpha for all alpha > 1."""
        return cls(slope)

    def rdp(self, alpha: float) -> float:
        # Renyi divergence does not decrease with the order: any tabled order >= alpha bounds it
        tabled = [
            value for order, value in zip(self.orders, self.values, strict=True) if order >= alpha
        ]
        return min([self.slope * alpha * UP if self.slope else 0.0, *tabled])

    def epsilon(self, delta: float) -> float:
        check_delta(delta)
        if self.slope == 0:
            return 0.0
        best = math.inf
        for orders, values in self._candidates(math.log(1 / delta)):
            best = min(best, float(rdp_epsilon(orders, values, delta).min()))
        return self._confirm(max(0.0, best), delta)

    def _confirm(self, epsilon: float, delta: float) -> float:
        """``epsilon``, raised by what rounding takes until ``delta`` is seen there: both rules
        round up."""
        step = 2.0**-50
        while epsilon < math.inf and self.delta(epsilon) > delta:
            epsilon, step = epsilon * (1 + step) + step, 2 * step
        return epsilon

    def delta(self, epsilon: float) -> float:
        check_epsilon(epsilon)
        return from_log(self._log_delta(epsilon))

    def log_profile(self, epsilons: Array) -> Array:
        logs = np.array([self._log_delta(float(epsilon)) for epsilon in epsilons])
        return np.stack([logs, logs], axis=1)

    def _log_delta(self, epsilon: float) -> float:
        if self.slope == 0:
            return -math.inf
        best = 0.0
        epsilon = min(epsilon, LARGEST_EPSILON)  # delta never increases
        if math.isfinite(self.slope):
            # exp((alpha - 1)(slope alpha - eps)) is least near alpha - 1 = (eps/slope - 1)/2, where
            # that is positive; below, slope (alpha - 1)^2 - log(alpha - 1) decides
            gaps = (
                min(max((epsilon / self.slope - 1) / 2, 1e-6), MOST_GAP),
                max(self.slope**-0.5, LEAST_GAP),
            )
            rest = np.concatenate([gap * self._GRID for gap in gaps])
            for width in (0.012, 2.5e-4, 5e-6, 0.0):  # on both sides of the best so far
                logs = rdp_log_delta(1 + rest, self.slope * (1 + rest), epsilon)
                best = min(best, float(logs.min()))
                rest = rest[int(logs.argmin())] * np.exp(np.linspace(-width, width, 101))
        if self.orders:
            table = np.array(self.orders), np.array(self.values)
            best = min(best, float(rdp_log_delta(*table, epsilon).min()))
        return best

    def _candidates(self, log_inverse_delta: float) -> list[tuple[Array, Array]]:
        tables: list[tuple[Array, Array]] = []
        if math.isfinite(self.slope):
            gap = max(math.sqrt(log_inverse_delta / self.slope), LEAST_GAP)
            coarse = 1 + gap * self._GRID
            at = coarse[
                int(
                    np.argmin(
                        rdp_epsilon(coarse, self.slope * coarse, math.exp(-log_inverse_delta))
                    )
                )
            ]
            fine = 1 + (at - 1) * np.exp(np.linspace(-0.02, 0.02, 401))
            tables.append((fine, self.slope * fine))
        if self.orders:
            tables.append((np.array(self.orders), np.array(self.values)))
        return tables

    def group(self, size: int) -> Rdp:
        """Return the curve of ``size`` records that change together.

        A line through 0 at all orders, slope * alpha, becomes size^2 * slope * alpha (Bun and
        Steinke 2016, Proposition 1.9). A tabled order alpha becomes alpha / 2^c at 3^c times the
        divergence, size rounded up to 2^c (Mironov 2017, Proposition 2).
        """
        c = max(0, math.ceil(math.log2(size)))
        kept = [alpha for alpha in self.orders if alpha >= 2 ** (c + 1)]
        return Rdp(
            self.slope * size**2 * UP if self.slope else 0.0,
            tuple(alpha / 2**c for alpha in kept),
            tuple(3**c * self.rdp(alpha) * UP for alpha in kept),
        )


def rdp_epsilon(orders: Array, values: Array, delta: float) -> Array:
    """(epsilon, delta) at each order: the smaller of the improved rule and Mironov's, rounded up.

    Canonne, Kamath, Steinke 2020, Proposition 12 (also Balle et al. 2020, Theorem 21): r +
    log((alpha-1)/alpha) - (log delta + log alpha)/(alpha-1); Mironov 2017, Proposition 3: r +
    log(1/delta) / (alpha-1).
    """
    gap = orders - 1
    mironov = values - math.log(delta) / gap
    improved = mironov + np.log1p(-1 / orders) - np.log(orders) / gap
    return np.minimum(mironov, improved) + 1e-12 * (1 + np.abs(mironov))


def rdp_log_delta(orders: Array, values: Array, epsilon: float) -> Array:
    """log delta at each order by the same two rules, rounded up."""
    gap = orders - 1
    mironov = gap * (values - epsilon)
    improved = mironov - np.log(gap) + orders * np.log1p(-1 / orders)
    return np.minimum(mironov, improved) + 1e-12 * (1 + np.abs(mironov))


def renyi_sum(one: Curve, two: Curve) -> Rdp:
    """Both mechanisms on the same data: divergences of an order add up (Mironov 2017, Proposition
    1)."""
    slopes = [
        c.slope if isinstance(c, Rdp) else c.mu**2 / 2 if isinstance(c, Gdp) else math.inf
        for c in (one, two)
    ]
    orders = {order for curve in (one, two) if isinstance(curve, Rdp) for order in curve.orders}
    if not math.isfinite(sum(slopes)):
        orders |= {float(1 + gap) for gap in np.geomspace(0.01, 1e4, 300)}
    listed = tuple(sorted(orders))
    values = tuple((one.rdp(order) + two.rdp(order)) * UP for order in listed)
    return Rdp(sum(slopes) * UP, listed, values)


# Poisson-sampled steps.

FEW = (2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 128.0)
"""Orders of the coarser version: whole ones cost least."""
FEW_LEVELS = 8
"""Different noise multipliers of the coarser version."""


@final
@dataclass(frozen=True)
class SampledRenyi(Curve):
    """``counts[i]`` Poisson-sampled Gaussian steps of noise multiplier ``multipliers[i]``, all with
    sampling ``rate``.

    The Renyi curve at dp-accounting's own orders (``coarse``: at few); a multiplier of 0 says
    nothing.
    """

    rate: float
    multipliers: tuple[float, ...]
    counts: tuple[int, ...]
    coarse: bool = False

    def __post_init__(self) -> None:
        check_sampled(self.rate, self.multipliers, self.counts)

    def table(self) -> Rdp:
        """Return the curve as a table of orders and values."""
        return _table(self)

    def delta(self, epsilon: float) -> float:
        return self.table().delta(epsilon)

    def log_profile(self, epsilons: Array) -> Array:
        return self.table().log_profile(epsilons)

    def epsilon(self, delta: float) -> float:
        return self.table().epsilon(delta)

    def rdp(self, alpha: float) -> float:
        return self.table().rdp(alpha)

    def group(self, size: int) -> Rdp:
        return self.table().group(size)

    def coarser(self) -> SampledRenyi:
        return replace(self, coarse=True)


def check_sampled(rate: float, multipliers: tuple[float, ...], counts: tuple[int, ...]) -> None:
    """Refuse what does not describe sampled steps."""
    check_interval("rate", rate, 0, 1, "(]")
    check_counts(counts, multipliers, "multiplier")


@lru_cache(maxsize=256)
def _table(curve: SampledRenyi) -> Rdp:
    if min(curve.multipliers) == 0:
        return Rdp()
    levels = tuple(zip(curve.multipliers, curve.counts, strict=True))
    asked = FEW if curve.coarse else None
    orders = subsampling.renyi(curve.multipliers[0], curve.rate, asked)[0]
    values = sum(
        n * subsampling.renyi(z, curve.rate, asked)[1]
        for z, n in (subsampling.merge_levels(levels, FEW_LEVELS) if curve.coarse else levels)
    )
    return Rdp(orders=orders, values=tuple(float(v) for v in values * UP))  # pyright: ignore
