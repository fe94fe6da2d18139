"""The lines of a ledger, the budget of a data set, and the refusal of a charge that does not fit."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, cast, final

from lastiterate.curves.composition import curve_from_dict
from lastiterate.errors import NAME_UNITS, InputError
from lastiterate.ledger.database import (
    LINE,
    append,
    digest_of,
    hash_chain,
    lines_of_units,
    open_ledger,
    rows_per_unit,
    transaction,
)
from lastiterate.ledger.filters import Charge, Filter, filter_from_dict

ROWS = {"row", "record", "rows", "records", "example", "examples", "image", "images"}
"""Names of single rows in ledgers."""
ARTICLES = {"a", "an", "one", "single", "each", "every"}
Stage = Literal["reserved", "touched", "released", "cancelled"]
COLUMNS = ", ".join(LINE)


@final
@dataclass(frozen=True)
class Release:
    """One line of a ledger's history.

    Parameters
    ----------
    number : int
        Position in the history, from 1.
    token : str
        Name of the release.
    dataset : str
        Name of the data set.
    purpose : str
        Purpose in words.
    run : str
        Hash of the description that the curve follows from.
    curve : str
        Privacy curve, as JSON.
    costs : str
        Charge, as JSON.
    day : str
        Day of the reservation, as YYYY-MM-DD.
    chain : str
        Hash that ties the line to all lines before it.
    state : {"reserved", "touched", "released", "cancelled"}
        Stage of the release.
    model : str or None
        Hash of the released weights.
    checkpoint : int
        Number of the last checkpoint.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from lastiterate.curves import Gdp
    >>> from lastiterate.ledger import GaussianFilter, Ledger
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ledger = Ledger(Path(folder, "budget.ledger"))
    ...     ledger.add("clinic", unit="row", adjacency="zero-out", filter=GaussianFilter(1.0))
    ...     _ = ledger.reserve("clinic", Gdp(0.1), adjacency="zero-out", run="", purpose="trial")
    ...     release, = ledger.total("clinic").releases
    >>> release.number, release.state
    (1, 'reserved')
    """

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
        """Return the charge of the release; ``InputError`` where the line holds none."""
        costs = _json(self.costs)
        if not isinstance(costs, list) or not all(
            type(cost) is int and cost >= 0 for cost in cast(list[Any], costs)
        ):
            raise InputError(
                "ledger", f"holds no charge in line {self.number}", None, "restore it from a copy"
            )
        return Charge(tuple(cast(list[int], costs)))


@final
@dataclass(frozen=True)
class Total:
    """The budget of a data set, its spending, and its releases.

    Parameters
    ----------
    dataset : str
        Name of the data set.
    unit : str
        Name of the protected unit.
    adjacency : str
        Adjacency of the releases.
    filter : GaussianFilter or RenyiFilter
        Budget.
    spent : tuple of int
        Spending in every dimension of the filter, in its units.
    releases : tuple of Release
        Lines of the history.
    rows : int, optional
        Most rows of one unit in the data, where it was stated.
    unproven : tuple of int, default ()
        Numbers of the lines that count and are not known to protect a unit.

    Examples
    --------
    >>> from lastiterate.ledger import GaussianFilter, Total
    >>> budget = GaussianFilter(1.0)
    >>> spent = (budget.budget[0] // 4, 0)
    >>> total = Total("clinic", "row", "zero-out", budget, spent, ())
    >>> round(total.left[0], 3), total.of_rows
    (0.75, True)
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
        """Return the number of groups of ``protected`` rows that make up one unit.

        **Guarantee:** a charge that protects less than a unit is converted by this number, or
        refused.

        Parameters
        ----------
        protected : int or None
            Number of rows of a unit that are protected together; ``None`` for all of them.

        Returns
        -------
        int
            Number of groups.

        Raises
        ------
        InputError
            If the number is unknown.
        """
        if protected is None or self.of_rows:
            return 1
        if (
            self.rows is None and protected > 1
        ):  # the run states the most rows of its unit: the caller's word
            return 1
        if self.rows is None:
            raise InputError(
                "unit",
                f"must be given: the budget of {self.dataset} is per {self.unit}, and "
                "this release protects one row",
                None,
                f"say whose a row is ({NAME_UNITS}), or state the most rows that one {self.unit} "
                "has (lastiterate ledger rows FILE NUMBER); nothing was charged",
            )
        return -(-self.rows // protected)

    @property
    def left(self) -> tuple[float, ...]:
        """Remaining share of the budget, in [0, 1], for each dimension."""
        pairs = zip(self.filter.budget, self.spent, strict=True)
        return tuple(
            max(0.0, (budget - spent) / budget) if budget else 0.0 for budget, spent in pairs
        )


def line_of(connection: sqlite3.Connection, token: str) -> Release:
    """The line that ``token`` names."""
    row = connection.execute(f"SELECT {COLUMNS} FROM releases WHERE token = ?", (token,)).fetchone()
    if row is None:
        raise InputError(
            "ledger",
            "does not know this release",
            None,
            "use the ledger that the run was started with",
        )
    return Release(*row)


def total_of(connection: sqlite3.Connection, dataset: str | None) -> Total:
    rows = connection.execute(
        "SELECT name, unit, adjacency, filter FROM datasets ORDER BY name"
    ).fetchall()
    rows = [row for row in rows if dataset in (None, row[0])]
    if len(rows) != 1:
        raise InputError(
            "dataset",
            "must name a data set of this ledger",
            dataset,
            "lastiterate ledger show FILE lists them",
        )
    name, unit, adjacency, described = rows[0]
    limit = filter_from_dict(_json(described))
    listed = connection.execute(
        f"SELECT {COLUMNS} FROM releases WHERE dataset = ? ORDER BY number", (name,)
    )
    releases = tuple(Release(*row) for row in listed.fetchall())
    rows, known = rows_per_unit(connection, name), lines_of_units(connection)
    # where a unit is one row, a line that protects one row protects it
    unproven = (
        ()
        if is_row(unit) or rows == 1
        else tuple(
            release.number
            for release in releases
            if release.state != "cancelled" and release.token not in known
        )
    )
    spent = [0] * len(limit.budget)
    for release in releases:
        costs = release.charge.costs
        if len(costs) != len(spent):
            raise InputError(
                "ledger",
                f"holds no charge in line {release.number}",
                None,
                "restore it from a copy",
            )
        if release.state != "cancelled":
            spent = [a + b for a, b in zip(spent, costs, strict=True)]
    return Total(name, unit, adjacency, limit, tuple(spent), releases, rows, unproven)


def is_row(unit: str) -> bool:
    """Whether a ledger's word for its unit means a single row of the data."""
    words = unit.lower().split()
    return " ".join(words[1:] if words[:1] and words[0] in ARTICLES else words) in ROWS


def is_other_unit(name: str, unit: str) -> bool:
    """Whether a release's name for its unit, if it has one, is another word than its ledger's."""
    if name in ("", "unit") or is_row(unit):
        return False
    return not is_same_word(name, unit)


def is_same_word(name: str, unit: str) -> bool:
    """Whether a column's name is a ledger's word for its unit: patient_id is a patient's."""
    return _bare_word(name) == _bare_word(unit)


def _bare_word(name: str) -> str:
    """A name without articles, marks, the ending of an identifier and that of a plural."""
    words = [word for word in re.split(r"[\W_]+", name.lower()) if word not in ARTICLES]
    return re.sub(r"(s|id|ids|number|nr|no|key|code)$", "", "".join(words)) or name


def unproven_lines(total: Total) -> str:
    """Which lines are not known to protect a unit, and what to do; "" where there are none."""
    if not total.unproven:
        return ""
    listed = ", ".join(map(str, total.unproven))
    words = (
        ("line", "was", "it protects")
        if len(total.unproven) == 1
        else ("lines", "were", "they protect")
    )
    return (
        f"{words[0]} {listed} on {total.dataset} {words[1]} charged for single rows as far as the "
        f"ledger "
        f"knows, and the budget is per {total.unit}: {words[2]} a {total.unit} only if none has "
        f"several rows "
        "(if so, state it: lastiterate ledger rows FILE 1)"
    )


def check_fits(total: Total, charge: Charge) -> None:
    rows = zip(total.filter.budget, total.spent, charge.costs, strict=True)
    if any(spent + cost > budget for budget, spent, cost in rows):
        raise refusal(
            total, charge, "ask for a smaller epsilon; nothing was trained, and nothing was charged"
        )


def refusal(total: Total, charge: Charge | None, remedy: str) -> InputError:
    """Return the refusal where a budget does not suffice for a charge, or no charge pays for a
    curve (``None``), for which another filter is the remedy."""
    said = f"refuses this release on {total.dataset}: "
    if charge is None:
        return InputError(
            "ledger",
            said + f"its filter ({', '.join(total.filter.dimensions)}) has no charge for the "
            "release's curve; nothing was trained, and nothing was charged",
            None,
            total.filter.instead,
        )
    name, budget, spent, cost = max(
        zip(total.filter.dimensions, total.filter.budget, total.spent, charge.costs, strict=True),
        key=lambda row: (row[2] + row[3] - row[1]) / max(row[1], 1),
    )
    return InputError(
        "ledger",
        said + f"it needs {_share(cost, budget)} of the budget ({name}), and "
        f"{_share(max(0, budget - spent), budget)} is left",
        None,
        remedy,
    )


def _share(part: int, budget: int) -> str:
    return f"{100 * part / budget:.3g}%" if budget else "more than nothing"


def charge_problems(connection: sqlite3.Connection) -> list[str]:
    """List the problems of charges, of their chain and their sums, and of the protected units."""
    problems, units, before = list[str](), list[str](), ""
    totals, unread = dict[str, Total](), list[str]()
    for (name,) in connection.execute("SELECT name FROM datasets").fetchall():
        try:
            totals[name] = total_of(connection, name)
        except InputError as error:
            unread.append(str(error))
    for row in connection.execute(f"SELECT {COLUMNS} FROM releases ORDER BY number").fetchall():
        release = Release(*row)
        problems += _problems(totals, release, before)
        before = release.chain
    problems += unread
    for total in totals.values():
        if said := unproven_lines(total):
            units.append(said)
        problems += _excess(total)
    return [*problems, *units]


def find_damage(total: Total) -> list[str]:
    """List the problems of what a further charge adds to: the lines that count, and their sum."""
    problems = list[str]()
    for release in total.releases:
        if release.state != "cancelled":
            problems += _cost_problems(total.filter, release)
    return [*problems, *_excess(total)]


def _excess(total: Total) -> list[str]:
    pairs = zip(total.spent, total.filter.budget, strict=True)
    exceeded = any(spent > budget for spent, budget in pairs)
    return [f"the releases on {total.dataset} exceed its budget"] if exceeded else []


def _cost_problems(limit: Filter, release: Release) -> list[str]:
    """Say that a line costs less than its curve, or has no curve that costs anything."""
    try:
        covered = _covers(limit, release.charge, release.curve)
    except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError, RecursionError):
        return [f"line {release.number} holds no curve that can be charged"]
    return [] if covered else [f"line {release.number} charges less than its curve costs"]


@lru_cache(maxsize=4096)
def _covers(limit: Filter, charge: Charge, curve: str) -> bool:
    """Whether a charge pays for a curve, as JSON; a numerical curve takes a fifth of a second."""
    return limit.covers(charge, curve_from_dict(_json(curve)))


def _problems(totals: Mapping[str, Total], release: Release, before: str) -> list[str]:
    """List the problems of one line."""
    where, problems = f"line {release.number}", list[str]()
    line = (
        release.number,
        release.token,
        release.dataset,
        release.purpose,
        release.run,
        release.curve,
        release.costs,
        release.day,
    )
    if hash_chain(before, *line) != release.chain:
        problems.append(f"{where} was changed, or lines before it are missing")
    if (release.model is None) == (release.state == "released"):
        problems.append(f"{where} says {release.state}, and its model does not fit")
    total = totals.get(release.dataset)
    if total is None:
        return [*problems, f"{where} holds no curve that can be charged"]
    return [*problems, *_cost_problems(total.filter, release)]


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):
        raise InputError(
            "ledger", "holds text that is not JSON", None, "restore it from a copy"
        ) from None


