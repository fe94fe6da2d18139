"""What a ledger's file says: the lines of its history, a data set's budget, and what is wrong with either."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from dataclasses import dataclass
from typing import Any, Literal, cast, final

from lastiterate.curves.composition import curve_from_dict
from lastiterate.errors import InputError
from lastiterate.ledger import history
from lastiterate.ledger.filters import Charge, Filter, filter_from_dict

ROWS = {"row", "record", "rows", "records", "example", "examples", "image", "images"}
"""What ledgers call single rows."""
ARTICLES = {"a", "an", "one", "single", "each", "every"}
Stage = Literal["reserved", "touched", "released", "cancelled"]
COLUMNS = ", ".join(history.LINE)


@final
@dataclass(frozen=True)
class Release:
    """One line of the history. ``chain`` ties it to all lines before it; ``model`` is the hash of what was released."""

    number: int
    token: str
    dataset: str
    purpose: str
    run: str
    curve: str
    costs: str
    day: str
    chain: str
    state: Stage
    model: str | None
    checkpoint: int

    @property
    def charge(self) -> Charge:
        """What the release was charged; ``InputError`` where the line holds no charge."""
        costs = _json(self.costs)
        if not isinstance(costs, list) or not all(type(cost) is int and cost >= 0 for cost in cast(list[Any], costs)):
            raise InputError("ledger", f"holds no charge in line {self.number}", None, "restore it from a copy")
        return Charge(tuple(cast(list[int], costs)))


@final
@dataclass(frozen=True)
class Total:
    """A data set's budget, what is spent of it, and the releases; ``left`` is a share in [0, 1] per dimension.

    ``rows``: the most rows that one unit has in the data, where the ledger's keeper stated it. ``unproven``: numbers of
    the lines that count and are not known to protect a whole unit.
    """

    dataset: str
    unit: str
    adjacency: str
    filter: Filter
    spent: tuple[int, ...]
    releases: tuple[Release, ...]
    rows: int | None = None
    unproven: tuple[int, ...] = ()

    @property
    def of_rows(self) -> bool:
        """Whether the unit is a single row."""
        return is_row(self.unit)

    def groups(self, protected: int | None) -> int:
        """How many groups of ``protected`` rows make up one unit (``None``: all rows of a unit are protected together).

        **Guarantee:** a charge that protects less than a unit is converted by this number, or refused here.
        """
        if protected is None or self.of_rows:
            return 1
        if self.rows is None and protected > 1:  # the run states the most rows of its unit: the caller's word
            return 1
        if self.rows is None:
            raise InputError("unit", f"must be given: the budget of {self.dataset} is per {self.unit}, and "
                             "this release protects one row", None, "say whose a row is (unit=), or state the "
                             f"most rows that one {self.unit} has (lastiterate ledger rows); nothing was charged")
        return -(-self.rows // protected)

    @property
    def left(self) -> tuple[float, ...]:
        """The share of the budget that is left, in 0 .. 1, for each of its dimensions."""
        pairs = zip(self.filter.budget, self.spent, strict=True)
        return tuple(max(0.0, (budget - spent) / budget) if budget else 0.0 for budget, spent in pairs)


def line_of(connection: sqlite3.Connection, token: str) -> Release:
    """The line that ``token`` names."""
    row = connection.execute(f"SELECT {COLUMNS} FROM releases WHERE token = ?", (token,)).fetchone()
    if row is None:
        raise InputError("ledger", "does not know this release", None, "use the ledger that the run was started with")
    return Release(*row)


def total_of(connection: sqlite3.Connection, dataset: str | None) -> Total:
    rows = connection.execute("SELECT name, unit, adjacency, filter FROM datasets ORDER BY name").fetchall()
    rows = [row for row in rows if dataset in (None, row[0])]
    if len(rows) != 1:
        raise InputError("dataset", "must name a data set of this ledger", dataset,
                         "lastiterate ledger show FILE lists them")
    name, unit, adjacency, described = rows[0]
    limit = filter_from_dict(_json(described))
    listed = connection.execute(f"SELECT {COLUMNS} FROM releases WHERE dataset = ? ORDER BY number", (name,))
    releases = tuple(Release(*row) for row in listed.fetchall())
    rows, known = history.rows_per_unit(connection, name), history.lines_of_units(connection)
    # where a unit is one row, a line that protects one row protects it
    unproven = () if is_row(unit) or rows == 1 else tuple(
        release.number for release in releases if release.state != "cancelled" and release.token not in known)
    spent = [0] * len(limit.budget)
    for release in releases:
        costs = release.charge.costs
        if len(costs) != len(spent):
            raise InputError("ledger", f"holds no charge in line {release.number}", None, "restore it from a copy")
        if release.state != "cancelled":
            spent = [a + b for a, b in zip(spent, costs, strict=True)]
    return Total(name, unit, adjacency, limit, tuple(spent), releases, rows, unproven)


def is_row(unit: str) -> bool:
    """Whether a ledger's word for its unit means a single row of the data."""
    words = unit.lower().split()
    return " ".join(words[1:] if words[:1] and words[0] in ARTICLES else words) in ROWS


