"""Auditing with a single training run: many canaries at once, each included with probability 1/2.

Steinke, Nasr, Jagielski 2023: if the run is (eps, delta)-DP, the number of correct guesses among r is at least v with
probability at most P[W >= v] + 2 m delta max_{1 <= i <= m} P[v - i <= W < v] / i, W ~ Bin(r, e^eps / (1 + e^eps)).
Guesses may abstain (r < m). Neighbours add or remove one record; so does zero-out, where n is public.
"""

from __future__ import annotations

import math

import numpy as np

from lastiterate.audit.statistics import check_failure
from lastiterate.errors import InputError


def one_run_p_value(correct: int, guesses: int, records: int, epsilon: float, delta: float) -> float:
    """Upper bound on the probability that an (epsilon, delta)-DP run makes ``correct`` or more of ``guesses``."""
    from scipy.special import bdtr, expit  # pyright: ignore

    _check(correct, guesses, records, delta)
    q = float(expit(epsilon))

    def below(v: np.ndarray | int) -> np.ndarray:
        """P[W <= v - 1]."""
        v = np.asarray(v)
        return np.where(v <= 0, 0.0, bdtr(np.maximum(v - 1, 0), guesses, q))

    least = below(correct)
    steps = np.arange(1, max(1, min(records, correct)) + 1)  # beyond i = correct the probability grows no more
    spread = float(np.max((least - below(correct - steps)) / steps)) if correct > 0 else 0.0
    tail = float(_upper_tail(correct, guesses, q))
    return min(1.0, (tail + 2 * records * delta * spread) * (1 + 1e-9))


def _upper_tail(correct: int, guesses: int, q: float) -> float:
    """P[W >= correct], without cancellation."""
    from scipy.special import bdtrc  # pyright: ignore

    return 1.0 if correct <= 0 else float(bdtrc(correct - 1, guesses, q))


def one_run_epsilon(correct: int, guesses: int, records: int, delta: float, failure: float) -> float:
    """Lower bound on epsilon at ``delta`` from ``correct`` of ``guesses`` about ``records`` records, in one run.

    The p-value grows with epsilon where it matters; any epsilon that it excludes on the way up is a lower bound, so the
    search stops at the first one that is not excluded.
    """
    _check(correct, guesses, records, delta)
    check_failure(failure)
    low, high = 0.0, 1.0
    if one_run_p_value(correct, guesses, records, 0.0, delta) > failure:
        return 0.0
    while one_run_p_value(correct, guesses, records, high, delta) <= failure:
        low, high = high, high + 1.0
        if high > 100:
            return low
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if one_run_p_value(correct, guesses, records, middle, delta) <= failure else (
            low, middle)
    return math.nextafter(low, 0.0)


def _check(correct: int, guesses: int, records: int, delta: float) -> None:
    if not 0 <= correct <= guesses <= records or guesses < 1:
        raise InputError("guesses", "must satisfy 0 <= correct <= guesses <= records, guesses >= 1",
                         (correct, guesses, records))
    if not 0 <= delta < 1:
        raise InputError("delta", "must lie in [0, 1)", delta, "choose less than 1/n, such as 1e-6")
