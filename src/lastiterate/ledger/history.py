"""The chained history of a ledger, its lines, and the checkpoints of a line."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, final

from lastiterate.accounting.document import check_schema
from lastiterate.curves.composition import curve_from_dict
from lastiterate.errors import InputError
from lastiterate.ledger.database import VERSION, open_ledger, transaction
from lastiterate.ledger.filters import Charge, Filter, filter_from_dict

# Everything that happened to a ledger, each event tied to all before it; the tables must be what
# the events give.  **Guarantee:** a change to a field of a budget, of a line, of a state or of an
# event is noticed, unless all events from there on are rewritten. Nothing in a file can show that
# its last events were deleted, or that all were rewritten: for that, the head (the last event's
# chain) has to be kept somewhere else.

DATASET = ("name", "unit", "adjacency", "filter", "made")
LINE = (
    "number",
    "token",
    "dataset",
    "purpose",
    "run",
    "curve",
    "costs",
    "day",
    "chain",
    "state",
    "model",
    "checkpoint",
)
"""The columns of both tables: an event names every one."""
NEXT = {
    "reserved": ("touched", "cancelled"),
    "touched": ("released",),
    "released": (),
    "cancelled": (),
}
"""The states that may follow a state."""
FIRST = f"lastiterate ledger, format {VERSION}"


def begin(connection: sqlite3.Connection) -> None:
    """The first event of a new ledger."""
    append(connection, "begun", format=VERSION)


def append(connection: sqlite3.Connection, kind: str, **fields: object) -> None:
    """One more event, in the transaction that changes the tables."""
    last = connection.execute(
        "SELECT number, chain FROM events ORDER BY number DESC LIMIT 1"
    ).fetchone()
    number, before = (last[0] + 1, last[1]) if last else (1, FIRST)
    text = json.dumps([kind, fields], sort_keys=True)
    connection.execute(
        "INSERT INTO events VALUES (?, ?, ?)", (number, text, hash_chain(before, number, text))
    )


def digest_of(connection: sqlite3.Connection, event: str, token: str) -> str | None:
    """The keyed digest in the last ``event`` of a release: of its "records", or of its "first"
    checkpoint, if any."""
    events = _events(connection, event)
    return next((one["digest"] for one in reversed(events) if one["token"] == token), None)


def rows_per_unit(connection: sqlite3.Connection, dataset: str) -> int | None:
    """The most rows that one unit of a data set has, as its keeper stated; ``None`` where nothing
    is stated."""
    stated = [
        fields["rows"] for fields in _events(connection, "rows") if fields["dataset"] == dataset
    ]
    return next((rows for rows in stated if _counts(rows)), None)


def lines_of_units(connection: sqlite3.Connection) -> set[str]:
    """The tokens of the lines that are known to protect a unit of their data set, and not only one
    of its rows."""
    return {fields["token"] for fields in _events(connection, "protects")}


def find_announcement(connection: sqlite3.Connection, model: str) -> str | None:
    """The token of the last line that announced a model, or was released with it, if any."""
    tokens = [
        fields["token"]
        for kind in ("state", "model")
        for fields in _events(connection, kind)
        if fields["model"] == model
    ]
    return tokens[-1] if tokens else None


def _events(connection: sqlite3.Connection, kind: str) -> list[dict[str, Any]]:
    """The fields of all events of a kind."""
    rows = connection.execute(
        "SELECT event FROM events WHERE event LIKE ? ORDER BY number", (f'["{kind}", %',)
    )
    try:
        return [fields for name, fields in (json.loads(text) for (text,) in rows) if name == kind]
    except (TypeError, ValueError, RecursionError):
        raise InputError(
            "ledger", "holds an event that cannot be read", None, "restore it from a copy"
        ) from None


def _counts(rows: object) -> bool:
    return type(rows) is int and rows >= 1


def head(connection: sqlite3.Connection) -> str:
    """The last event's chain."""
    row = connection.execute("SELECT chain FROM events ORDER BY number DESC LIMIT 1").fetchone()
    return FIRST if row is None else row[0]


def check_head(text: str) -> str:
    """A head that was kept, checked for its form."""
    digits = text.strip().lower()
    if len(digits) != 64 or set(digits) - set("0123456789abcdef"):
        raise InputError("head", "must be the 64 hexadecimal digits that ledger show prints", text)
    return digits


def differences(connection: sqlite3.Connection, kept: str | None = None) -> list[str]:
    """List the contradictions between the events and the tables, or with a head that was
    ``kept``."""
    rows = connection.execute("SELECT number, event, chain FROM events ORDER BY number").fetchall()
    problems = _broken(rows)
    if kept is not None and kept not in {row[2] for row in rows}:
        problems.append(
            "the head that was kept is not in the ledger: events were deleted or rewritten"
        )
    try:
        events = [json.loads(text) for _, text, _ in rows]
        for number, event in enumerate(events, 1):
            try:
                check_schema(event, "ledger")
            except InputError:  # its message may show fields
                return [*problems, f"event {number} does not fit ledger.schema.json"]
        datasets, lines = _replay_events(events)
    except (KeyError, TypeError, ValueError, RecursionError):
        return [*problems, "the events cannot be read: they were changed"]
    problems += _compare_rows(connection, "datasets", DATASET, datasets, "the budget of")
    return problems + _compare_rows(connection, "releases", LINE, lines, "line")


