"""Renyi divergences from the curve delta(epsilon), for mechanisms that are known by it.

With both directions, f''-divergences are integrals of hockey sticks (Sason and Verdu 2016, Theorem 11), for t^alpha
    D_alpha(P || Q) = log(1 + alpha (alpha - 1) int_0^inf (e^{(alpha-1) e} delta_{P||Q}(e) + e^{-alpha e}
    delta_{Q||P}(e)) de) / (alpha - 1).
delta decreases and is convex in e^e (in e it need not be): chords in e^e lie above it.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from lastiterate.curves.curve import UP, Curve
from lastiterate.curves.tails import log_sum_exp
from lastiterate.run.arrays import Array

POINTS = 400
LEAST_DELTA = 1e-15
"""Where a curve's own numbers end; further out the ``mu``-GDP mechanism that dominates it takes over."""


def renyi_divergence(curve: Curve, alpha: float, mu: float) -> float:
    """Upper end of both directions' divergence of order ``alpha`` > 1 for a curve that is ``mu``-GDP besides."""
    if mu == 0 or math.isinf(mu) or alpha <= 1:
        return 0.0 if mu == 0 else math.inf
    return divergence_of(_profile(curve, mu), alpha, mu)


def divergence_of(profile: tuple[Array, Array, Array], alpha: float, mu: float, rate: float = 1.0) -> float:
    """The same for a grid of epsilons from 0 on, and upper ends of delta in both orders there.

    Beyond the grid delta(e) <= ``rate`` delta_mu(log(1 + (e^e - 1) / rate)).
    """
    grid, one, two = profile
    tail = _log_tail(float(grid[-1]), alpha, mu, rate)
    larger = max(_order(grid, one, two, alpha, tail), _order(grid, two, one, alpha, tail))
    return min(alpha * mu * mu / 2, larger) * UP


def _log_tail(end: float, alpha: float, mu: float, rate: float) -> float:
    """log of alpha (alpha - 1) int_E^inf e^{(alpha-1) e} delta(e) de, rounded up.

    The integral with delta_mu is at most E[e^{(alpha-1) L}; L > E], L ~ N(mu^2/2, mu^2); log(1 + (e^e - 1) / rate) is
    at least e + s, s = log((1 - (1 - rate) e^-E) / rate).
    """
    from scipy.special import log_ndtr  # pyright: ignore

    s = math.log1p(-(1 - rate) * math.exp(-end)) - math.log(rate)
    beyond = float(log_ndtr((mu * mu * (alpha - 0.5) - end - s) / mu))
    return math.log(rate) - (alpha - 1) * s + alpha * (alpha - 1) * mu * mu / 2 + beyond + 1e-12 * alpha * alpha


def _order(grid: Array, forward: Array, backward: Array, alpha: float, tail: float) -> float:
    end, factor = float(grid[-1]), math.log(alpha * (alpha - 1))
    rest = math.log(max(float(backward[-1]), 1e-300)) - alpha * end + math.log(alpha - 1)
    terms = [0.0, factor + _log_integral(grid, forward, alpha - 1), factor + _log_integral(grid, backward, -alpha)]
    return log_sum_exp(np.array([*terms, tail, rest])) / (alpha - 1) + 1e-12 / (alpha - 1)


def _log_integral(grid: Array, values: Array, rate: float) -> float:
    """log of the integral of e^{rate e} against the chords of ``values`` in e^e, rounded up.

    A chord in e^e weighs the next value by (e^t - 1)/(e^w - 1) >= (t/w) (1 - 0.6 (w - t)) for t <= w <= 1, and 0 at
    least: a chord in e, with weights that are smaller by the factor 1 - 0.6 w, lies above it.
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
        rising = np.where(small, np.exp(-np.maximum(x, 0.0)) * (0.5 + x / 3 + x * x / 8 + 1e-9), rising)
        whole = np.where(small, np.exp(-np.maximum(x, 0.0)) * (1 + x / 2 + x * x / 6 + 1e-9), whole)
    rising = rising * np.maximum(1 - 0.6 * width, 0.0)
    each = (np.maximum(whole - rising, 0.0) * values[:-1] + np.maximum(rising, 0.0) * values[1:]) * width
    with np.errstate(divide="ignore"):
        return log_sum_exp(np.log(each) + rate * grid[:-1] + np.maximum(x, 0.0)) + 1e-9


@lru_cache(maxsize=32)
def _profile(curve: Curve, mu: float) -> tuple[Array, Array, Array]:
    """A grid of epsilons and both directions there."""
    end = mu * mu / 2 + mu * math.sqrt(-2 * math.log(LEAST_DELTA))
    grid = end * np.linspace(0.0, 1.0, POINTS + 1)
    deltas = curve.profile(grid)
    return grid, deltas[:, 0], deltas[:, 1]
