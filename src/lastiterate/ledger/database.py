"""The file of a ledger: its tables, how it is opened, and the chained history of events."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import sqlite3
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lastiterate import interrupts
from lastiterate.accounting.certificate_json import check_schema
from lastiterate.atomic_files import FULL, link_or_move, sync_folder
from lastiterate.errors import InputError

APPLICATION = 0x4C495442  #: marks the file as a ledger of this library
VERSION = 2
DISK_CACHE = "PRAGMA fullfsync = ON"  #: on macOS a commit leaves the disk's cache, too
MOUNTS = Path("/proc/self/mountinfo")
PATIENCE = 60.0
"""Seconds that a process waits for another one's transaction."""
PASSING = (
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
)
"""Wrong with the disk, or with another process, and not with the file: an older copy would lose
what was charged since.
"""
TABLES = (
    "CREATE TABLE datasets (name TEXT PRIMARY KEY, unit TEXT NOT NULL, adjacency TEXT NOT NULL, "
    "filter TEXT NOT NULL, "
    "made TEXT NOT NULL) STRICT",
    "CREATE TABLE releases (number INTEGER PRIMARY KEY, token TEXT NOT NULL UNIQUE, dataset TEXT "
    "NOT NULL REFERENCES "
    "datasets (name), purpose TEXT NOT NULL, run TEXT NOT NULL, curve TEXT NOT NULL, costs TEXT "
    "NOT NULL, "
    "day TEXT NOT NULL, chain TEXT NOT NULL, state TEXT NOT NULL CHECK (state IN ('reserved', "
    "'touched', 'released', "
    "'cancelled')), model TEXT, checkpoint INTEGER NOT NULL DEFAULT 0) STRICT",
)
TEXTS = (
    *("name", "unit", "adjacency", "filter", "made", "token", "dataset", "purpose", "run", "curve"),
    *("costs", "day", "chain", "state", "model", "event"),
)
COLUMN_TYPES: dict[str, type] = dict.fromkeys(TEXTS, str) | {"number": int, "checkpoint": int}
"""Of all columns of the tables, by name."""
EVENTS = "CREATE TABLE events (number INTEGER PRIMARY KEY, event TEXT NOT NULL, chain TEXT NOT NULL) STRICT"


def make(path: Path, begin: Callable[[sqlite3.Connection], None]) -> None:
    """Make a ledger file with what ``begin`` writes into it, for its owner alone; it appears
    complete or not at all.

    Errors: ``FileExistsError`` where the name is taken, by another process at the same moment too.
    """
    draft = path.with_name(f".{path.name}-{os.getpid()}-{os.urandom(4).hex()}")
    interrupts.unfinished.add(draft)
    try:
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        connection = sqlite3.connect(draft, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode = MEMORY")  # nobody else sees the draft
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(DISK_CACHE)
            for statement in (
                f"PRAGMA application_id = {APPLICATION}",
                f"PRAGMA user_version = {VERSION}",
                *TABLES,
                EVENTS,
            ):
                connection.execute(statement)
            begin(connection)
        finally:
            connection.close()
        link_or_move(draft, path, exclusive=True)
        sync_folder(path.parent)
    except FileExistsError:
        raise
    except (OSError, sqlite3.Error) as error:
        full = (
            getattr(error, "errno", None) in FULL
            or getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL
        )
        raise InputError(
            "ledger",
            "cannot be written",
            getattr(error, "strerror", None) or str(error),
            "free some space and run again" if full else "name a file in an existing folder",
        ) from None
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


class Unreachable(InputError):
    """A ledger that cannot be read or written at the moment: nothing is wrong with what it says."""


@contextmanager
def open_ledger(path: Path) -> Generator[sqlite3.Connection, None, None]:
    """Open a ledger file that holds a ledger's tables and nothing else; every commit is on disk.

    **Guarantee:** what was committed is in the file itself, not in another one next to it: a copy
    of the file alone has every charge that a fit went on with. A copy from the middle of a commit
    is older, newer, or found damaged.
    """
    if not path.is_file():
        raise Unreachable(
            "ledger",
            "must be an existing file",
            str(path),
            "check the name; a new one is made with: lastiterate ledger make "
            f"{path} --dataset NAME --unit person --epsilon TOTAL --delta 1e-5",
        )
    _check_name(path)
    connection = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)
    try:
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        _check(connection)
        connection.execute("PRAGMA synchronous = EXTRA")  # the journal's deletion, too, is on disk
        connection.execute(DISK_CACHE)
        connection.execute("PRAGMA foreign_keys = ON")
        connection.row_factory = _check_types
        yield connection
    except (sqlite3.DatabaseError, OverflowError, UnicodeDecodeError) as error:
        passing = getattr(error, "sqlite_errorcode", 0) & 0xFF in PASSING
        raise (Unreachable if passing else InputError)(
            "ledger",
            "cannot be read or written as a ledger",
            type(error).__name__ + ": " + str(error),
            "the file is whole: make its folder writable, free some space or wait, and run again"
            if passing
            else "restore it from a copy; releases on it stay charged",
        ) from None
    finally:
        connection.close()


