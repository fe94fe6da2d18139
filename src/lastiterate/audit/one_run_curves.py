"""Auditing with a single training run, against a whole privacy curve (Mahloujifar, Melis, Chaudhuri 2024).

Every record is in with probability 1/2, and r of m are guessed. p_j is the probability that j guesses are right, f the
trade-off function of one record. Given the others' guesses, a guess is right no more often than f allows where it is
wrong; averaged over the records, for every i

    sum_{j >= i} j p_j / m  <=  1 - f(sum_{j >= i} (r - j + 1) p_{j-1} / m).

Among all p with P[at least c right] = tau, the one with all of tau at c, and then as little as these inequalities allow
at c - 1, c - 2, ..., has the least mass in all: (r - i) right_i - i wrong_i is r / m times the sum of all tails beyond
i, so that larger tails beyond i and more wrong guesses from i on mean larger tails from i on. If even that mass exceeds
1, a run of this curve has c right guesses with a probability below tau.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lastiterate.audit.claim import EPSILONS

Inverse = Callable[[float], float]
"""The smallest x with 1 - f(x) >= y, or less: f is a trade-off function."""
SLACK = 1e-9
"""By which the mass must exceed 1, far above rounding."""


def impossible(allowed: Inverse, correct: int, guesses: int, records: int, failure: float) -> bool:
    """Whether ``correct`` or more of ``guesses`` about ``records`` have a probability below ``failure``."""
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
    """Of a claim with these deltas at ``EPSILONS``: each of them bounds f from below, so that any few of them do."""
    shrunk, grown = np.exp(-EPSILONS), np.exp(EPSILONS)

    def allowed(y: float) -> float:
        bounds = np.maximum((y - deltas) * shrunk, 1 - deltas - grown * (1 - y))
        return max(0.0, float(bounds.max()))

    return allowed
