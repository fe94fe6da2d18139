"""The chained history of a ledger: every event, and what the tables must be."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable
from typing import Any

from lastiterate.accounting.document import check_schema
from lastiterate.errors import InputError
from lastiterate.ledger.database import VERSION

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


def hash_chain(before: str, *line: object) -> str:
    return hashlib.sha256(json.dumps([before, *line]).encode()).hexdigest()


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
