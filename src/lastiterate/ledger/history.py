"""Everything that happened to a ledger, each event tied to all before it; the tables must be what the events give.

**Guarantee:** whoever changes a field of a budget, of a line, of a state or of an event is noticed, unless all events
from there on are written anew. Nothing in a file can show that its last events were deleted, or that all were written
anew: for that, the head (the last event's chain) has to be kept in another place.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable
from typing import Any, cast

from lastiterate.errors import InputError
from lastiterate.ledger.database import EVENTS, VERSION, version

DATASET = ("name", "unit", "adjacency", "filter", "made")
LINE = ("number", "token", "dataset", "purpose", "run", "curve", "costs", "day", "chain", "state", "model",
        "checkpoint")
"""The columns of both tables: an event names every one."""
NEXT = {"reserved": ("touched", "cancelled"), "touched": ("released",), "released": (), "cancelled": ()}
"""The states that may follow a state."""
FIRST = f"lastiterate ledger, format {VERSION}"


def begin(connection: sqlite3.Connection) -> None:
    """The events of a ledger that has none: all of its rows, as they are."""
    append(connection, "begun", format=VERSION)
    for event, table, columns in (("dataset", "datasets", DATASET), ("line", "releases", LINE)):
        for row in connection.execute(f"SELECT {', '.join(columns)} FROM {table} ORDER BY 1").fetchall():
            append(connection, event, **dict(zip(columns, row, strict=True)))


def upgrade(connection: sqlite3.Connection) -> None:
    """Give a ledger of an older format its events, in the transaction that is open."""
    if version(connection) == VERSION:
        raise InputError("ledger", f"has format {VERSION} already", None, "it needs no upgrade")
    connection.execute(EVENTS)
    connection.execute(f"PRAGMA user_version = {VERSION}")
    begin(connection)


def append(connection: sqlite3.Connection, kind: str, **fields: object) -> None:
    """One more event, in the transaction that changes the tables; ledgers of format 1 have none."""
    if version(connection) < VERSION:
        return
    last = connection.execute("SELECT number, chain FROM events ORDER BY number DESC LIMIT 1").fetchone()
    number, before = (last[0] + 1, last[1]) if last else (1, FIRST)
    text = json.dumps([kind, fields], sort_keys=True)
    connection.execute("INSERT INTO events VALUES (?, ?, ?)", (number, text, _chained(before, number, text)))


def digest_of(connection: sqlite3.Connection, event: str, token: str) -> str | None:
    """The keyed digest in the last ``event`` of a release: of its "records", or of its "first" checkpoint, if any."""
    if version(connection) < VERSION:
        return None
    digest = None
    for (text,) in connection.execute("SELECT event FROM events ORDER BY number"):
        kind, fields = json.loads(text)
        digest = fields["digest"] if kind == event and fields["token"] == token else digest
    return digest


def rows_per_unit(connection: sqlite3.Connection, dataset: str) -> int | None:
    """The most rows that one unit of a data set has, as its keeper stated; ``None`` where nothing is stated."""
    stated = [fields["rows"] for fields in _events(connection, "rows") if fields["dataset"] == dataset]
    return next((rows for rows in stated if _counts(rows)), None)


def lines_of_units(connection: sqlite3.Connection) -> set[str]:
    """The tokens of the lines that are known to protect a unit of their data set, and not only one of its rows."""
    return {fields["token"] for fields in _events(connection, "protects")}


def announced(connection: sqlite3.Connection, model: str) -> str | None:
    """The token of the last line that announced a model, or was released with it, if any."""
    tokens = [fields["token"] for kind in ("state", "model") for fields in _events(connection, kind)
              if fields["model"] == model]
    return tokens[-1] if tokens else None


def _events(connection: sqlite3.Connection, kind: str) -> list[dict[str, Any]]:
    """The fields of all events of a kind; ledgers of format 1 have none."""
    if version(connection) < VERSION:
        return []
    rows = connection.execute("SELECT event FROM events WHERE event LIKE ? ORDER BY number", (f'["{kind}", %',))
    try:
        return [fields for name, fields in (json.loads(text) for (text,) in rows) if name == kind]
    except (TypeError, ValueError, RecursionError):
        raise InputError("ledger", "holds an event that cannot be read", None, "restore it from a copy") from None


def _counts(rows: object) -> bool:
    return type(rows) is int and rows >= 1


def head(connection: sqlite3.Connection) -> str | None:
    """The last event's chain; ``None`` for a ledger of format 1."""
    if version(connection) < VERSION:
        return None
    last = connection.execute("SELECT chain FROM events ORDER BY number DESC LIMIT 1").fetchone()
    return None if last is None else last[0]


