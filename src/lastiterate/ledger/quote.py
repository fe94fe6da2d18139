"""What a report and the command line quote of a ledger: a line, its data set, and sums."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import final

from lastiterate.accounting.certificate_subject import format_rounded_up
from lastiterate.accounting.tradeoff_summary import bound_right_guesses
from lastiterate.curves.composition import WithFailure, curve_from_dict
from lastiterate.curves.curve import Curve
from lastiterate.curves.gaussian import Gdp
from lastiterate.curves.renyi import Rdp
from lastiterate.errors import InputError
from lastiterate.ledger.budget_check import Release, Total
from lastiterate.ledger.filters import FAILURE_UNIT, UNIT, Filter, GaussianFilter
from lastiterate.ledger.ledger import Ledger

MOST_OTHERS = 20
"""Other data sets that are named, at most."""


@final
@dataclass(frozen=True)
class Quote:
    """The line of a released model, and the budget that it belongs to.

    ``run``: hash of what was certified. ``left``: name and share of each dimension of the budget
    that all releases together have not spent. ``together``: what holds for all of them.
    ``problems``: of the ledger, as ``verify`` finds. ``others``: further data sets of the file,
    whose releases its budget does not count. ``total``: the epsilon of the budget, ``right``: how
    often a guess is right at most, for all releases together; ``unproven``: whether both are for
    single rows only.
    """

    dataset: str
    unit: str
    adjacency: str
    number: int
    day: str
    run: str
    releases: int
    left: tuple[tuple[str, float], ...]
    together: str
    problems: tuple[str, ...]
    others: tuple[str, ...] = ()
    total: str = ""
    right: float = 1.0
    unproven: bool = False

    @property
    def about_others(self) -> str:
        """That releases on the file's other data sets are not counted; empty without any."""
        if not self.others:
            return ""
        return (
            f"not counted: releases on {_list_datasets(self.others)} of the same ledger; for whoever "
            "is in both they add up"
        )


def _list_datasets(names: tuple[str, ...]) -> str:
    """The first names, and how many more there are."""
    more = len(names) - MOST_OTHERS
    return ", ".join(names[:MOST_OTHERS]) + (f" and {more} more" if more > 0 else "")


def describe_second_name(ledger: Ledger, first: Total) -> str:
    """That other data sets of the file were charged, where ``first`` was not yet; empty without any."""
    counted = {
        name: any(line.state != "cancelled" for line in ledger.total(name).releases)
        for name in ledger.datasets()
    }
    others = tuple(name for name, charged in counted.items() if charged and name != first.dataset)
    if counted[first.dataset] or not others:
        return ""
    return (
        f"{ledger.path.name} also holds releases on {_list_datasets(others)}, and this is the first on "
        f"{first.dataset}: if these records are in one of them, charge it under that name, since the "
        "budgets of two names add up"
    )


def _truncate(total: Total, count: int) -> Total:
    """Return a data set as it was after its first ``count`` charges that still count."""
    kept = [line for line in total.releases if line.state != "cancelled"][:count]
    costs = [line.charge.costs for line in kept]
    numbers = {line.number for line in kept}
    return replace(
        total,
        releases=tuple(kept),
        spent=tuple(sum(cost[part] for cost in costs) for part in range(len(total.spent))),
        unproven=tuple(number for number in total.unproven if number in numbers),
    )


def quote_line(ledger: Ledger, weights_sha256: str, releases: int | None = None) -> Quote:
    """The line whose model has these weights; refused where the ledger has none.

    ``releases``: how many charges an earlier quote counted, to repeat it; those up to the line
    itself are always counted.
    """
    problems = ledger.verify()
    for name in ledger.datasets():
        total = ledger.total(name)
        for release in total.releases:
            if release.model == weights_sha256:
                counting = [other.number for other in total.releases if other.state != "cancelled"]
                place = sum(
                    number <= release.number for number in counting
                )  # numbers run through all data sets
                if releases is not None:
                    total = _truncate(total, max(place, releases))
                    counting = [other.number for other in total.releases]
                left = tuple(zip(total.filter.dimensions, total.left, strict=True))
                return Quote(
                    total.dataset,
                    total.unit,
                    total.adjacency,
                    place,
                    release.day,
                    release.run,
                    len(counting),
                    left,
                    together(total),
                    problems,
                    tuple(other for other in ledger.datasets() if other != name),
                    _state_total(total.filter),
                    bound_right_guesses(total.filter.total()),
                    bool(total.unproven),
                )
    raise InputError(
        "ledger",
        "must have a line of this model",
        str(ledger.path),
        "name the ledger that it was charged to",
    )


