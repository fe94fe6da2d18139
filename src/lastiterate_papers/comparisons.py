"""What published claims are compared with: rows of the table of theorems, and exact mixtures of
Gaussians."""

from __future__ import annotations

import math

import numpy as np

import lastiterate as li
from lastiterate.curves import Curve, LowerBound
from lastiterate.errors import InputError
from lastiterate.theorems import TABLE, Fails, match

# Rows of the table, and the numbers that are put in.


def assumed(**constants: float) -> li.KnownConstants:
    """A loss known by its constants, the caller's word."""
    return li.KnownConstants(li.LossFacts(**constants))


def bound(name: str, run: li.Run) -> Curve | LowerBound:
    """What one row of the table says about a run; ``InputError`` with its reasons where it does not
    apply."""
    found = match(TABLE[name], run)
    if isinstance(found, Fails):
        raise InputError(name, "must apply to the run", None, "; ".join(found.reasons))
    return found.bound


def curve(name: str, run: li.Run) -> Curve:
    """The curve of a row that applies."""
    found = bound(name, run)
    if isinstance(found, LowerBound):
        raise InputError(name, "gives a lower bound, not a curve", None)
    return found


def positive(name: str, value: float) -> None:
    """Refuse what is not a finite number above 0."""
    if not 0 < value < math.inf:
        raise InputError(name, "must be a finite number > 0", value, "the statement needs it")


def whole(name: str, value: int, least: int = 1) -> None:
    """Refuse anything but an integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(name, f"must be an integer >= {least}", value)


# Exact distributions: one-dimensional mixtures of Gaussians, by quadrature.

Mixture = tuple[tuple[float, ...], tuple[float, ...]]
"""Weights and means; all components have one standard deviation."""


def log_density(x: np.ndarray, mixture: Mixture, std: float) -> np.ndarray:
    """log density of a mixture at ``x``."""
    from scipy.special import logsumexp

    logs = [np.log(w) - ((x - m) / std) ** 2 / 2 for w, m in zip(*mixture, strict=True) if w > 0]
    return np.asarray(logsumexp(np.array(logs), axis=0)) - np.log(std * np.sqrt(2 * np.pi))


def renyi(order: float, p: Mixture, q: Mixture, std: float, points: int = 200_001) -> float:
    """Renyi divergence of p from q: the integrand is a sum of bumps around m + order (m' - m)."""
    from scipy.special import logsumexp

    means = np.array([*p[1], *q[1]])
    spread = float(np.ptp(means))
    x = np.linspace(
        means.min() - order * spread - 12 * std, means.max() + order * spread + 12 * std, points
    )
    logs = order * log_density(x, p, std) + (1 - order) * log_density(x, q, std)
    return float(np.asarray(logsumexp(logs)) + np.log(x[1] - x[0])) / (order - 1)


def projected_renyi(
    order: float, p: Mixture, q: Mixture, std: float, low: float, high: float, points: int = 200_001
) -> float:
    """The same after projection on [low, high]: two atoms and a density between them."""
    from scipy.special import log_ndtr, logsumexp

    def atoms(mixture: Mixture) -> np.ndarray:
        logs, means = np.log(np.array(mixture[0])), np.array(mixture[1])
        return np.array(
            [
                logsumexp(logs + log_ndtr((low - means) / std)),
                logsumexp(logs + log_ndtr((means - high) / std)),
            ]
        )

    x = np.linspace(low, high, points)
    inside = (
        order * log_density(x, p, std) + (1 - order) * log_density(x, q, std) + np.log(x[1] - x[0])
    )
    logs = np.concatenate((inside, order * atoms(p) + (1 - order) * atoms(q)))
    return float(np.asarray(logsumexp(logs))) / (order - 1)


def hockey_stick(
    epsilon: float, p: Mixture, q: Mixture, std: float, points: int = 100_001
) -> float:
    """The larger delta(epsilon) of both orders of a pair."""
    means = np.array([*p[1], *q[1]])
    x = np.linspace(means.min() - 12 * std, means.max() + 12 * std, points)
    one, two = np.exp(log_density(x, p, std)), np.exp(log_density(x, q, std))
    grown, width = np.exp(epsilon), float(x[1] - x[0])
    return float(
        max(np.maximum(one - grown * two, 0).sum(), np.maximum(two - grown * one, 0).sum()) * width
    )


def epsilon_of(delta: float, p: Mixture, q: Mixture, std: float, points: int = 100_001) -> float:
    """The epsilon at which ``hockey_stick`` is ``delta``, by bisection."""
    low, high = 0.0, 1.0
    while hockey_stick(high, p, q, std, points) > delta:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if hockey_stick(middle, p, q, std, points) > delta else (low, middle)
        )
    return high
