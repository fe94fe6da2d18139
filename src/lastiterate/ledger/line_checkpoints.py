"""The checkpoints of a ledger's line: which noise it draws stands in the ledger before a file with its key exists."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import final

from lastiterate.errors import InputError
from lastiterate.ledger import history
from lastiterate.ledger.database import opened, transaction
from lastiterate.ledger.ledger_lines import line_of


@final
@dataclass(frozen=True)
class LineCheckpoints:
    """The checkpoints of the line ``token`` of the ledger at ``path``, which must be of format 2 or later.

    **Guarantee:** no noise is drawn under a line but that of one key, for one data set and one loss: those that a
    keyed ``digest`` distinguishes. Until a first checkpoint is counted nothing was drawn, and the last digest counts;
    from then on none takes its place. So a copy of a claim begins nothing beside the process that it was copied from,
    wherever that one was killed, and a first checkpoint goes on where no copy began meanwhile.
    """

    path: Path
    token: str

    def written(self) -> int:
        """The number of the last checkpoint; 0 before the first."""
        with opened(self.path) as connection:
            return line_of(connection, self.token).checkpoint

    def begin(self, digest: str, write: Callable[[], None]) -> None:
        """Write the first checkpoint; refused where another process does, or did."""
        with opened(self.path) as connection:
            with transaction(connection):  # on disk before the file is
                self._check_unbegun(connection)
                history.append(connection, "first", token=self.token, digest=digest)
            with transaction(connection):
                self._check_unbegun(connection)
                if history.digest_of(connection, "first", self.token) != digest:
                    raise _begun()
                write()  # small, as others wait
                self._count(connection, 1)

    def note(self, number: int, write: Callable[[], None]) -> None:
        """Write a later checkpoint, and note that it is on disk."""
        write()
        with opened(self.path) as connection, transaction(connection):
            self._count(connection, number)

    def resume(self, digest: str, number: int) -> None:
        """Go on from a file that was found; refused where it is older than the last one, or has other noise.

        A line that an earlier version of the library began knows no digest: the first process that goes on gives it.
        """
        with opened(self.path) as connection, transaction(connection):
            known = history.digest_of(connection, "first", self.token)
            if known not in (None, digest):
                raise _begun()
            least = line_of(connection, self.token).checkpoint
            if number < least:
                raise InputError("checkpoint", f"is older than the last one, number {least}", number,
                                 "restore the last one: it was rolled back")
            if known is None:
                history.append(connection, "first", token=self.token, digest=digest)
            self._count(connection, number)

    def _check_unbegun(self, connection: sqlite3.Connection) -> None:
        if line_of(connection, self.token).checkpoint:
            raise _begun()

    def _count(self, connection: sqlite3.Connection, number: int) -> None:
        if number > line_of(connection, self.token).checkpoint:
            connection.execute("UPDATE releases SET checkpoint = ? WHERE token = ?", (number, self.token))
            history.append(connection, "checkpoint", token=self.token, checkpoint=number)


def _begun() -> InputError:
    return InputError("checkpoint", "is not the one that this line of the ledger began with: it is missing or was "
                      "rolled back, or the line was begun by another process, and both would draw noise", None,
                      "restore that one, or wait until the other process has ended; a new start is a new release")
