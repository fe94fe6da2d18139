"""Tables in memory as cells: data frames of any library that speaks Arrow, dictionaries of columns,
arrays."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from numbers import Number
from typing import Any, cast

import numpy as np

from lastiterate.data.columns import Numeric
from lastiterate.data.parquet import SPREAD, cells_by_kind
from lastiterate.data.schema import Schema
from lastiterate.data.table import (
    Cells,
    NumberText,
    Table,
    array_table,
    column_names,
    number_text,
    to_doubles,
)
from lastiterate.errors import InputError
from lastiterate.run.validation import check_kept

NEEDED = (
    "must be a data frame of pandas, polars or pyarrow, a dictionary of columns, or an array whose "
    "columns are "
    "those of the schema"
)


def frame_table(data: object, schema: Schema) -> Table:
    """The cells of a table in memory; ``schema`` says which columns hold numbers, and names the
    columns of an array.

    Columns that the schema does not name as numbers become text as in a file: 3.0 is "3", what is
    missing is "". Columns that give a record nothing are not looked at. Errors: other kinds of
    data, columns of unequal length, nested columns.
    """
    data, unread = _leave_unread(data, {each.name for each in schema.columns if not each.fields})
    check_kept("X", data)
    if isinstance(data, np.ndarray):
        return _array(cast(np.ndarray, data), schema)
    sparse = sys.modules.get("scipy.sparse")
    if sparse is not None and sparse.issparse(data):
        raise InputError(
            "X", "must not be sparse: " + NEEDED, type(data).__name__, "use its toarray()"
        )
    columns = cast("Mapping[Any, Any]", data) if isinstance(data, Mapping) else _arrow_columns(data)
    if not columns and not unread:
        raise InputError("X", NEEDED, type(cast(object, data)).__name__)
    names = column_names([*map(str, columns), *unread])
    numbers = {column.name for column in schema.columns if isinstance(column, Numeric)}
    cells = {
        name: _cells(name, column, name in numbers)
        for name, column in zip(names, columns.values(), strict=False)
    }
    if len({len(column) for column in cells.values()}) > 1:
        raise InputError(
            "X",
            "must have columns of one length",
            sorted({len(column) for column in cells.values()}),
        )
    return Table(names, cells)


def _leave_unread(data: object, unread: set[str]) -> tuple[object, list[str]]:
    """A table without the columns that give a record nothing, and their names."""
    frame = cast(Any, data)
    listed: Any = ()
    if isinstance(data, Mapping):
        listed = frame
    elif not isinstance(data, np.ndarray):
        listed = getattr(data, "column_names", getattr(data, "columns", ()))
    names: list[Any] = list(listed) if unread else []
    kept = [i for i, name in enumerate(names) if str(name).strip() not in unread]
    if len(kept) == len(names):
        return frame, []
    left_out = [str(name) for i, name in enumerate(names) if i not in kept]
    if isinstance(data, Mapping):
        return {names[i]: frame[names[i]] for i in kept}, left_out
    if hasattr(frame, "iloc"):  # of pandas
        return frame.iloc[:, kept], left_out
    return frame.select([names[i] for i in kept]), left_out


def _arrow_columns(data: Any) -> dict[str, Any]:
    """Columns by name, as Arrow's arrays."""
    try:
        import pyarrow as module  # pyright: ignore
    except ImportError:
        raise InputError(
            "X",
            "as a data frame needs pyarrow",
            type(data).__name__,
            "install it with: pip install lastiterate[parquet]",
        ) from None
    pyarrow, pandas = cast(Any, module), sys.modules.get("pandas")
    try:
        if pandas is None or not isinstance(data, pandas.DataFrame):
            table = pyarrow.table(data)
            return {
                name: column.combine_chunks()
                for name, column in zip(table.column_names, table.columns, strict=True)
            }
        names = column_names(list(map(str, data.columns)))  # an index is no column
        # of untyped columns Arrow would look for a type that holds all of their values, which
        # changes some
        return {
            name: one.astype(object).to_numpy()
            if one.dtype == object or _has_no_arrow(one.dtype)
            else pyarrow.Table.from_pandas(one.to_frame(), preserve_index=False)
            .column(0)
            .combine_chunks()
            for name, one in ((name, data.iloc[:, i]) for i, name in enumerate(names))
        }
    except (TypeError, ValueError, pyarrow.ArrowException) as error:  # their texts show values
        if isinstance(error, InputError):
            raise
        raise InputError("X", NEEDED + ", each column of one type", type(data).__name__) from None


