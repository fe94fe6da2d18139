"""The checkpoints of a line: which noise it draws is recorded before a file with its key exists."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import final

from lastiterate.errors import InputError
from lastiterate.ledger.budget import line_of
from lastiterate.ledger.database import open_ledger, transaction
from lastiterate.ledger.history import append, digest_of


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