def unproven_lines(total: Total) -> str:
    """Which lines are not known to protect a unit, and what to do; "" where there are none."""
    if not total.unproven:
        return ""
    listed = ", ".join(map(str, total.unproven))
    words = ("line", "was", "it protects") if len(total.unproven) == 1 else ("lines", "were", "they protect")
    return (f"{words[0]} {listed} on {total.dataset} {words[1]} charged for single rows as far as the ledger "
            f"knows, and the budget is per {total.unit}: {words[2]} a {total.unit} only if none has several rows "
            "(if so, state it: lastiterate ledger rows FILE 1)")


def check_fits(total: Total, charge: Charge) -> None:
    rows = zip(total.filter.budget, total.spent, charge.costs, strict=True)
    if any(spent + cost > budget for budget, spent, cost in rows):
        raise refusal(total, charge, "ask for a smaller epsilon; no record was read, and nothing was charged")


def refusal(total: Total, charge: Charge | None, remedy: str) -> InputError:
    """What is said where a budget does not suffice for a charge, or no charge pays for a curve (``None``)."""
    said = f"refuses this release on {total.dataset}: "
    if charge is None:
        return InputError("ledger", said + f"its filter ({', '.join(total.filter.dimensions)}) has no charge for the "
                          "release's curve", None, remedy)
    name, budget, spent, cost = max(
        zip(total.filter.dimensions, total.filter.budget, total.spent, charge.costs, strict=True),
        key=lambda row: (row[2] + row[3] - row[1]) / max(row[1], 1))
    return InputError("ledger", said + f"it needs {_share(cost, budget)} of the budget ({name}), and "
                      f"{_share(max(0, budget - spent), budget)} is left", None, remedy)


def _share(part: int, budget: int) -> str:
    return f"{100 * part / budget:.3g}%" if budget else "more than nothing"


def chained(before: str, *line: object) -> str:
    return hashlib.sha256(json.dumps([before, *line]).encode()).hexdigest()


def charge_problems(connection: sqlite3.Connection, *, of_units: bool = True) -> list[str]:
    """What is wrong with charges, their chain and their sums; ``of_units``: and with whom they protect."""
    problems, units, before = list[str](), list[str](), ""
    for row in connection.execute(f"SELECT {COLUMNS} FROM releases ORDER BY number").fetchall():
        release = Release(*row)
        problems += _problems(connection, release, before)
        before = release.chain
    for (name,) in connection.execute("SELECT name FROM datasets").fetchall():
        try:
            total = total_of(connection, name)
        except InputError as error:
            problems.append(str(error))
            continue
        if said := unproven_lines(total):
            units.append(said)
        if any(spent > budget for spent, budget in zip(total.spent, total.filter.budget, strict=True)):
            problems.append(f"the releases on {name} exceed its budget")
    return [*problems, *units] if of_units else problems


def _problems(connection: sqlite3.Connection, release: Release, before: str) -> list[str]:
    """What is wrong with one line."""
    where, problems = f"line {release.number}", list[str]()
    line = (release.number, release.token, release.dataset, release.purpose, release.run, release.curve, release.costs,
            release.day)
    if chained(before, *line) != release.chain:
        problems.append(f"{where} was changed, or lines before it are missing")
    if (release.model is None) == (release.state == "released"):
        problems.append(f"{where} says {release.state}, and its model does not fit")
    try:
        total = total_of(connection, release.dataset)
        curve = curve_from_dict(_json(release.curve))
        covered = total.filter.covers(release.charge, curve)
    except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError, RecursionError):
        return [*problems, f"{where} holds no curve that can be charged"]
    return problems if covered else [*problems, f"{where} charges less than its curve costs"]


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):
        raise InputError("ledger", "holds text that is not JSON", None, "restore it from a copy") from None