# The checkpoints of a line: which noise it draws is recorded before a file with its key exists.


@final
@dataclass(frozen=True)
class LineCheckpoints:
    """The checkpoints of the line ``token`` of the ledger at ``path``.

    **Guarantee:** no noise is drawn under a line but that of one key, for one data set and one
    loss: those that a keyed ``digest`` distinguishes. Until a first checkpoint is counted nothing
    was drawn, and the last digest counts; from then on none takes its place. So a copy of a claim
    cannot begin a second run next to the process that it was copied from, wherever that one was
    killed, and a first checkpoint resumes where no copy began meanwhile.
    """

    path: Path
    token: str

    def last_number(self) -> int:
        """The number of the last checkpoint; 0 before the first."""
        with open_ledger(self.path) as connection:
            return line_of(connection, self.token).checkpoint

    def begin(self, digest: str, write: Callable[[], None]) -> None:
        """Write the first checkpoint; refused where another process does, or did."""
        with open_ledger(self.path) as connection:
            with transaction(connection):  # on disk before the file is
                self._check_unbegun(connection)
                append(connection, "first", token=self.token, digest=digest)
            with transaction(connection):
                self._check_unbegun(connection)
                if digest_of(connection, "first", self.token) != digest:
                    raise _begun()
                write()  # small, as others wait
                self._count(connection, 1)

    def note(self, number: int, write: Callable[[], None]) -> None:
        """Write a later checkpoint, and note that it is on disk."""
        write()
        with open_ledger(self.path) as connection, transaction(connection):
            self._count(connection, number)

    def resume(self, digest: str, number: int) -> None:
        """Resume from a file that was found; refuse one that is older than the last, or has other
        noise."""
        with open_ledger(self.path) as connection, transaction(connection):
            if digest_of(connection, "first", self.token) != digest:
                raise _begun()
            least = line_of(connection, self.token).checkpoint
            if number < least:
                raise InputError(
                    "checkpoint",
                    f"is older than the last one, number {least}",
                    number,
                    "restore the last one: it was rolled back",
                )
            self._count(connection, number)

    def _check_unbegun(self, connection: sqlite3.Connection) -> None:
        if line_of(connection, self.token).checkpoint:
            raise _begun()

    def _count(self, connection: sqlite3.Connection, number: int) -> None:
        if number > line_of(connection, self.token).checkpoint:
            connection.execute(
                "UPDATE releases SET checkpoint = ? WHERE token = ?", (number, self.token)
            )
            append(connection, "checkpoint", token=self.token, checkpoint=number)


def _begun() -> InputError:
    return InputError(
        "checkpoint",
        "is not the one that this line of the ledger began with: it is missing or was "
        "rolled back, or the line was begun by another process, and both would draw noise",
        None,
        "restore that one, or wait until the other process has ended; a new start is a new release",
    )
