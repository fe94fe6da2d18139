"""The file of a ledger: its tables, how it is opened, and what is refused as not one."""

from __future__ import annotations

import glob
import os
import sqlite3
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lastiterate import interrupts
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
