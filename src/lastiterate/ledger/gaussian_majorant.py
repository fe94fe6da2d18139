"""The least Gaussian mechanism, with a failure probability, that no release of a curve is easier to distinguish than.

The pair "with probability f say which data set it was, otherwise N(mu, 1) against N(0, 1)" has the profile
f + (1 - f) delta_mu(eps) in both directions. A mechanism whose delta(eps) lies below it at every eps >= 0, in both
directions, lies below it at every real eps, and is a post-processing of that pair (Blackwell; Dong, Roth, Su 2022,
Theorem 2.10; Zhu, Dong, Wang 2022).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from lastiterate.curves.curve import TINY, UP, BestOf, Curve, EpsDelta
from lastiterate.curves.gdp import Gdp
from lastiterate.curves.mixtures import GdpMixture
from lastiterate.curves.private_selection import WorstOf
from lastiterate.curves.tails import gdp_delta
from lastiterate.run.arrays import Array

POINTS = 400
"""Intervals on which profiles are compared: the released curve at the left end, the Gaussian at the right."""
NEAR_ONE = 1.01
"""A Renyi order whose divergence bounds the Kullback-Leibler divergence."""
PROBE = 1e-3
"""The delta at which a curve is first compared with what is known already."""
MOST = 1e3
"""No larger mu is looked for: it would exceed any budget."""
DOWN = 1 - 1e-12


def dominating_mu(curve: Curve, failure: float, least: float | None = None) -> float:
    """The least mu found for which ``curve`` lies below the Gaussian pair with ``failure``; infinite where none does.

    ``least``: the smallest of several failure probabilities that are asked for in turn: one table answers them all.

    **Guarantee:** the returned mu passed ``dominated``, or follows from a theorem about the kind of curve.
    """
    parts = curve.curves if isinstance(curve, BestOf) else (curve,)
    best = min(map(_exact, parts))
    for part in parts if failure > 0 else ():
        if _may_need_less(part, best, failure):
            best = min(best, _searched(part, failure, failure if least is None else least))
    return best


def dominated(curve: Curve, mu: float, failure: float, least: float | None = None) -> bool:
    """Whether delta(eps) <= failure + (1 - failure) delta_mu(eps) at every eps >= 0, to the safe side.

    ``least``: as in ``dominating_mu``, whose answers are found again on the same table.
    """
    if isinstance(curve, BestOf):
        return any(dominated(part, mu, failure, least) for part in curve.curves)
    if _exact(curve) <= mu:
        return True
    tables = (_table(curve, end) for end in dict.fromkeys((least or failure, failure)))
    return any(table is not None and _below(*table, mu, failure) for table in tables)


def _exact(curve: Curve) -> float:
    """The mu of curves that are Gaussian, or lie below one without a failure probability."""
    match curve:
        case Gdp(mu):
            return mu
        case GdpMixture():
            return max(curve.mus)  # its trade-off function lies above that of the largest mu
        case EpsDelta(epsilon, 0.0):
            return _pure(epsilon)
        case WorstOf():
            return max(map(_exact, curve.curves))
        case _:
            return math.inf


def _pure(epsilon: float) -> float:
    """mu with total variation and slopes of pure epsilon-DP: 2 Phi^-1(e^eps / (1 + e^eps)), rounded up.

    The trade-off function of epsilon-randomised response touches G_mu at its corner (1/(1 + e^eps), 1/(1 + e^eps)) and
    is a chord of the convex G_mu from there to (1, 0) and (0, 1): it lies above.
    """
    from scipy.special import ndtri  # pyright: ignore

    if epsilon < 1e-3:  # no digits of the corner are left: Phi(epsilon sqrt(pi/8)) lies above 1 / (1 + e^-epsilon)
        return epsilon * math.sqrt(math.pi / 2) * UP
    corner = math.exp(-epsilon) / (1 + math.exp(-epsilon)) if epsilon < 700 else 0.0
    return math.inf if corner == 0.0 else float(-2 * ndtri(corner)) * (1 + 1e-9)


def _may_need_less(curve: Curve, mu: float, failure: float) -> bool:
    """Whether one point of the curve allows a mu that is smaller by a thousandth: most curves fail there."""
    if not 0 < mu < math.inf:
        return mu > 0
    at = Gdp(mu).epsilon(PROBE)
    return curve.delta(at) <= failure + Gdp(mu * (1 - 1e-3)).delta(at)


@lru_cache(maxsize=64)
def _table(curve: Curve, failure: float) -> tuple[Array, Array] | None:
    """Points eps_0 = 0 < ... and delta of the curve at each; beyond the last one it is at most ``failure``."""
    top = curve.epsilon(failure) if 0 < failure < 1 else math.inf
    if not math.isfinite(top):
        return None
    points = np.linspace(0.0, top, POINTS + 1)
    most = variation(curve)
    values = [min(most, curve.delta(float(eps))) for eps in points[:-1]]
    return points, _by_later_points(points, np.array([*values, min(failure, 1.0)]))


def _by_later_points(points: Array, values: Array) -> Array:
    """What (eps_j, delta_j) in both directions says of a smaller eps: ``EpsDelta.delta``; curves can be worse there."""
    less = np.minimum(points[:, None] - points, 0.0)  # powers divided by e^eps_j, which may be beyond a double
    implied = values + -np.expm1(less) * (1 - values) / (1 + np.exp(-points)) * (1 + 1e-12)
    return np.minimum(values, np.where(points >= points[:, None], implied, 1.0).min(axis=1))


def variation(curve: Curve) -> float:
    """Total variation from the Kullback-Leibler divergence (Pinsker; Bretagnolle and Huber 1979)."""
    divergence = curve.rdp(NEAR_ONE)
    return min(1.0, math.sqrt(divergence / 2) * UP, math.sqrt(-math.expm1(-divergence)) * UP + 1e-15)


def _below(points: Array, values: Array, mu: float, failure: float) -> bool:
    if values[-1] > failure:  # beyond the last point nothing smaller is known
        return False
    if mu == 0:
        return bool((values <= failure).all())
    right = points[1:]
    gaussian = gdp_delta(right, np.full(right.size, mu))
    reach = failure + (1 - failure) * _lower(gaussian, right, mu)
    return bool((values[:-1] <= reach * DOWN).all())


def _lower(computed: Array, epsilon: Array, mu: float) -> Array:
    """What is surely left of ``gdp_delta``, which adds at most 1e-14 Phi(a) and a relative 1e-15 (1 + a^2 + eps)."""
    from scipy.special import ndtr  # pyright: ignore

    with np.errstate(over="ignore", invalid="ignore"):  # what is no number is below nothing
        a = mu / 2 - epsilon / mu
        kept = computed * (1 - 2e-14 - 4e-15 * (1 + a * a + epsilon)) - 4e-14 * ndtr(a) - 5e-15 * (a > 0) - TINY
    return np.maximum(0.0, kept)


def _searched(curve: Curve, failure: float, least: float) -> float:
    points = _table(curve, least) or _table(curve, failure)
    if points is None or not _below(*points, MOST, failure):
        return math.inf
    low, high = 0.0, 1e-3
    while not _below(*points, high, failure):
        low, high = high, 2 * high
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if _below(*points, middle, failure) else (middle, high)
    return high
