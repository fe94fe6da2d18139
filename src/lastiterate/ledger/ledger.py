"""The ledger: a release is reserved before a record is read, and kept.

Whether it fits into its budget is decided in ``budget_check.py``.
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import final

from lastiterate.curves.curve import Curve
from lastiterate.errors import InputError
from lastiterate.lazy import RenamedAttribute
from lastiterate.ledger import database
from lastiterate.ledger.budget_check import (
    COLUMNS,
    Release,
    Stage,
    Total,
    charge_problems,
    check_fits,
    find_damage,
    line_of,
    total_of,
)
from lastiterate.ledger.database import damage, hash_chain, make, open_ledger, snapshot, transaction
from lastiterate.ledger.filters import Filter
from lastiterate.run.adjacency import check_same

MOST_TEXT = 200
"""Characters of a name, a unit, a purpose."""
MOST_ROWS = 10**6
"""Rows of one unit, at most."""


@final
@dataclass(frozen=True)
class Ledger:
    """A file of privacy budgets, and of every release that was charged to them.

    Several processes may use it at once, and a killed process leaves it consistent. ``lastiterate
    ledger`` has a command for each of its uses.

    Parameters
    ----------
    path : str or path
        File of the ledger; ``add`` makes it.

    See Also
    --------
    GaussianFilter : A budget for Gaussian mechanisms.
    RenyiFilter : A budget for Renyi divergences.

    Notes
    -----
    **Guarantee:** the releases on a data set never exceed the filter that was fixed when the data
    set was added. A reservation counts until it is cancelled, and only a run that never read a
    record can cancel. Every change is an event of one hash chain, whose ``head`` can be kept in
    another place. The file depends on records by two values only: the hash of a released model, and
    a digest of its records under a random key. docs/theorems/privacy-filters has the theorem and
    its source.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from lastiterate.ledger import GaussianFilter, Ledger
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ledger = Ledger(Path(folder, "budget.ledger"))
    ...     budget = GaussianFilter.of(epsilon=3.0, delta=1e-6)
    ...     ledger.add("clinic", unit="patient", adjacency="zero-out", filter=budget)
    ...     ledger.datasets(), ledger.total("clinic").left, ledger.verify()
    (('clinic',), (1.0, 1.0), ())
    """

    path: Path

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError(
                "ledger",
                "must be the path of a file",
                type(self.path).__name__,
                'such as Ledger("budget.ledger")',
            )
        object.__setattr__(self, "path", Path(os.fspath(self.path)))

    def add(
        self,
        dataset: str,
        *,
        unit: str,
        adjacency: str,
        filter: Filter,
        rows_per_unit: int | None = None,
    ) -> None:
        """Fix the budget of a data set, which can never be changed.

        The file is made where it does not exist.

        Parameters
        ----------
        dataset : str
            Name of the data set, 1 to 200 printable characters.
        unit : str
            Name of the protected unit, such as "patient" or "row".
        adjacency : str
            Adjacency of the releases: "zero-out", "replace-one" or "add-remove".
        filter : GaussianFilter or RenyiFilter
            Budget.
        rows_per_unit : int, optional
            Most rows of one unit in the data; see ``state_rows``.

        Raises
        ------
        InputError
            If the data set has a budget already, or a value is out of range.
        """
        for name, text in (("dataset", dataset), ("unit", unit), ("adjacency", adjacency)):
            _check_text(name, text)
        with suppress(FileExistsError):
            make(self.path, database.begin)
        with open_ledger(self.path) as connection, transaction(connection):
            self._check_holds(connection, "changed")
            if connection.execute("SELECT 1 FROM datasets WHERE name = ?", (dataset,)).fetchone():
                raise InputError(
                    "dataset",
                    "has a budget in this ledger already, which cannot be changed",
                    dataset,
                    "name another data set only if it holds other people's records",
                )
            row = (dataset, unit, adjacency, json.dumps(filter.to_dict()), _today())
            connection.execute("INSERT INTO datasets VALUES (?, ?, ?, ?, ?)", row)
            database.append(connection, "dataset", **dict(zip(database.DATASET, row, strict=True)))
            if rows_per_unit is not None:
                _state_rows(connection, dataset, rows_per_unit)

    def state_rows(self, dataset: str | None, rows_per_unit: int) -> None:
        """State the most rows that one unit has in the data, once.

        Releases that protect single rows are then charged as for a group of this size. That no unit
        has more is the caller's word.

        Parameters
        ----------
        dataset : str or None
            Name of the data set; ``None`` for the only one.
        rows_per_unit : int
            Most rows of one unit, at most 1e6.

        Raises
        ------
        InputError
            If it is stated already, or out of range.
        """
        with open_ledger(self.path) as connection, transaction(connection):
            self._check_holds(connection, "changed")
            _state_rows(connection, total_of(connection, dataset).dataset, rows_per_unit)

    def reserve(
        self,
        dataset: str,
        curve: Curve,
        *,
        adjacency: str,
        run: str,
        purpose: str,
        token: str | None = None,
        rows: int | None = 1,
    ) -> str:
        """Charge a release before any record is read.

        Parameters
        ----------
        dataset : str
            Name of the data set.
        curve : Curve
            Privacy curve of the release.
        adjacency : str
            Adjacency of the curve, which must be that of the data set.
        run : str
            Hash of the description that the curve follows from.
        purpose : str
            Purpose in words, 1 to 200 printable characters.
        token : str, optional
            Name of an earlier reservation, for a run that resumes. It is not charged again, and
            must have the same run and curve.
        rows : int or None, default 1
            Number of rows of one unit that ``curve`` protects together; ``None`` where these are
            all rows of any unit. Where it is less than a unit, the curve of a group is charged.

        Returns
        -------
        str
            Token that names the release from now on.

        Raises
        ------
        InputError
            If the budget does not suffice, or the ledger is damaged. Nothing is charged.
        """
        _check_text("purpose", purpose)
        token = secrets.token_hex(16) if token is None else token
        before = self.total(dataset)
        check_charges(self, before)
        size = before.groups(rows)
        curve = curve if size == 1 else curve.group(size)
        described = json.dumps(curve.to_dict())
        charge = before.filter.charge(curve)  # takes a second for some curves: others need not wait
        with open_ledger(self.path) as connection, transaction(connection):
            self._check_holds(connection, "charged")
            known = connection.execute(
                f"SELECT {COLUMNS} FROM releases WHERE token = ?", (token,)
            ).fetchone()
            if known:
                return _same(Release(*known), dataset, run, described)
            total = total_of(connection, dataset)
            check_same(total.adjacency, adjacency, "ledger")
            if total.groups(rows) != size:  # stated by another process in between
                raise InputError(
                    "ledger",
                    "was changed while the release was prepared",
                    str(self.path),
                    "run again",
                )
            check_fits(total, charge)
            _append(
                connection, token, total.dataset, purpose, run, described, json.dumps(charge.costs)
            )
            if not total.of_rows:
                database.append(connection, "protects", token=token, unit=total.unit)
        return token

    def touch(self, token: str) -> None:
        """Record that records are read from now on: the charge stays, whatever happens.

        Parameters
        ----------
        token : str
            Token of the reservation.
        """
        self._move(token, ("reserved", "touched"), "touched")

    def cancel(self, token: str) -> None:
        """Give back the reservation of a run that never read a record.

        Parameters
        ----------
        token : str
            Token of the reservation.

        Raises
        ------
        InputError
            If records were read, or the model was released.
        """
        self._move(token, ("reserved", "cancelled"), "cancelled")

    def release(self, token: str, model_sha256: str) -> None:
        """Record that the model was released; a second call changes nothing.

        Parameters
        ----------
        token : str
            Token of the reservation.
        model_sha256 : str
            Hash of the weights.

        Raises
        ------
        InputError
            If the reservation was not touched, or another model was released.
        """
        self._move(token, ("touched",), "released", model_sha256)

    def announce(self, token: str, model_sha256: str) -> None:
        """Record which model is written next, so that a killed process is recognised by its model.

        Parameters
        ----------
        token : str
            Token of the reservation.
        model_sha256 : str
            Hash of the weights.

        Raises
        ------
        InputError
            If ``release`` would refuse the model.
        """
        with open_ledger(self.path) as connection, transaction(connection):
            if _moves(line_of(connection, token), ("touched",), "released", model_sha256):
                database.append(connection, "model", token=token, model=model_sha256)

    announced = RenamedAttribute("find_announced")
    remembered = RenamedAttribute("find_release")

    def find_announced(self, model_sha256: str) -> tuple[Release, str | None] | None:
        """Return the line of a model that was announced or released.

        Parameters
        ----------
        model_sha256 : str
            Hash of the weights.

        Returns
        -------
        tuple of Release and str, or None
            Line, and digest of its records (``None`` where it is unknown); ``None`` for an unknown
            model.
        """
        with open_ledger(self.path) as connection:
            token = database.find_announcement(connection, model_sha256)
            if token is None:
                return None
            return line_of(connection, token), database.digest_of(connection, "records", token)

    def remember(self, token: str, digest: str) -> None:
        """Keep a keyed digest of the records that a release was trained on.

        Parameters
        ----------
        token : str
            Token of the release.
        digest : str
            Digest.
        """
        with open_ledger(self.path) as connection, transaction(connection):
            line_of(connection, token)
            database.append(connection, "records", token=token, digest=digest)

    def find_release(self, model_sha256: str) -> tuple[Release, str] | None:
        """Return the first release with these weights, and the digest of its records.

        Parameters
        ----------
        model_sha256 : str
            Hash of the weights.

        Returns
        -------
        tuple of Release and str, or None
            Line and digest; ``None`` unless both are known.
        """
        with open_ledger(self.path) as connection:
            row = connection.execute(
                f"SELECT {COLUMNS} FROM releases WHERE model = ? ORDER BY number", (model_sha256,)
            ).fetchone()
            release = None if row is None else Release(*row)
            digest = (
                None
                if release is None
                else database.digest_of(connection, "records", release.token)
            )
        return None if release is None or digest is None else (release, digest)

    def total(self, dataset: str | None = None) -> Total:
        """Return the budget and the releases of a data set.

        Parameters
        ----------
        dataset : str, optional
            Name of the data set; by default the only one.

        Returns
        -------
        Total
            Budget, spending and releases.
        """
        with open_ledger(self.path) as connection:
            return total_of(connection, dataset)

    def datasets(self) -> tuple[str, ...]:
        """Return the names of all data sets.

        Returns
        -------
        tuple of str
            Names, ascending.
        """
        with open_ledger(self.path) as connection:
            return tuple(
                row[0] for row in connection.execute("SELECT name FROM datasets ORDER BY name")
            )

    def head(self) -> str:
        """Return the hash that ties all events together, to be kept in another place.

        Returns
        -------
        str
            Hash of the last event.
        """
        with open_ledger(self.path) as connection:
            return database.head(connection)

    def verify(self, head: str | None = None) -> tuple[str, ...]:
        """Recompute everything that the file states.

        Parameters
        ----------
        head : str, optional
            Hash that was kept in another place; the ledger must still contain it.

        Returns
        -------
        tuple of str
            Problems; empty where the ledger holds.
        """
        kept = None if head is None else database.check_head(head)
        with open_ledger(self.path) as file, snapshot(file) as connection:
            if problems := damage(connection):
                return tuple(problems)
            problems = database.differences(connection, kept)
            try:
                return (*problems, *charge_problems(connection))
            except InputError:
                if not problems:
                    raise
                return tuple(problems)

    def _check_holds(self, connection: sqlite3.Connection, done: str) -> None:
        """Refuse to write to a damaged ledger, or one whose tables contradict its events."""
        if problems := damage(connection) or database.differences(connection):
            raise _does_not_hold(self, problems[0], done)

    def _move(
        self, token: str, allowed: tuple[Stage, ...], state: Stage, model: str | None = None
    ) -> None:
        with open_ledger(self.path) as connection, transaction(connection):
            if _moves(line_of(connection, token), allowed, state, model):
                connection.execute(
                    "UPDATE releases SET state = ?, model = ? WHERE token = ?",
                    (state, model, token),
                )
                database.append(connection, "state", token=token, state=state, model=model)


def check_charges(ledger: Ledger, total: Total) -> None:
    """Refuse to charge a data set of which a line costs less than its curve."""
    if problems := find_damage(total):
        raise _does_not_hold(ledger, problems[0], "charged")


def _does_not_hold(ledger: Ledger, problem: str, done: str) -> InputError:
    return InputError(
        "ledger",
        f"must hold before it is {done}: {problem}".replace("\n", " "),
        str(ledger.path),
        "restore it from a copy; lastiterate ledger verify lists all that is wrong",
    )


def _moves(release: Release, allowed: tuple[Stage, ...], state: Stage, model: str | None) -> bool:
    """Whether the line is yet to become that; refused where it cannot."""
    if release.state == state and release.model == model:
        return False
    if release.state not in allowed:
        raise InputError(
            "ledger",
            f"has this release as {release.state}: it cannot become {state}",
            None,
            "what was released, or given back, is over: a new fit is a new release",
        )
    return True


def _state_rows(connection: sqlite3.Connection, dataset: str, rows: int) -> None:
    if type(rows) is not int or not 1 <= rows <= MOST_ROWS:
        raise InputError("rows_per_unit", f"must be an integer from 1 to {MOST_ROWS}", rows)
    if (known := database.rows_per_unit(connection, dataset)) is not None:
        raise InputError(
            "rows_per_unit", f"is stated already, {known}, and cannot be changed", rows
        )
    database.append(connection, "rows", dataset=dataset, rows=rows)


def _check_text(name: str, text: str) -> None:
    if not 0 < len(text) <= MOST_TEXT or not text.isprintable():
        raise InputError(name, f"must be 1 to {MOST_TEXT} printable characters", text[:MOST_TEXT])


def _today() -> str:
    """The day and not the time: how long a fit took may depend on records."""
    return datetime.now(UTC).date().isoformat()


def _append(connection: sqlite3.Connection, token: str, *content: str) -> None:
    last = connection.execute(
        "SELECT number, chain FROM releases ORDER BY number DESC LIMIT 1"
    ).fetchone()
    number, before = (last[0] + 1, last[1]) if last else (1, "")
    line = (number, token, *content, _today())
    row = (*line, hash_chain(before, *line), "reserved", None, 0)
    connection.execute(
        f"INSERT INTO releases ({COLUMNS}) VALUES ({', '.join('?' * len(row))})", row
    )
    database.append(connection, "line", **dict(zip(database.LINE, row, strict=True)))


def _same(release: Release, dataset: str, run: str, curve: str) -> str:
    if (release.dataset, release.run, release.curve) != (dataset, run, curve):
        raise InputError(
            "checkpoint",
            "was begun by another run or with other settings, and continues that one only",
            None,
            "repeat the command that began it, or begin another checkpoint, with a new charge",
        )
    if release.state == "cancelled":
        raise InputError("ledger", "has this release as cancelled", None, "start the run again")
    return release.token
