"""Budgets that mean something, and certificates that exceed theirs: both are refused before a record is read."""

from __future__ import annotations

import math
import warnings

from lastiterate.accounting.guarantee import Guarantee
from lastiterate.accounting.wording import rounded_up
from lastiterate.curves.curve import check_delta
from lastiterate.errors import BudgetWarning, InputError, outside
from lastiterate.run.validate import number

LARGEST_EPSILON, LARGEST_DELTA = 1e3, 0.5
"""Beyond them a guarantee rules out nothing that anybody could observe: odds of e^1000, or every second release."""
LARGE_EPSILON = 20.0
"""Beyond this epsilon next to nothing is promised: e^20 is half a billion."""


def check_range(epsilon: float, delta: float, n: int | None = None) -> None:
    """Refuse what no budget can be; ``n``: the number of records, where it is known."""
    if not 0 < number("epsilon", epsilon) <= LARGEST_EPSILON:
        raise InputError("epsilon", f"must be a positive number, at most {LARGEST_EPSILON:g}", epsilon,
                         "1 is a common choice, and beyond 10 little is promised")
    check_delta(number("delta", delta))
    if delta >= LARGEST_DELTA:
        raise InputError("delta", f"must lie below {LARGEST_DELTA:g}", delta,
                         "choose less than 1/n" + ("" if n is None else f" = {1 / n:.1g}"))


def check_budget(epsilon: float, delta: float, n: int) -> None:
    """The same, and warn where delta exceeds 1/n, n the number of records."""
    check_range(epsilon, delta, n)
    warn_of_delta(delta, n)
    warn_of_epsilon(epsilon)


def check_within(guarantee: Guarantee, epsilon: float, delta: float) -> None:
    """Refuse what is certified with more than the budget that it was planned for.

    Every search for a noise ends here, and every release passes here before it is charged: a search that found too
    little is refused, whatever went wrong in it.
    """
    reached = guarantee.epsilon(delta)
    if not reached <= epsilon:
        found = f"epsilon {rounded_up(reached)}" if reached < math.inf else "no epsilon at all"
        raise InputError("epsilon", f"is exceeded by what would run, which is certified with {found} at delta = "
                         f"{delta:g}", epsilon, "ask for a larger epsilon or delta; no record was read")


def warn_of_epsilon(epsilon: float) -> None:
    """Warn where next to nothing is promised."""
    if LARGE_EPSILON < epsilon < math.inf:
        warnings.warn(f"epsilon = {epsilon:.4g} promises next to nothing: somebody's odds of guessing right may grow "
                      f"by a factor of e^{epsilon:.4g}; beyond {LARGE_EPSILON:g} it is a number for comparisons, not a "
                      "protection", BudgetWarning, stacklevel=outside())


def warn_of_delta(delta: float, n: int) -> None:
    """Warn where delta exceeds 1/n."""
    if delta > 1 / n:
        warnings.warn(f"delta = {delta:g} exceeds 1/n = {1 / n:.2g}: a mechanism that publishes one random record in "
                      "full keeps such a budget; choose a delta far below 1/n", BudgetWarning, stacklevel=outside())