def check_head(text: str) -> str:
    """A head that was kept, checked for its form."""
    digits = text.strip().lower()
    if len(digits) != 64 or set(digits) - set("0123456789abcdef"):
        raise InputError("head", "must be the 64 hexadecimal digits that ledger show prints", text)
    return digits


def differences(connection: sqlite3.Connection, kept: str | None = None) -> list[str]:
    """What does not fit between the events and the tables, or with a head that was ``kept``."""
    if version(connection) < VERSION:
        return [] if kept is None else ["the ledger has no head: it is of format 1, or was made to look so"]
    rows = connection.execute("SELECT number, event, chain FROM events ORDER BY number").fetchall()
    problems = _broken(rows)
    if kept is not None and kept not in {row[2] for row in rows}:
        problems.append("the head that was kept is not in the ledger: events were deleted, or written anew")
    try:
        datasets, lines = _replayed(rows)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return [*problems, "the events cannot be read: they were changed"]
    problems += _compared(connection, "datasets", DATASET, datasets, "the budget of")
    return problems + _compared(connection, "releases", LINE, lines, "line")


def _chained(before: str, number: int, text: str) -> str:
    return hashlib.sha256(json.dumps([before, number, text]).encode()).hexdigest()


def _broken(rows: list[tuple[int, str, str]]) -> list[str]:
    """Where the chain is broken; after that everything is, so the first place is named."""
    if not rows:
        return ["the events are missing"]
    before = FIRST
    for place, (number, text, chain) in enumerate(rows, 1):
        if number != place or _chained(before, number, text) != chain:
            return [f"event {place} was changed, or events before it are missing"]
        before = chain
    return []


def _replayed(rows: Iterable[tuple[int, str, str]]) -> tuple[dict[Any, dict[str, Any]], dict[Any, dict[str, Any]]]:
    """The rows of both tables that the events give, by name and by number."""
    datasets: dict[Any, dict[str, Any]] = {}
    lines: dict[Any, dict[str, Any]] = {}
    by_token: dict[str, dict[str, Any]] = {}
    stated = set[str]()
    for _, text, _ in rows:
        kind, fields = cast("tuple[str, dict[str, Any]]", json.loads(text))
        match kind:
            case "begun":
                if datasets or lines or fields != {"format": VERSION}:
                    raise ValueError
            case "dataset":
                if set(fields) != set(DATASET) or fields["name"] in datasets:
                    raise ValueError
                datasets[fields["name"]] = fields
            case "line":
                if set(fields) != set(LINE) or fields["number"] in lines or fields["token"] in by_token:
                    raise ValueError
                lines[fields["number"]] = by_token[fields["token"]] = fields
            case "state":
                line = by_token[fields["token"]]
                if fields["state"] not in NEXT[line["state"]]:
                    raise ValueError
                line |= {"state": fields["state"], "model": fields["model"]}
            case "rows":
                name, rows = fields["dataset"], fields["rows"]
                if set(fields) != {"dataset", "rows"} or name not in datasets or name in stated or not _counts(rows):
                    raise ValueError
                stated.add(name)
            case "protects":
                if set(fields) != {"token", "unit"} or fields["unit"] != datasets[by_token[fields["token"]]["dataset"]][
                        "unit"]:
                    raise ValueError
            case "model":
                if set(fields) != {"token", "model"} or by_token[fields["token"]]["state"] != "touched":
                    raise ValueError
            case "records" | "first":
                if set(fields) != {"token", "digest"} or fields["token"] not in by_token:
                    raise ValueError
            case "checkpoint":
                by_token[fields["token"]]["checkpoint"] = fields["checkpoint"]
            case _:
                raise ValueError
    return datasets, lines


def _compared(connection: sqlite3.Connection, table: str, columns: tuple[str, ...], wanted: dict[Any, dict[str, Any]],
              what: str) -> list[str]:
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