def _has_no_arrow(kind: Any) -> bool:
    """Whether a type of pandas is none of Arrow's: periods, intervals and sparse values. A file has
    the text of each value, such as 2026-01 or (18, 40]."""
    kind = getattr(getattr(kind, "categories", None), "dtype", kind)
    return str(kind).startswith(("period", "interval", "Sparse"))


def text_cells(name: str, column: Any) -> Cells:
    """The cells of one column in memory as text, as those of a table are."""
    if type(column).__module__.startswith("pyarrow") and hasattr(column, "combine_chunks"):
        column = column.combine_chunks()
    return _cells(name, column, number=False)


def _cells(name: str, column: object, number: bool) -> Cells:
    if type(column).__module__.startswith("pyarrow"):
        return cells_by_kind(name, column, number)
    # of a list every value as it is: one of another kind would make others text, or true a 1
    values = np.asarray(column, object if isinstance(column, list | tuple) else None)
    held = set(map(type, values.tolist())) if values.ndim == 1 and values.dtype.kind == "O" else ()
    if values.ndim != 1 or any(
        issubclass(kind, Iterable) and not issubclass(kind, str) for kind in held
    ):
        nested = sorted({kind.__name__ for kind in held if issubclass(kind, Iterable)} - {"str"})
        raise InputError(
            f"column {name!r}",
            "must be a list of single values",
            ", ".join(nested) or values.shape,
            f'{SPREAD}, or say kind = "ignore" for it in the schema',
        )
    return _values(values, number)


def _values(values: np.ndarray, number: bool) -> Cells:
    """Cells of an array (n,): numbers as they are, everything else as text, each by itself."""
    if number and values.dtype.kind in "biuf":
        return to_doubles(values)
    if values.dtype.kind == "M":  # as Arrow writes days and times
        unit = np.datetime_data(values.dtype)[0]
        times = (
            values.astype("M8[D]" if unit in "YMWD" else "M8[s]") if unit in "YMWDhm" else values
        )
        return [
            "" if text == "NaT" else text.replace("T", " ")
            for text in np.datetime_as_string(times).tolist()
        ]
    listed = (
        list(values) if values.dtype.kind == "f" and values.dtype.itemsize < 8 else values.tolist()
    )
    cells: list[object] = [
        value.item() if isinstance(value, np.integer | np.bool_) else value for value in listed
    ]
    return [_text(int(cell) if number and isinstance(cell, bool) else cell) for cell in cells]


def _text(value: object) -> str:
    if value is None or type(value).__name__ == "NAType":  # of pandas
        return ""
    if isinstance(value, float | np.floating):
        return NumberText(number_text(cast("float | np.floating[Any]", value)))
    return NumberText(value) if isinstance(value, Number) else str(value).strip()


def _array(data: np.ndarray, schema: Schema) -> Table:
    """An array (n, ...), whose columns are those that the schema uses, in its order."""
    if schema.array is not None:
        return array_table(data, None, answers_in="y")
    names = tuple(column.name for column in schema.columns)
    if data.ndim != 2 or data.shape[1] != len(names):
        raise InputError(
            "X",
            f"must have the {len(names)} columns of the schema",
            data.shape,
            "give a data frame, whose columns have names",
        )
    return Table(
        names,
        {
            column.name: _values(data[:, i], isinstance(column, Numeric))
            for i, column in enumerate(schema.columns)
        },
    )