def _broken(rows: list[tuple[int, str, str]]) -> list[str]:
    """Name the first event at which the chain is broken; after it everything is."""
    if not rows:
        return ["the events are missing"]
    before = FIRST
    for place, (number, text, chain) in enumerate(rows, 1):
        if number != place or hash_chain(before, number, text) != chain:
            return [f"event {place} was changed, or events before it are missing"]
        before = chain
    return []


def _replay_events(
    events: Iterable[tuple[str, dict[str, Any]]],
) -> tuple[dict[Any, dict[str, Any]], dict[Any, dict[str, Any]]]:
    """The rows of both tables that the events give, by name and by number."""
    datasets: dict[Any, dict[str, Any]] = {}
    lines: dict[Any, dict[str, Any]] = {}
    by_token: dict[str, dict[str, Any]] = {}
    stated = set[str]()
    for kind, fields in events:
        match kind:
            case "begun":
                if datasets or lines or fields != {"format": VERSION}:
                    raise ValueError
            case "dataset":
                if fields["name"] in datasets:
                    raise ValueError
                datasets[fields["name"]] = fields
            case "line":
                if fields["number"] in lines or fields["token"] in by_token:
                    raise ValueError
                lines[fields["number"]] = by_token[fields["token"]] = fields
            case "state":
                line = by_token[fields["token"]]
                if fields["state"] not in NEXT[line["state"]]:
                    raise ValueError
                line |= {"state": fields["state"], "model": fields["model"]}
            case "rows":
                if fields["dataset"] not in datasets or fields["dataset"] in stated:
                    raise ValueError
                stated.add(fields["dataset"])
            case "protects":
                if fields["unit"] != datasets[by_token[fields["token"]]["dataset"]]["unit"]:
                    raise ValueError
            case "model":
                if by_token[fields["token"]]["state"] != "touched":
                    raise ValueError
            case "records" | "first":
                if fields["token"] not in by_token:
                    raise ValueError
            case _:  # checkpoint
                by_token[fields["token"]]["checkpoint"] = fields["checkpoint"]
    return datasets, lines


def _compare_rows(
    connection: sqlite3.Connection,
    table: str,
    columns: tuple[str, ...],
    wanted: dict[Any, dict[str, Any]],
    what: str,
) -> list[str]:
    """Rows of a table that are not what the events give, with the fields that differ."""
    stored = connection.execute(f"SELECT {', '.join(columns)} FROM {table} ORDER BY 1").fetchall()
    rows = {row[0]: dict(zip(columns, row, strict=True)) for row in stored}
    problems = [f"{what} {key} is missing" for key in wanted if key not in rows]
    for key, row in rows.items():
        if key not in wanted:
            problems.append(f"{what} {key} is in no event")
        elif changed := [name for name in columns if row[name] != wanted[key][name]]:
            problems.append(f"{what} {key} was changed: {', '.join(changed)}")
    return problems


# The lines of a ledger, the budget of a data set, and what is wrong with either.

NAME_UNITS = "unit=NAMES, or units=NAMES in an estimator's fit"
"""The arguments by which a release names the owner of a row; the command line has its own words for
it."""
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
            total, charge, "ask for a smaller epsilon; no record was read, and nothing was charged"
        )


def refusal(total: Total, charge: Charge | None, remedy: str) -> InputError:
    """Return the refusal where a budget does not suffice for a charge, or no charge pays for a
    curve (``None``)."""
    said = f"refuses this release on {total.dataset}: "
    if charge is None:
        return InputError(
            "ledger",
            said + f"its filter ({', '.join(total.filter.dimensions)}) has no charge for the "
            "release's curve",
            None,
            remedy,
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


def hash_chain(before: str, *line: object) -> str:
    return hashlib.sha256(json.dumps([before, *line]).encode()).hexdigest()


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
    for name, total in totals.items():
        if said := unproven_lines(total):
            units.append(said)
        if any(
            spent > budget for spent, budget in zip(total.spent, total.filter.budget, strict=True)
        ):
            problems.append(f"the releases on {name} exceed its budget")
    return [*problems, *units]


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
    try:
        curve = curve_from_dict(_json(release.curve))
        covered = totals[release.dataset].filter.covers(release.charge, curve)
    except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError, RecursionError):
        return [*problems, f"{where} holds no curve that can be charged"]
    return problems if covered else [*problems, f"{where} charges less than its curve costs"]


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):
        raise InputError(
            "ledger", "holds text that is not JSON", None, "restore it from a copy"
        ) from None


# The checkpoints of a line. The ledger records which noise a line draws before a file with its
# key exists.


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