DELTAS = (1e-5, 1e-4, 1e-6, 1e-8, 1e-3, 0.01, 0.1)
"""Values of delta at which a total is stated: the first where its epsilon is finite."""
MOST_EPSILON = 1e3


def budget_delta(budget: Filter) -> float | None:
    """The delta at which a budget is stated; ``None`` where its epsilon is large at all of them.

    It is ten failure probabilities, or a usual one.
    """
    chosen = list[float]()
    if isinstance(budget, GaussianFilter) and 0 < budget.failure < 0.1:
        chosen.append(float(f"{10 * budget.failure:g}"))
    curve = budget.total()
    return next((one for one in (*chosen, *DELTAS) if curve.epsilon(one) <= MOST_EPSILON), None)


def _state_total(budget: Filter) -> str:
    """The epsilon of a budget."""
    delta = budget_delta(budget)
    if delta is None:
        return f"no epsilon below {MOST_EPSILON:g} at delta {DELTAS[-1]:g} or less"
    return f"epsilon {format_rounded_up(budget.total().epsilon(delta))} at delta {delta:g}"


def find_charged_epsilon(release: Release, delta: float) -> float:
    """The epsilon of what a release was charged for, of a group of its rows where it was."""
    return curve_from_dict(json.loads(release.curve)).epsilon(delta)


def count_repeats(total: Total) -> int | None:
    """How many more charges like the newest that counts fit into the budget; ``None`` where there
    is no such charge, or it cost nothing."""
    counted = [release for release in total.releases if release.state != "cancelled"]
    if not counted:
        return None
    rows = zip(total.filter.budget, total.spent, counted[-1].charge.costs, strict=True)
    return min(
        (max(0, budget - spent) // cost for budget, spent, cost in rows if cost), default=None
    )


def _describe_spent(total: Total) -> str:
    """The spent share of the budget, and the epsilon of all charges together; both rounded up.

    **Guarantee:** the epsilon is stated for costs that did not depend on earlier results, since
    otherwise only the budget is a bound (docs/theorems/privacy-filters).
    """
    pairs = zip(total.spent, total.filter.budget, strict=True)
    spent = max(Fraction(part, whole) if whole else Fraction(0) for part, whole in pairs)
    share = math.ceil(10000 * spent) / 100
    said = f"{share:g} %" if share < 100 or spent >= 1 else "more than 99.99 %"
    delta = budget_delta(total.filter)
    if spent == 0 or delta is None:
        return said
    epsilon = _spent_curve(total).epsilon(delta)
    known = format_rounded_up(epsilon) if math.isfinite(epsilon) else "infinite"
    return (
        f"{said}, which is epsilon {known} at delta {delta:g} if no release's cost was chosen by an "
        "earlier result"
    )


def _spent_curve(total: Total) -> Curve:
    """What charges that were fixed beforehand hold together, rounded up."""
    if isinstance(total.filter, GaussianFilter):
        square, failed = total.spent
        mu, failure = math.sqrt(square * UNIT), float(failed * FAILURE_UNIT)
        up = 1 + 1e-12
        return WithFailure(Gdp(mu * up), failure * up) if failure else Gdp(mu * up)
    values = tuple(math.nextafter(float(cost * UNIT), math.inf) for cost in total.spent)
    return Rdp(orders=total.filter.orders, values=values)


def together(total: Total) -> str:
    """Return the budget of all releases of a data set together and its spent part, in words.

    It is for single rows where lines are not known to protect a unit.
    """
    within = f"{_state_total(total.filter)}; spent: {_describe_spent(total)}"
    if not total.unproven:
        return f"budget: {within}"
    listed = ", ".join(map(str, total.unproven))
    return (
        f"no total is known for a {total.unit}: releases {listed} are not known to protect more "
        f"than a row; for a "
        f"single row {within}"
    )
