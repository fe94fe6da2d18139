"""Parquet, through pyarrow: every column becomes text cells as a CSV file has them, so one schema fits both."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from lastiterate.data.table import Table, column_names, damaged
from lastiterate.errors import InputError


def read_parquet(path: Path) -> Table:
    """Numbers, text, categories, true/false, dates; a missing value is an empty cell. Nested columns are refused."""
    parquet = _library(path)
    with path.open("rb") as start:
        if start.read(4) != b"PAR1":  # pyarrow looks at the end only
            raise damaged(path, "must be a complete Parquet file, which starts with PAR1")
    try:
        # ParquetFile, and not read_table: the latter makes columns of folder names such as year=2020
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            found = file.read()
        found.validate(full=True)
    except Exception as error:  # pyarrow raises OSError, ValueError and its own kinds on damaged bytes
        raise damaged(path, "must be a complete Parquet file", error) from None
    if found.num_rows == 0 or found.num_columns == 0:
        raise InputError("data file", "must hold at least one column and one record", path.name)
    names = column_names(list(found.column_names))
    return Table(names, {name: _cells(name, column) for name, column in zip(names, found.columns, strict=True)})


def _library(path: Path) -> Any:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise InputError("data file", "in Parquet needs pyarrow", path.name,
                         "install it with: pip install lastiterate[parquet]") from None
    return parquet


def read_types(path: Path) -> dict[str, str]:
    """Names of the columns, and what the file's own schema says that they hold; no cell is read."""
    parquet = _library(path)
    try:
        with parquet.ParquetFile(path) as file:
            found = file.schema_arrow
    except Exception as error:
        raise damaged(path, "must be a complete Parquet file", error) from None
    from pyarrow import types

    def kind(of: Any) -> str:
        number = types.is_floating(of) or types.is_integer(of) or types.is_decimal(of)
        return "number" if number else "category"

    return dict(zip(column_names(list(found.names)), map(kind, found.types), strict=True))


def _cells(name: str, column: Any) -> list[str]:
    """The cells of one column (a ChunkedArray) as text."""
    from pyarrow import ArrowException, string, types

    if types.is_dictionary(column.type):  # a categorical: its values, and not their codes
        column = column.cast(column.type.value_type)
    kind = column.type
    if types.is_floating(kind):
        return [_number(value) for value in column.to_pylist()]
    if types.is_string(kind) or types.is_large_string(kind) or types.is_integer(kind) or types.is_boolean(kind) \
            or types.is_decimal(kind) or types.is_null(kind):
        return ["" if value is None else str(value).strip() for value in column.to_pylist()]
    if types.is_date(kind) or types.is_time(kind) or types.is_timestamp(kind):
        try:
            return ["" if value is None else value for value in column.cast(string()).to_pylist()]
        except ArrowException as error:  # a time zone that this machine does not know
            raise InputError(f"column {name!r}", "must hold dates and times that can be written as text",
                             str(error).split("\n")[0][:120]) from None
    raise InputError(f"column {name!r}", "must hold numbers, text, categories, true/false or dates", str(kind),
                     "leave nested and binary columns out, or spread a list over columns of its own")


def _number(value: float | None) -> str:
    """3.0 is "3", so that a label that became a float because some are missing keeps its name; NaN is missing."""
    if value is None or math.isnan(value):
        return ""
    value = float(value)
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
