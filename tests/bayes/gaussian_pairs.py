"""Oracles of pairs of Gaussians: Renyi divergences of vectors, and exact delta(epsilon) in one
dimension."""

import math

import numpy as np

from lastiterate.curves.roots import smallest_true
from lastiterate.run.validation import Array


def renyi_matrix(
    order: float, mean1: Array, precision1: Array, mean2: Array, precision2: Array
) -> float:
    """``renyi`` for vectors; means of shape (d,), precision matrices of shape (d, d)."""
    joint = order * precision1 - (order - 1) * precision2
    if np.linalg.eigvalsh(joint)[0] <= 0:
        return math.inf
    gap = mean1 - mean2
    logs = [float(np.linalg.slogdet(matrix)[1]) for matrix in (precision1, precision2, joint)]
    logarithm = (order * logs[0] - (order - 1) * logs[1] - logs[2]) / (2 * (order - 1))
    return logarithm + order / 2 * float(
        (precision1 @ gap) @ np.linalg.solve(joint, precision2 @ gap)
    )


def delta_between(
    epsilon: float, mean1: float, variance1: float, mean2: float, variance2: float
) -> float:
    """The largest P1(S) - e^epsilon P2(S) over all events, for two Gaussians: exact up to rounding.

    In units of the first one the log-likelihood ratio is a z^2 + b z + c; the best event is where
    it exceeds epsilon.
    """
    from scipy.special import log_ndtr

    shift, ratio = (mean2 - mean1) / math.sqrt(variance1), math.sqrt(variance2 / variance1)
    a, b = (1 / ratio**2 - 1) / 2, -shift / ratio**2
    c = (shift / ratio) ** 2 / 2 + math.log(ratio) - epsilon

    def above(z: float) -> float:  # the value of the event "larger than z"
        return math.exp(log_ndtr(-z)) - math.exp(epsilon + log_ndtr((shift - z) / ratio))

    def below(z: float) -> float:
        return math.exp(log_ndtr(z)) - math.exp(epsilon + log_ndtr((z - shift) / ratio))

    square = b * b - 4 * a * c
    if abs(a) * (abs(c) + 1) < 1e-14 * b * b:  # equal variances: one root
        return max(0.0, above(-c / b) if b > 0 else below(-c / b))
    if square <= 0:
        return 0.0 if a <= 0 else -math.expm1(epsilon)
    root = -(b + math.copysign(math.sqrt(square), b)) / 2
    low, high = sorted((root / a, c / root))
    if a > 0:
        return max(0.0, below(low) + above(high))
    if low + high > 0:  # differences of small tails, not of numbers near one
        return max(0.0, above(low) - above(high))
    return max(0.0, below(high) - below(low))


def epsilon_between(
    delta: float, mean1: float, variance1: float, mean2: float, variance2: float
) -> float:
    """The epsilon at which ``delta_between`` is ``delta`` (0 where delta is never exceeded)."""

    def held(epsilon: float) -> bool:
        return delta_between(epsilon, mean1, variance1, mean2, variance2) <= delta

    high = 1.0
    while not held(high):
        high *= 2
    return smallest_true(held, 0.0, high)
