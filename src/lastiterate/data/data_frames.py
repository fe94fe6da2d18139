"""Tables in memory as cells: data frames of any library that speaks Arrow, dictionaries of columns, arrays."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from lastiterate.data.columns import Numeric
from lastiterate.data.schema import Schema
from lastiterate.data.sources.parts import cells_by_kind
from lastiterate.data.table import Cells, Table, array_table, column_names
from lastiterate.errors import InputError
from lastiterate.run.arrays import check_kept

NEEDED = ("must be a data frame of pandas, polars or pyarrow, a dictionary of columns, or an array whose columns are "
          "those of the schema")


def frame_table(data: Any, schema: Schema) -> Table:
    """The cells of a table in memory; ``schema`` says which columns hold numbers, and names the columns of an array.

    Columns that the schema does not name as numbers become text as in a file: 3.0 is "3", what is missing is "".
    Errors: other kinds of data, columns of unequal length, nested columns.
    """
    check_kept("X", data)
    if isinstance(data, np.ndarray):
        return _array(data, schema)
    sparse = sys.modules.get("scipy.sparse")
    if sparse is not None and sparse.issparse(data):
        raise InputError("X", "must not be sparse: " + NEEDED, type(data).__name__, "use its toarray()")
    columns: Mapping[str, Any] = data if isinstance(data, Mapping) else _arrow_columns(data)
    if not columns:
        raise InputError("X", NEEDED, type(data).__name__)
    names = column_names(list(map(str, columns)))
    numbers = {column.name for column in schema.columns if isinstance(column, Numeric)}
    cells = {name: _cells(name, column, name in numbers) for name, column in zip(names, columns.values(), strict=True)}
    if len({len(column) for column in cells.values()}) != 1:
        raise InputError("X", "must have columns of one length", sorted({len(column) for column in cells.values()}))
    return Table(names, cells)


def _arrow_columns(data: Any) -> dict[str, Any]:
    """Columns by name, as Arrow's arrays."""
    try:
        import pyarrow
    except ImportError:
        raise InputError("X", "as a data frame needs pyarrow", type(data).__name__,
                         "install it with: pip install lastiterate[parquet]") from None
    pandas = sys.modules.get("pandas")
    frame = pandas is not None and isinstance(data, pandas.DataFrame)
    if frame:
        column_names(list(map(str, data.columns)))  # which Arrow refuses without a reason where two are alike
    try:
        # an index is no column
        found = pyarrow.Table.from_pandas(data, preserve_index=False) if frame else pyarrow.table(data)
    except (TypeError, ValueError, pyarrow.ArrowException):  # their texts show values
        raise InputError("X", NEEDED + ", each column of one type", type(data).__name__) from None
    return {name: column.combine_chunks() for name, column in zip(found.column_names, found.columns, strict=True)}


def _cells(name: str, column: Any, number: bool) -> Cells:
    if type(column).__module__.startswith("pyarrow"):
        return cells_by_kind(name, column, number)
    values = np.asarray(column)
    if values.ndim != 1:
        raise InputError(f"column {name!r}", "must be a list of single values", values.shape)
    return _values(values, number)


def _values(values: np.ndarray, number: bool) -> Cells:
    """Cells of an array (n,): numbers as they are, everything else as text."""
    if number and values.dtype.kind in "biuf":
        return values.astype(np.float64)
    return [_text(value) for value in values.tolist()]


def _text(value: object) -> str:
    if value is None or (isinstance(value, float) and value != value):
        return ""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return str(value).strip()


def _array(data: np.ndarray, schema: Schema) -> Table:
    """An array (n, ...), whose columns are those that the schema uses, in its order."""
    if schema.array is not None:
        return array_table(data, None, answers_in="y")
    names = tuple(column.name for column in schema.columns)
    if data.ndim != 2 or data.shape[1] != len(names):
        raise InputError("X", f"must have the {len(names)} columns of the schema", data.shape,
                         "give a data frame, whose columns have names")
    return Table(names, {name: _values(data[:, i], True) for i, name in enumerate(names)})
