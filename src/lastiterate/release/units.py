"""Protected units of several rows, such as persons: at most a public number of rows of each is
used."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from lastiterate.accounting.certificate_subject import RECORD, UNNAMED
from lastiterate.data.columns import MISSING, Category, Id, Numeric
from lastiterate.data.data_frames import text_cells
from lastiterate.data.file_stream import SelectedRecords, Stream
from lastiterate.data.schema import Schema
from lastiterate.data.table import Cells, CodedCells, Table, canonical_text, check_header
from lastiterate.errors import InputError
from lastiterate.ledger.budget_check import is_same_word
from lastiterate.run.run import Run
from lastiterate.run.validation import check_kept, check_text, positive_integer

if TYPE_CHECKING:
    from lastiterate.engine.linear_gradients import UnitRecords

UNCHECKED = (
    "that no unit has more rows than its bound is the caller's word: train got no unit column"
)


def select_unit_rows(unit: object, most: int) -> np.ndarray:
    """Select the first rows of every protected unit, in the order of the data.

    Parameters
    ----------
    unit : array_like, shape (n,)
        Identifier of the unit of every row: integers or text.
    most : int
        Most rows to keep of one unit, at least 1.

    Returns
    -------
    numpy.ndarray, shape (n,)
        Booleans, true for rows to keep.

    Raises
    ------
    InputError
        If identifiers are missing, may be rounded, or write one number in two ways.

    Notes
    -----
    **Guarantee:** whether a row is kept depends on the rows of its own unit alone.

    Examples
    --------
    >>> import lastiterate as li
    >>> li.select_unit_rows(["ann", "bob", "ann", "ann"], 2).tolist()
    [True, True, True, False]
    """
    return _first_rows(identifiers(unit), most)


def _first_rows(names: np.ndarray, most: int) -> np.ndarray:
    """Select the first ``most`` rows of every identifier (n,): booleans (n,)."""
    positive_integer("rows_per_unit", most)
    _, which = np.unique(names, return_inverse=True)
    order = np.argsort(which, kind="stable")
    ranked = which[order]
    starts = np.flatnonzero(np.concatenate(([True], ranked[1:] != ranked[:-1])))
    place = np.arange(len(ranked)) - np.repeat(starts, np.diff(np.append(starts, len(ranked))))
    kept = np.empty(len(ranked), dtype=bool)
    kept[order] = place < most
    return kept


def check_unit_column(schema: Schema, column: str) -> None:
    """Refuse a unit that is a feature or the target."""
    used = [one.name for one in schema.columns if isinstance(one, Numeric | Category)]
    if column in (*used, schema.target):
        raise InputError(
            "unit",
            "must be no feature and not the target",
            column,
            'mark the column kind = "ignore" in the schema',
        )


def find_id_columns(schema: Schema | None) -> tuple[str, ...]:
    """The columns that a schema calls ids, one of which may name units."""
    columns = () if schema is None else schema.columns
    return tuple(one.name for one in columns if isinstance(one, Id))


def find_unit_column(names: tuple[str, ...], unit: str) -> str | None:
    """The column whose name is a ledger's word for its unit, if there is one."""
    return unit if unit in names else next((x for x in names if is_same_word(x, unit)), None)


def guess_unit_column(ids: tuple[str, ...], unit: str) -> str | None:
    """Of the columns of ids, the one that may name every ``unit``: by its name, or the only one."""
    return find_unit_column(ids, unit) or (ids[0] if len(ids) == 1 else None)


@dataclass(frozen=True)
class Units:
    """The protected unit of a file's rows: a column that names it, and the public number of its
    rows that are used."""

    column: str
    rows: int

    def limit_rows(
        self, table: Table | Stream, schema: Schema
    ) -> tuple[Table | Stream, np.ndarray]:
        """The table with the first ``rows`` rows of every unit, and the unit of each (n,); no
        column but its own is looked at."""
        check_unit_column(schema, self.column)
        if table.shape is None:
            check_header(table.names, schema.described)
        cells = read_texts(table, self.column)
        if cells is None:
            raise InputError(
                "unit",
                "must be a column of the data file",
                self.column,
                "the columns are " + ", ".join(table.names[:20])
                if table.shape is None
                else "arrays have none",
            )
        who = _number_units(cells) if isinstance(cells, CodedCells) else identifiers(cells)
        kept = _first_rows(who, self.rows)
        selected = table.select(kept) if isinstance(table, Table) else SelectedRecords(table, kept)
        return selected, who[kept]


def read_texts(table: Table | Stream, name: str) -> Cells | None:
    """The cells of a column of a whole table; ``None`` where it has no such cells."""
    if isinstance(table, Table):
        return None if table.cells is None else table.cells.get(name)
    return table.read_texts(name)


def _number_units(cells: CodedCells) -> np.ndarray:
    """``identifiers`` as numbers, (n,): equal where these are."""
    check_text("unit", cells.texts)
    numbers = dict[str, int]()
    forms = [numbers.setdefault(form, len(numbers)) for form in _one_forms("unit", cells.texts)]
    return np.array(forms, dtype=np.int64)[cells.codes]


