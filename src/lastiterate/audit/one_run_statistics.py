"""Lower bounds from a single training run, for one epsilon and for a whole privacy curve."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from lastiterate.audit.statistics import EPSILONS, check_failure
from lastiterate.errors import InputError
from lastiterate.run.validation import check_interval

# Auditing with a single training run, against a whole privacy curve (Mahloujifar, Melis, Chaudhuri
# 2024).  Every record is in with probability 1/2, and r of m are guessed. p_j is the probability
# that j guesses are right, f the trade-off function of one record. Given the others' guesses, a
# guess is right no more often than f allows where it is wrong; averaged over the records, for every
# i      sum_{j >= i} j p_j / m  <=  1 - f(sum_{j >= i} (r - j + 1) p_{j-1} / m).  Among all p with
# P[at least c right] = tau, the one with all of tau at c, and then as little as these inequalities
# allow at c - 1, c - 2, ..., has the least mass in all: (r - i) right_i - i wrong_i is r / m times
# the sum of all tails beyond i, so that larger tails beyond i and more wrong guesses from i on mean
# larger tails from i on. If even that mass exceeds 1, a run of this curve has c right guesses with
# a probability below tau.

Inverse = Callable[[float], float]
"""The smallest x with 1 - f(x) >= y, or less: f is a trade-off function."""
SLACK = 1e-9
"""By which the mass must exceed 1, far above rounding."""


def impossible(allowed: Inverse, correct: int, guesses: int, records: int, failure: float) -> bool:
    """Whether ``correct`` or more of ``guesses`` about ``records`` have a probability below
    ``failure``."""
    share = guesses / records
    right, wrong = failure * correct / records, failure * (guesses - correct) / records
    for i in range(correct - 1, -1, -1):
        needed = allowed(right)
        if needed > wrong:
            right += i / (guesses - i) * (needed - wrong)
            wrong = needed
        if right + wrong > share * (1 + SLACK):
            return True
    return False


def of_deltas(deltas: np.ndarray) -> Inverse:
    """Of a claim with these deltas at ``EPSILONS``: each of them bounds f from below, so that any
    few of them do."""
    shrunk, grown = np.exp(-EPSILONS), np.exp(EPSILONS)

    def bound(y: float) -> float:
        bounds = np.maximum((y - deltas) * shrunk, 1 - deltas - grown * (1 - y))
        return max(0.0, float(bounds.max()))

    return bound


# Auditing with a single training run: many canaries at once, each included with probability 1/2.
# Steinke, Nasr, Jagielski 2023: if the run is (eps, delta)-DP, the number of correct guesses among
# r is at least v with probability at most P[W >= v] + 2 m delta max_{1 <= i <= m} P[v - i <= W < v]
# / i, W ~ Bin(r, e^eps / (1 + e^eps)). Guesses may abstain (r < m). Neighbours add or remove one
# record; so does zero-out, where n is public.


def one_run_p_value(
    correct: int, guesses: int, records: int, epsilon: float, delta: float
) -> float:
    """Upper bound on the probability that an (epsilon, delta)-DP run makes ``correct`` or more of
    ``guesses``."""
    from scipy.special import bdtr, expit  # pyright: ignore

    _check(correct, guesses, records, delta)
    q = float(expit(epsilon))

    def below(v: np.ndarray | int) -> np.ndarray:
        """P[W <= v - 1]."""
        v = np.asarray(v)
        return np.where(v <= 0, 0.0, bdtr(np.maximum(v - 1, 0), guesses, q))

    least = below(correct)
    steps = np.arange(
        1, max(1, min(records, correct)) + 1
    )  # beyond i = correct the probability grows no more
    spread = float(np.max((least - below(correct - steps)) / steps)) if correct > 0 else 0.0
    tail = float(_upper_tail(correct, guesses, q))
    return min(1.0, (tail + 2 * records * delta * spread) * (1 + 1e-9))


def _upper_tail(correct: int, guesses: int, q: float) -> float:
    """P[W >= correct], without cancellation."""
    from scipy.special import bdtrc  # pyright: ignore

    return 1.0 if correct <= 0 else float(bdtrc(correct - 1, guesses, q))


def one_run_epsilon(
    correct: int, guesses: int, records: int, delta: float, failure: float
) -> float:
    """Bound epsilon from below by the correct guesses about records of one run.

    Parameters
    ----------
    correct : int
        Number of correct guesses.
    guesses : int
        Number of guesses, at least 1.
    records : int
        Number of records that were included at random.
    delta : float
        Delta at which epsilon is stated, within [0, 1).
    failure : float
        Probability that the bound is wrong.

    Returns
    -------
    float
        Lower bound on epsilon, rounded down.

    Raises
    ------
    InputError
        If a number is out of range.

    Notes
    -----
    Any epsilon that the p-value excludes on the way up is a lower bound, so the search stops at the
    first one that is not excluded. Source: Steinke, Nasr and Jagielski 2023.

    Examples
    --------
    >>> from lastiterate.audit import one_run_epsilon
    >>> one_run_epsilon(50, 100, 1000, 1e-5, 0.05)
    0.0
    >>> one_run_epsilon(100, 100, 1000, 1e-5, 0.05) > 2
    True
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
        low, high = (
            (middle, high)
            if one_run_p_value(correct, guesses, records, middle, delta) <= failure
            else (low, middle)
        )
    return math.nextafter(low, 0.0)


def _check(correct: int, guesses: int, records: int, delta: float) -> None:
    if not 0 <= correct <= guesses <= records or guesses < 1:
        raise InputError(
            "guesses",
            "must satisfy 0 <= correct <= guesses <= records, guesses >= 1",
            (correct, guesses, records),
        )
    check_interval("delta", delta, 0, 1, "[)", "choose less than 1/n, such as 1e-6")
