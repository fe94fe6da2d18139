"""Parquet, through pyarrow: every column becomes text cells as a CSV file has them, so one schema
fits both."""

# pyright: basic
# Arrow has no types
from __future__ import annotations

import math
from collections.abc import Container, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from lastiterate import limits
from lastiterate.data.schema_template import TRUTH
from lastiterate.data.table import (
    Cells,
    CodedCells,
    NumberText,
    Table,
    column_names,
    damage_error,
    not_in_memory,
    number_text,
    to_doubles,
)
from lastiterate.errors import InputError

SPREAD = "spread a list over columns of its own, write other values as text"


def read_parquet(path: Path, numbers: Container[str] = (), unread: Container[str] = ()) -> Table:
    """The records of a file, or of all parts in a folder, one part behind the other.

    Numbers, text, categories, true/false, dates; a missing value is an empty cell. Nested columns
    are refused. ``numbers``: columns that may come as float64, a tenth of what their text takes.
    ``unread``: columns that are left out where their type has no cells.
    """
    parts = parts_of(path)
    names = column_names(list(same_columns(parts)))
    check_not_empty(path, names, count := sum(map(count_records, parts)))
    if count * len(names) * limits.LEAST > limits.memory():
        raise not_in_memory(path)
    tables = [
        table.cells or {}
        for part in parts
        for table in read_batches(part, count, 0, numbers, unread)
    ]
    cells = {name: _join_cells([table[name] for table in tables]) for name in tables[0]}
    return Table(names, cells, types=read_stated_types(parts[0], unread))


def check_not_empty(path: Path, names: tuple[str, ...], records: int) -> None:
    """Refuse a file or a folder without a column, or without a record."""
    if not names or not records:
        raise InputError("data file", "must hold at least one column and one record", path.name)


def _join_cells(parts: list[Cells]) -> Cells:
    return (
        np.concatenate(parts)
        if isinstance(parts[0], np.ndarray)
        else [cell for part in parts for cell in part]
    )


def count_records(path: Path) -> int:
    """Return how many records a file holds, from its footer."""
    with open_parquet(path) as file:
        return file.metadata.num_rows


def read_blocks(
    path: Path, most: int, numbers: Container[str], unread: Container[str], wanted: Container[str]
) -> Iterator[Table]:
    """The records of a file or folder, 1 .. ``most`` at a time; of the columns those that are
    ``wanted``, text as ``CodedCells``."""
    parts, at = parts_of(path), 0
    names = column_names(list(same_columns(parts)))
    check_not_empty(path, names, sum(map(count_records, parts)))
    read_stated_types(parts[0], unread)
    for part in parts:
        for table in read_batches(part, most, at, numbers, unread, wanted):
            yield table
            at = table.first + len(table)


def read_batches(
    path: Path,
    most: int,
    at: int,
    numbers: Container[str],
    unread: Container[str] = (),
    coded: Container[str] | None = None,
) -> Iterator[Table]:
    """The records of one file, 1 .. ``most`` of them at a time; ``at``: how many lie before it.

    ``coded``: the only columns that are read, and text comes as ``CodedCells``.
    """
    with open_parquet(path) as file:
        names = column_names(list(file.schema_arrow.names))
        read = [
            raw
            for raw, name, kind in zip(
                file.schema_arrow.names, names, file.schema_arrow.types, strict=True
            )
            if (name not in unread or has_cells(kind)) and (coded is None or name in coded)
        ]
        batches = file.iter_batches(batch_size=most, columns=read, use_threads=False)
        while (batch := _next(batches, path)) is not None:
            # a column within another may have the name of one that is read
            columns = [batch.column(batch.schema.names.index(raw)) for raw in read]
            cells = {
                name: cells_by_kind(name, column, name in numbers, coded is not None)
                for name, column in zip(column_names(read), columns, strict=True)
            }
            yield Table(names, cells, first=at)
            at += batch.num_rows


def _next(batches: Iterator[Any], path: Path) -> Any:
    """Return the next batch that holds a record, or ``None``."""
    try:
        batch = next((each for each in batches if each.num_rows), None)
        if batch is not None:
            batch.validate(full=True)
        return batch
    except (
        Exception
    ) as error:  # pyarrow raises OSError, ValueError and its own kinds on damaged bytes
        raise damage_error(path, "must be a complete Parquet file", error) from None