@dataclass(frozen=True, eq=False)
class KeptUnits:
    """The rows of a table in memory that are used: at most ``units.rows`` of every unit.

    ``kept`` (n,): booleans, true for the rows that are used. ``who``: the unit of each of these.
    """

    units: Units
    kept: np.ndarray
    who: np.ndarray

    @classmethod
    def limit_rows(cls, given: object, rows: int) -> KeptUnits:
        """The first ``rows`` rows of every unit; ``given``: one identifier per row, read as the
        column of a file is. A named column's name is what a certificate calls the unit."""
        if isinstance(given, str):
            raise InputError(
                "units",
                "must be one identifier per row, not a column's name",
                given,
                f"give the column: units=frame[{given!r}]",
            )
        check_kept("units", given)
        shape = getattr(given, "shape", None)
        if shape is not None and len(shape) != 1:
            columns = [str(name) for name in getattr(given, "columns", ())]
            raise InputError(
                "units",
                "must be one identifier per row, shape (n,)",
                tuple(shape),
                f"give one column: units=table[{columns[0]!r}]"
                if columns
                else "write units[:, 0] for the first column of an array",
            )
        names = identifiers(np.array(text_cells("units", given), dtype=np.str_), "units")
        kept = _first_rows(names, rows)
        column = getattr(given, "name", None)
        return cls(Units(column if isinstance(column, str) else UNNAMED, rows), kept, names[kept])

    @property
    def count(self) -> int:
        """How many units there are."""
        return len(np.unique(self.who))

    def select(self, *parts: np.ndarray) -> tuple[np.ndarray, ...]:
        """The rows that are used of arrays (n, ...)."""
        if any(len(part) != len(self.kept) for part in parts):
            raise InputError(
                "units",
                f"must say whose each of the {len(parts[0])} rows is",
                len(self.kept),
                "give one identifier per row",
            )
        if len(self.who) < 2:
            raise InputError("units", "must leave at least two rows to train on", len(self.who))
        return tuple(part[self.kept] for part in parts)


@dataclass(frozen=True)
class UnitLoss:
    """The mean of ``loss`` over the rows of one unit: with it a record of a run is a unit of at
    most ``rows`` rows.

    Called as ``unit_loss(params, present, *rows)``: ``present`` (rows,) says which positions hold a
    row (all of those that ``units_as_records`` fills), and the sum is divided by the public
    ``rows``. Of a module ``PerUnit(module)`` takes the
    rows, and ``present`` is the first part of a record behind them. Batches then sample units, n
    counts units, ``clip`` bounds the gradient of a unit.
    """

    loss: Callable[..., Any]
    rows: int

    def __call__(self, params: object, present: Any, *rows: Any) -> Any:
        import jax
        import jax.numpy as jnp

        each = jax.vmap(partial(self.loss, params))(*rows)
        return jnp.sum(jnp.where(present > 0, each, 0.0)) / self.rows

    @property
    def caveat(self) -> str:
        """What a certificate says of its records."""
        return RECORD.format(self.rows)


def units_as_records(data: tuple[Any, ...], unit: object, rows: int) -> tuple[np.ndarray, ...]:
    """Data with one record per unit: which positions hold a row, (units, rows), and arrays (units,
    rows, ...).

    ``data``: arrays with the n rows along the first axis; ``unit``: one identifier per row, shape
    (n,). Of each unit the first ``rows`` rows are kept. One with fewer repeats them in turn until
    its positions are full: all hold a row, and a unit counts as much as any other, whatever
    ``rows`` is.

    **Guarantee:** a unit's record is a function of that unit's rows alone.
    """
    names = identifiers(unit)
    arrays = [np.asarray(part) for part in data]
    if any(len(part) != len(names) for part in arrays):
        raise InputError("unit", "must name the unit of every row", len(names))
    kept = select_unit_rows(names, rows)
    # in the order in which they appear: a unit that is exchanged leaves all others where they are
    units, first, which = np.unique(names[kept], return_index=True, return_inverse=True)
    which = np.argsort(np.argsort(first))[which]
    order = np.argsort(which, kind="stable")
    counts = np.bincount(which, minlength=len(units))
    starts = np.cumsum(counts) - counts
    # (units, rows): a unit's rows in turn until its places are full
    index = starts[:, None] + np.arange(rows) % counts[:, None]
    present = np.ones(index.shape, dtype=np.float32)
    return (present, *(part[kept][order][index] for part in arrays))


def unit_records(data: tuple[Any, ...], unit: object, rows: int) -> UnitRecords:
    """Data (x, y) of a linear model with one record per unit."""
    from lastiterate.engine.linear_gradients import UnitRecords

    present, features, target = units_as_records(data, unit, rows)
    return UnitRecords(features, target, present > 0)


