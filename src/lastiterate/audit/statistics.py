"""What error counts of an attack prove about privacy, with one failure budget and no hidden
multiplicity.

An attack says "in" or "out"; a false positive is "in" for a model of the data set without the
record. If the mechanism is (eps, delta)-DP, every attack has FPR + e^eps FNR >= 1 - delta and e^eps
FPR + FNR >= 1 - delta (Kairouz, Oh, Viswanath 2015), so upper confidence bounds on both rates
(Clopper, Pearson 1934) give a lower bound on eps. Counts may be arrays: everything is elementwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lastiterate.curves.curve import Curve
from lastiterate.curves.gaussian import Gdp
from lastiterate.errors import InputError
from lastiterate.run.validation import Array, check_interval

EPSILONS = np.concatenate(([0.0], np.geomspace(0.02, 14.0, 60)))
"""Where curves are read; any of them may refute, and none is chosen on the models that count."""
ROUND = 1e-9
"""Relative allowance for the rounding of incomplete beta functions, far above it; always on the
safe side."""


def rate_upper(errors: ArrayLike, trials: ArrayLike, failure: ArrayLike) -> Array:
    """Clopper and Pearson's one-sided bound: the true rate exceeds it with probability at most
    ``failure``."""
    from scipy.special import betaincinv  # pyright: ignore

    k, n = np.broadcast_arrays(
        np.asarray(errors, dtype=np.float64), np.asarray(trials, dtype=np.float64)
    )
    upper = betaincinv(k + 1, np.maximum(n - k, 1.0), 1 - np.asarray(failure))
    return np.minimum(np.where(k >= n, 1.0, upper * (1 + ROUND)), 1.0)


@dataclass(frozen=True)
class Counts:
    """Errors of one attack at one threshold; the threshold was fixed without looking at these
    models."""

    false_positives: ArrayLike
    negatives: ArrayLike  #: models of the data set without the record
    false_negatives: ArrayLike
    positives: ArrayLike  #: models of the data set with it

    def bounds(self, failure: float) -> tuple[Array, Array]:
        """Upper bounds on both rates that hold together, except with probability ``failure``."""
        return (
            rate_upper(self.false_positives, self.negatives, failure / 2),
            rate_upper(self.false_negatives, self.positives, failure / 2),
        )


def epsilon_lower(counts: Counts, delta: float, failure: float) -> Array:
    """Lower bound on epsilon at ``delta``, both directions of the test; valid for any mechanism."""
    return epsilon_at(*counts.bounds(failure), delta)


def epsilon_at(fpr: Array | float, fnr: Array | float, delta: float) -> Array:
    """The least epsilon >= 0 that allows these two rates at ``delta``."""
    with np.errstate(divide="ignore", invalid="ignore"):
        forth = np.log(np.maximum(1 - delta - fpr, 0.0) / fnr)
        back = np.log(np.maximum(1 - delta - fnr, 0.0) / fpr)
    return np.maximum(np.fmax(forth, back) * (1 - ROUND), 0.0)


def mu_lower(counts: Counts, failure: float) -> Array:
    """Lower bound on mu if the mechanism is mu-GDP: it is not, for any smaller mu (Nasr et al.
    2023).

    No statement about (eps, delta) follows unless the mechanism's trade-off function is known to be
    Gaussian.
    """
    return mu_at(*counts.bounds(failure))


def mu_at(fpr: ArrayLike, fnr: ArrayLike) -> Array:
    """The least mu >= 0 that allows these two rates: Phi^-1(1 - FPR) - Phi^-1(FNR)."""
    from scipy.special import ndtri  # pyright: ignore

    with np.errstate(invalid="ignore"):
        mu: Any = -ndtri(np.asarray(fpr)) - ndtri(np.asarray(fnr))
    return np.maximum(np.nan_to_num(mu, nan=0.0, neginf=0.0, posinf=np.inf) * (1 - ROUND), 0.0)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Epsilon at ``delta`` of a pair of Gaussians that is exactly mu-GDP, rounded down."""
    return Gdp(mu).epsilon(delta) * (1 - ROUND) if mu > 0 else 0.0


def refutes(curve: Curve, fpr: float, fnr: float) -> float | None:
    """An epsilon at which the curve's guarantee excludes rates as small as these; ``None`` if it
    allows them.

    The rates exclude (eps, delta) when delta < 1 - e^eps fpr - fnr or delta < 1 - fpr - e^eps fnr.
    Any epsilon that is looked at may refute; the search (a grid, then finer around its best point)
    only decides how sharp the test is.
    """
    low, high = 0.0, max(1e-3, math.log(1 / max(min(fpr, fnr), 1e-12)))
    for _ in range(3):
        grid = np.linspace(low, high, 25)
        margins = [_margin(curve, float(epsilon), fpr, fnr) for epsilon in grid]
        best = int(np.argmax(margins))
        if margins[best] > 0:
            return float(grid[best])
        low, high = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, grid.size - 1)])
    return None


def _margin(curve: Curve, epsilon: float, fpr: float, fnr: float) -> float:
    needed = 1 - min(math.exp(epsilon) * fpr + fnr, fpr + math.exp(epsilon) * fnr)
    return needed - curve.delta(epsilon) - 1e-12 if needed > 0 else needed


def find_ceiling(trials: int, failure: float, delta: float, thresholds: int = 1) -> float:
    """The largest lower bound that any attack can show: ``trials`` models per data set and no error
    at all."""
    bound = rate_upper(0, trials, failure / (2 * thresholds))
    return float(epsilon_at(bound, bound, delta))


def check_failure(failure: float) -> None:
    if not 0 < failure < 1:
        raise InputError(
            "failure", "must lie strictly between 0 and 1", failure, "0.05 is a common choice"
        )


def require_statement(trials: int, failure: float, delta: float, thresholds: int = 1) -> None:
    """Refuse an audit whose ceiling is zero: no outcome could say anything."""
    check_failure(failure)
    check_interval("delta", delta, 0, 1, "[)", "choose less than 1/n, such as 1e-6")
    if trials < 1 or find_ceiling(trials, failure, 0.0, thresholds) <= 0:
        # one error-free data set needs failure / (2 thresholds) < 2^-trials
        least = math.ceil(math.log2(2 * thresholds / failure)) + 1
        raise InputError(
            "trials",
            f"are too few for any statement at failure probability {failure:g}",
            trials,
            f"take at least {least} models per data set",
        )
    if find_ceiling(trials, failure, delta, thresholds) <= 0:
        raise InputError(
            "delta",
            "is above what the trials resolve: even an attack without errors would prove nothing",
            delta,
            "take a smaller delta, or more trials",
        )


@dataclass(frozen=True)
class CombinedBounds:
    """What several thresholds prove together; each was given its share of the failure probability."""

    counts: tuple[Counts, ...]
    failure: float

    def rates(self) -> list[tuple[float, float]]:
        """Upper bounds (fpr, fnr) at every threshold; all of them hold at once, except with
        ``failure``."""
        share = self.failure / len(self.counts)
        return [(float(a), float(b)) for a, b in (counts.bounds(share) for counts in self.counts)]

    def epsilon(self, delta: float) -> float:
        return max(float(epsilon_at(*pair, delta)) for pair in self.rates())

    def mu(self) -> float:
        return max(float(mu_at(*pair)) for pair in self.rates())

    def refute(self, curves: Sequence[Curve]) -> float | None:
        """An epsilon at which one of the curves, all said to hold, is refuted."""
        epsilons = [refutes(curve, *pair) for curve in curves for pair in self.rates()]
        return next((epsilon for epsilon in epsilons if epsilon is not None), None)


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