def same_columns(parts: list[Path]) -> dict[str, str]:
    """Names and types of the columns of all parts. Errors: parts that differ in them: 3 of one type
    and 3.00 of another are two categories, or two persons."""
    first, *others = parts
    types = column_types(first)
    different = next((part for part in others if column_types(part) != types), None)
    if different is not None:
        raise InputError(
            "data folder",
            "must hold parts with the same columns, of the same types",
            different.name,
            f"those of {first.name} are others",
        )
    return types


def is_parts(path: Path) -> bool:
    """A folder of Parquet files."""
    return path.is_dir() and any(path.glob("*.parquet"))


def parts_of(path: Path) -> list[Path]:
    """The file, or all parts in a folder, in the order of their names."""
    return sorted(path.glob("*.parquet")) if path.is_dir() else [path]


@contextmanager
def open_parquet(path: Path) -> Generator[Any]:
    """The open file, of which only the footer is read."""
    parquet = _library(path)
    try:
        with path.open("rb") as start:
            if start.read(4) != b"PAR1":  # pyarrow looks at the end only
                raise damage_error(path, "must be a complete Parquet file, which starts with PAR1")
        # ParquetFile, and not read_table: the latter makes columns of folder names such as
        # year=2020
        file = parquet.ParquetFile(
            path, page_checksum_verification=True, pre_buffer=False, buffer_size=2**16
        )
    except InputError:
        raise
    except Exception as error:
        raise damage_error(path, "must be a complete Parquet file", error) from None
    with file:
        yield file


def _library(path: Path) -> Any:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise InputError(
            "data file",
            "in Parquet needs pyarrow",
            path.name,
            "install it with: pip install lastiterate[parquet]",
        ) from None
    return parquet


def column_types(path: Path) -> dict[str, str]:
    """Names of the columns, and what the file's own schema calls their types; no cell is read."""
    with open_parquet(path) as file:
        schema = file.schema_arrow
        return dict(zip(column_names(list(schema.names)), map(str, schema.types), strict=True))


def read_types(path: Path) -> dict[str, str]:
    """Names of the columns, and the kinds that the file's own schema states for what they hold; no
    cell is read."""
    first = parts_of(path)[0]
    with open_parquet(first) as file:
        schema = file.schema_arrow
    from pyarrow import types

    def kind(of: object) -> str:
        number = types.is_floating(of) or types.is_integer(of) or types.is_decimal(of)
        day = types.is_date(of) or types.is_timestamp(of)
        if not has_cells(of):
            return "ignore"
        return (
            "number" if number else "date" if day else TRUTH if types.is_boolean(of) else "category"
        )

    return dict(zip(column_names(list(schema.names)), map(kind, schema.types), strict=True))


def read_stated_types(path: Path, unread: Container[str] = ()) -> dict[str, str]:
    """Return what every column holds by the file's own schema, in the words of ``Table``; no cell
    is read. ``unread``: as in ``read_parquet``.

    Errors: columns that are no cells, and times in a zone that this machine does not know.
    """
    from pyarrow import types

    def name_type(of: Any) -> str:
        if types.is_dictionary(of):
            return name_type(of.value_type)
        day = types.is_date(of) or types.is_timestamp(of)
        return (
            "integers"
            if types.is_integer(of)
            else "numbers"
            if types.is_floating(of) or types.is_decimal(of)
            else "days"
            if day
            else "times of day"
            if types.is_time(of)
            else "true/false"
            if types.is_boolean(of)
            else "nothing"
            if types.is_null(of)
            else "text"
        )

    with open_parquet(path) as file:
        schema = file.schema_arrow
    names = column_names(list(schema.names))
    for name, kind in zip(names, schema.types, strict=True):
        if name not in unread:
            _check_type(name, kind)
    return dict(zip(names, map(name_type, schema.types), strict=True))


def cells_by_kind(name: str, column: Any, number: bool, coded: bool = False) -> Cells:
    """Text as everywhere; numbers of a column that is one as they are, NaN where one is missing."""
    from pyarrow import types

    kind = column.type
    if number and types.is_boolean(
        kind
    ):  # true is 1, as in an untyped column, which one missing value makes of it
        column, kind = column.cast("int8"), "int8"
    if number and (kind == "int8" or types.is_float64(kind) or types.is_integer(kind)):
        return to_numbers(column.cast("float64", safe=False), math.nan)
    if number and types.is_floating(kind):
        return to_doubles(np.asarray(column.to_numpy(zero_copy_only=False)))
    cells = encode_cells(name, column) if coded else cells_of(name, column)
    held: Any = kind.value_type if types.is_dictionary(kind) else kind  # pyright: ignore
    if not (
        number and (types.is_decimal(held) or types.is_floating(held) or types.is_integer(held))
    ):
        return cells
    if isinstance(cells, CodedCells):
        return CodedCells([NumberText(text) for text in cells.texts], cells.codes)
    return [NumberText(cell) for cell in cells]