def check_units(run: Run, unit: object, records: int | None) -> tuple[str, ...]:
    """Refuse data with a unit of more rows than the run says; caveats where there is no unit column
    to look at.

    ``records``: how many there are, where they have not come with their units from one file.
    """
    if run.rows_per_record > 1:
        if run.nominal:
            raise InputError(
                "rows_per_record",
                "must be 1 under add-remove: its records are rows, of a nominal number",
                run.rows_per_record,
                "use rows_per_unit, for group privacy",
            )
        if unit is None:
            raise InputError(
                "unit",
                "must be given where records are units (rows_per_record)",
                None,
                "one identifier per row says who it belongs to",
            )
        count = len(np.unique(identifiers(unit)))
        if count != run.n:
            raise InputError(
                "unit", f"must name the run's n = {run.n} units", count, "n counts units"
            )
        return ()
    return check_rows(unit, records, run.rows_per_unit)


def check_rows(unit: object, n: int | None, rows: int) -> tuple[str, ...]:
    """The same of ``n`` rows, at most ``rows`` of them of one unit."""
    if unit is None:
        return (UNCHECKED,) if rows > 1 else ()
    names = identifiers(unit)
    if n is not None and len(names) != n:
        raise InputError(
            "unit",
            f"must name the unit of each of the n = {n} rows",
            len(names),
            "where n counts units, a linear model has Run(rows_per_record=...), and a network or a "
            "module units_as_records and UnitLoss of lastiterate.release.units, without unit=",
        )
    if not select_unit_rows(names, rows).all():
        raise InputError(
            "unit",
            f"must have at most rows_per_unit = {rows} rows",
            None,
            "keep those that lastiterate.select_unit_rows(unit, rows) says, before n is counted",
        )
    return ()


def identifiers(unit: Any, argument: str = "unit") -> np.ndarray:
    """Return one identifier per row, (n,), each person's in one form: "7" and "7.0" are the same.

    ``argument``: what named them.

    Errors: rows without an identifier, and identifiers that may be rounded or that differ only in
    how a number is written, such as 7 and 007.
    """
    check_kept(argument, unit)
    names = np.asarray(unit)
    if names.dtype.kind == "O" and all(isinstance(name, str) for name in names.flat):
        names = names.astype(np.str_)  # a column of text in pandas
    if names.ndim != 1 or names.dtype.kind not in "biuU":
        raise InputError(
            argument,
            "must be one integer or text per row, shape (n,)",
            f"{names.dtype} of shape {names.shape}",
        )
    if names.dtype.kind == "U":
        check_text(argument, unit)
        found, which = np.unique(names, return_inverse=True)
        names = np.array(_one_forms(argument, map(str, found)), dtype=np.str_)[which]
    return names


def _one_forms(argument: str, texts: Iterable[str]) -> list[str]:
    """``canonical_identifiers``, none of which may be missing."""
    forms = canonical_identifiers(argument, texts)
    if "" in forms:
        raise InputError(
            argument,
            "must say whose every row is, and some rows have no identifier",
            None,
            "leave them out, or find out whose they are: rows of one person must be counted "
            "together",
        )
    return forms


def canonical_identifiers(argument: str, texts: Iterable[str]) -> list[str]:
    """Return the one form of every identifier of a column, "" where it is missing; ``argument``:
    what named the column.

    Errors: numbers that may have lost digits, and two identifiers that are one number, whose rows
    may be one person's.
    """
    forms: list[str] = []
    padded = dict[str, str]()  # 7: 007
    for text in map(str.strip, texts):
        form = "" if text.lower() in MISSING else canonical_text(text)
        forms.append(form)
        if not text.isdecimal() and _may_be_rounded(text):
            raise InputError(
                argument,
                "must hold identifiers as they are, and some are numbers that may be rounded",
                None,
                "write them as integers or as text: two persons may have become one",
            )
        if (
            text[:1] in ("+", "-", "0")
            and (value := plain_identifier(text)) != form
            and padded.setdefault(value, form) != form
        ):
            raise _two_forms(argument)
    if padded and not padded.keys().isdisjoint(forms):
        raise _two_forms(argument)
    return forms


_EXPONENT = re.compile(r"-?[0-9]*(\.[0-9]*[eE][+-]?|[eE][+-])[0-9]+")
_POINT = re.compile(r"-?([0-9]+)\.[0-9]*")
_ZEROS = re.compile(r"\+?(-?)0+(?=[0-9])|\+(?=[0-9])")


def _may_be_rounded(text: str) -> bool:
    """Whether it is written as programs write floats beyond their precision: with an exponent, or a
    point from 2^53 on."""
    point = _POINT.fullmatch(text)
    return _EXPONENT.fullmatch(text) is not None or (point is not None and int(point[1]) >= 2**53)


def plain_identifier(text: str) -> str:
    """Return an identifier as a number is written plainly: without a plus sign, and without zeros
    in front."""
    return canonical_text(_ZEROS.sub(r"\1", text, count=1))


def _two_forms(argument: str) -> InputError:
    return InputError(
        argument,
        "must write every identifier in one way, and some differ only in how a number is "
        "written, as 7 and 007 do",
        None,
        "write them alike: they may be the same person's",
    )
