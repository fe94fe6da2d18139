"""Budgets that mean something: numbers that cannot are refused, numbers that say little are warned of."""

from __future__ import annotations

import warnings

from lastiterate.curves.curve import check_delta
from lastiterate.errors import BudgetWarning, InputError
from lastiterate.run.validate import number

LARGEST_EPSILON, LARGEST_DELTA = 1e3, 0.5
"""Beyond them a guarantee rules out nothing that anybody could observe: odds of e^1000, or every second release."""


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
    warn_of_delta(delta, n, stacklevel=4)


def warn_of_delta(delta: float, n: int, stacklevel: int = 3) -> None:
    """Warn where delta exceeds 1/n."""
    if delta > 1 / n:
        warnings.warn(f"delta = {delta:g} exceeds 1/n = {1 / n:.2g}: a mechanism that publishes one random record in "
                      "full keeps such a budget; choose a delta far below 1/n", BudgetWarning, stacklevel=stacklevel)