def to_numbers(column: Any, missing: float) -> np.ndarray:
    """Doubles or integers of 64 bits of Arrow, ``missing`` where there is none; ``to_numpy`` would
    import pandas."""
    import pyarrow
    from pyarrow import compute

    whole = column.combine_chunks() if hasattr(column, "combine_chunks") else column
    if whole.null_count:
        kind = np.float64 if pyarrow.types.is_floating(whole.type) else np.int64
        filler = pyarrow.py_buffer(np.full(len(whole), missing, kind))
        others = pyarrow.Array.from_buffers(whole.type, len(whole), [None, filler])
        whole = compute.call_function("coalesce", [whole, others])
    return np.from_dlpack(whole)


def encode_cells(name: str, column: Any) -> Cells:
    """``cells_of`` an array of Arrow, each different value made text once."""
    from pyarrow import types

    kind = column.type
    if not types.is_dictionary(kind):
        plain = types.is_string(kind) or types.is_large_string(kind) or types.is_integer(kind)
        if not (plain or types.is_date(kind) or types.is_timestamp(kind)):
            return cells_of(name, column)
        column = column.dictionary_encode()
    texts = cells_of(name, column.dictionary)
    return CodedCells([*texts, ""], to_numbers(column.indices.cast("int64"), len(texts)))


def has_cells(kind: Any) -> bool:
    """Whether columns of a type of Arrow are read: they hold single values that a text can hold."""
    try:
        _check_type("", kind)
    except InputError:
        return False
    return True


def _check_type(name: str, kind: Any) -> None:
    """Refuse a type of which no column is read."""
    import pyarrow
    from pyarrow import types

    cells_of(name, pyarrow.array([0], kind) if types.is_timestamp(kind) else pyarrow.nulls(0, kind))


def cells_of(name: str, column: Any) -> list[str]:
    """The cells of one column (an array of Arrow) as text."""
    from pyarrow import ArrowException, ChunkedArray, string, types

    kind = column.type
    if types.is_dictionary(kind):
        # a categorical: its values, and not their codes; Arrow cannot cast all of them, and pieces
        # have lists of values of their own
        cells = list[str]()
        for piece in column.chunks if isinstance(column, ChunkedArray) else (column,):
            values = cells_of(name, piece.dictionary)
            cells += ["" if code is None else values[code] for code in piece.indices.to_pylist()]
        return cells
    if types.is_float16(kind) or types.is_float32(kind):
        return _single_texts(np.asarray(column.to_numpy(zero_copy_only=False)))
    if types.is_floating(kind):
        return [number_text(value) for value in column.to_pylist()]
    if (
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_integer(kind)
        or types.is_boolean(kind)
        or types.is_decimal(kind)
        or types.is_null(kind)
        or str(kind) == "string_view"
    ):
        return ["" if value is None else str(value).strip() for value in column.to_pylist()]
    if types.is_date(kind) or types.is_time(kind) or types.is_timestamp(kind):
        try:
            return ["" if value is None else value for value in column.cast(string()).to_pylist()]
        except ArrowException as error:  # a time zone that this machine does not know
            raise InputError(
                f"column {name!r}",
                "must hold dates and times that can be written as text",
                str(error).split("\n")[0][:120],
            ) from None
    raise InputError(
        f"column {name!r}",
        "must hold numbers, text, categories, true/false or dates",
        str(kind),
        ("write a span of time as a number of a unit" if types.is_duration(kind) else SPREAD)
        + ', or say kind = "ignore" for it in the schema',
    )


def _single_texts(values: np.ndarray) -> list[str]:
    """Write numbers of less than double precision; those beyond it have an exponent, which says
    that they are rounded."""
    beyond = np.abs(values.astype(np.float64)) >= 2.0 ** (np.finfo(values.dtype).nmant + 1)
    return [
        f"{value:.8e}" if large and math.isfinite(value) else number_text(value)
        for value, large in zip(to_doubles(values).tolist(), beyond.tolist(), strict=True)
    ]