def _check_name(path: Path) -> None:
    """Refuse a file with a second name, or one that is mounted without its folder: the journal and
    the locks are files next to it, so that two processes would each charge the remaining budget.
    """
    own = path.resolve()
    for draft in own.parent.glob(
        f".{glob.escape(own.name)}-*"
    ):  # of a process that was killed while it made this
        with suppress(FileNotFoundError):
            if draft.samefile(own):
                draft.unlink()
    if own.stat().st_nlink > 1 or _is_mounted(own):
        raise InputError(
            "ledger",
            "must have one name, in the folder where it was made: charges under another one "
            "would be lost",
            str(path),
            "remove the other hard links, and mount its whole folder",
        )


def _is_mounted(file: Path) -> bool:
    """``os.path.ismount`` sees what comes from another disk, and Linux lists what comes from the
    same one, too."""
    name = "".join(f"\\{ord(c):03o}" if c in " \t\n\\" else c for c in str(file))
    try:
        listed = {os.fsdecode(line.split(b" ")[4]) for line in MOUNTS.read_bytes().splitlines()}
    except (OSError, IndexError):
        listed = set[str]()
    return name in listed or os.path.ismount(file)


def _check(connection: sqlite3.Connection) -> None:
    """Refuse a file with other tables, or with views and triggers, which would act when it is read."""
    marked = connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION
    marked = marked and connection.execute("PRAGMA user_version").fetchone()[0] == VERSION
    schema = {
        row[0] for row in connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")
    }
    if not marked or schema != {*TABLES, EVENTS}:
        raise InputError(
            "ledger",
            "must be a file that lastiterate ledger made",
            None,
            "another program, or another version, wrote it",
        )


def _check_types(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a row whose values have the types of their columns.

    STRICT tables refuse other values when they are written; a damaged byte of a row's header makes
    one of another type, and SQLite compares none when it reads.
    """
    for (name, *_), value in zip(cursor.description, row, strict=True):
        expected = COLUMN_TYPES.get(name)
        if expected and type(value) is not expected and not (name == "model" and value is None):
            raise sqlite3.DatabaseError(f"a value of {name} has another type than its column")
    return row


def damage(connection: sqlite3.Connection) -> list[str]:
    """List what is wrong with the file as a database, at most three things: indices and free space,
    too."""
    rows = connection.execute("PRAGMA integrity_check(3)").fetchall()
    return [f"the file is damaged: {row[0]}" for row in rows if row[0] != "ok"]


@contextmanager
def transaction(connection: sqlite3.Connection) -> Generator[None, None, None]:
    """Everything inside happens, on disk, or nothing does; one process at a time."""
    if connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
        raise Unreachable(
            "ledger",
            "must not keep a log next to the file: copies of the file alone miss charges",
            None,
            "end the other programs that have it open, then let sqlite3 set its journal_mode to "
            "DELETE",
        )
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if connection.in_transaction:  # a full disk may have ended it
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


@contextmanager
def snapshot(connection: sqlite3.Connection) -> Generator[sqlite3.Connection, None, None]:
    """Copy the file into memory, page by page, as it was at one moment: who writes waits no longer
    than for that."""
    copy = sqlite3.connect(":memory:", isolation_level=None)
    try:
        connection.backup(copy)
        yield copy
    finally:
        copy.close()


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
