"""Parquet and Arrow files, through pyarrow: every column becomes text cells as a CSV file has them,
so one schema fits all."""

# pyright: basic
# Arrow has no types
from __future__ import annotations

import json
import math
from collections.abc import Container, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import unquote

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
from lastiterate.remote_files import is_remote, open_bytes

SPREAD = "spread a list over columns of its own, write other values as text"


# A file, or a folder of parts. Folders in it that are named COLUMN=VALUE give a column to all
# records below them, as Hive and Spark write them.

ARROW = (".feather", ".arrow")
SUFFIXES = (".parquet", *ARROW)
FEW = 2**12
"""Records of a small row group: several are read at once."""
NOTHING = "__HIVE_DEFAULT_PARTITION__"
"""How a folder's name says that a value is missing."""


@dataclass(frozen=True)
class Part:
    """A file, and the columns that the names of its folders state, with their values."""

    path: Path
    keys: tuple[tuple[str, str], ...] = ()


def is_parts(path: Path) -> bool:
    """Whether a path is a folder of Parquet files, or of folders COLUMN=VALUE of them."""
    return path.is_dir() and next(_find_parts(path, ()), None) is not None


def is_columns(path: Path) -> bool:
    """Whether a path is a file or a folder that ``read_parquet`` reads, by its name."""
    return path.suffix.lower() in SUFFIXES or is_parts(path)


def parts_of(path: Path) -> list[Part]:
    """The file, or all parts in a folder, in the order of their names."""
    if not path.is_dir():
        return [Part(path)]
    parts = list(_find_parts(path, ()))
    names = [[name for name, _ in part.keys] for part in parts]
    other = next((part for part, keys in zip(parts, names, strict=True) if keys != names[0]), None)
    if other is not None:
        raise InputError(
            "data folder",
            "must hold all parts below folders of the same columns",
            other.path.relative_to(path).as_posix(),
            f"{parts[0].path.relative_to(path).as_posix()} lies below others",
        )
    return parts


def _find_parts(folder: Path, keys: tuple[tuple[str, str], ...]) -> Iterator[Part]:
    """The parts in a folder, then those in its folders COLUMN=VALUE; each in the order of names."""
    yield from (Part(path, keys) for path in sorted(folder.glob("*.parquet")) if path.is_file())
    for below in sorted(folder.iterdir()):
        name, separator, value = map(unquote, below.name.partition("="))
        if separator and name.strip() and below.is_dir():
            text = "" if value == NOTHING else value.strip()
            yield from _find_parts(below, (*keys, (name.strip(), text)))


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


def count_records(part: Part) -> int:
    """Return how many records a part holds, from its footer."""
    return sum(count_groups(part))


def count_groups(part: Part) -> list[int]:
    """Return the number of records of every row group of a part, from its footer."""
    with open_columns(part.path) as file:
        if isinstance(file, ArrowFile):
            return file.count_groups()
        footer = file.metadata
        return [footer.row_group(i).num_rows for i in range(footer.num_row_groups)]


def find_group(groups: Sequence[int], first: int) -> tuple[int, int]:
    """Return the row group that holds a part's record ``first``, and how many records lie before
    the group."""
    begins = np.cumsum([0, *groups])
    group = int(np.searchsorted(begins[1:], first, side="right"))
    return group, int(begins[group])


def _join_groups(groups: Sequence[int], begin: int) -> Iterator[list[int]]:
    """Row groups from ``begin`` on: one, or some that hold few records. A reader that stops has read
    none behind them."""
    run, held = list[int](), 0
    for group in range(begin, len(groups)):
        run.append(group)
        held += groups[group]
        if held >= FEW:
            yield run
            run, held = [], 0
    if run:
        yield run


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
    part: Part,
    most: int,
    at: int,
    numbers: Container[str],
    unread: Container[str] = (),
    coded: Container[str] | None = None,
    groups: Sequence[int] | None = None,
    first: int = 0,
) -> Iterator[Table]:
    """The records of one part, 1 .. ``most`` of them at a time; ``at``: how many lie before it.

    ``coded``: the only columns that are read, and text comes as ``CodedCells``. ``groups``: the
    records of every row group, of which those are read that hold the part's record ``first`` or
    later ones.
    """
    groups = count_groups(part) if groups is None else groups
    begin, before = find_group(groups, first)
    at += before
    with open_columns(part.path) as file:
        schema = file.schema_arrow
        own = column_names(list(schema.names))
        names = _all_names(own, part)
        read = [
            raw
            for raw, name, kind in zip(schema.names, own, schema.types, strict=True)
            if (name not in unread or has_cells(kind)) and (coded is None or name in coded)
        ]
        batches = chain.from_iterable(
            file.iter_batches(batch_size=most, row_groups=run, columns=read, use_threads=False)
            for run in _join_groups(groups, begin)
        )
        while (batch := _next(batches, part.path)) is not None:
            # a column within another may have the name of one that is read
            columns = [batch.column(batch.schema.names.index(raw)) for raw in read]
            cells = {
                name: cells_by_kind(name, column, name in numbers, coded is not None)
                for name, column in zip(column_names(read), columns, strict=True)
            }
            cells |= {
                name: _repeat(value, batch.num_rows, coded is not None)
                for name, value in part.keys
                if coded is None or name in coded
            }
            yield Table(names, cells, first=at)
            at += batch.num_rows


def _repeat(value: str, count: int, coded: bool) -> Cells:
    return CodedCells([value], np.zeros(count, np.int32)) if coded else [value] * count


def _all_names(own: tuple[str, ...], part: Part) -> tuple[str, ...]:
    """The names of a part's columns, those of its folders behind its own."""
    above = [name for name, _ in part.keys]
    twice = next((name for name in above if name in own or above.count(name) > 1), None)
    if twice is not None:
        raise InputError(
            "data folder",
            "must hold every column once, and has one in the names of folders that its parts, or "
            "other folders, have as well",
            twice,
            "rename the folders",
        )
    return (*own, *above)


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
        raise damage_error(path, f"must be a complete {_form_name(path)} file", error) from None


def same_columns(parts: list[Part]) -> dict[str, str]:
    """Names and types of the columns of all parts. Errors: parts that differ in them: 3 of one type
    and 3.00 of another are two categories, or two persons."""
    first, *others = parts
    types = column_types(first)
    different = next((part for part in others if column_types(part) != types), None)
    if different is not None:
        raise InputError(
            "data folder",
            "must hold parts with the same columns, of the same types",
            different.path.name,
            f"those of {first.path.name} are others",
        )
    return types


# Files of columns: Parquet, and Arrow's own form, which is Feather of version 2.


@contextmanager
def open_columns(path: Path) -> Generator[Any]:
    """The open file, of which only the footer is read: a ``ParquetFile``, or an ``ArrowFile``."""
    if path.suffix.lower() in ARROW:
        with ArrowFile(path) as file:
            yield file
        return
    parquet = _import_library(path).parquet
    try:
        with open_bytes(path) as start:
            if start.read(4) != b"PAR1":  # pyarrow looks at the end only
                raise damage_error(path, "must be a complete Parquet file, which starts with PAR1")
        # ParquetFile, and not read_table: the latter makes columns of folder names such as
        # year=2020
        file = parquet.ParquetFile(
            open_bytes(path) if is_remote(path) else path,
            page_checksum_verification=True,
            pre_buffer=False,
            buffer_size=2**16,
        )
    except InputError:
        raise
    except Exception as error:
        raise damage_error(path, "must be a complete Parquet file", error) from None
    with file:
        yield file


class ArrowFile:
    """An Arrow file, with what is used here of a ``ParquetFile``: one batch of it is held at a time.

    ``schema_arrow``: names and types of its columns.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._arrow = path, _import_library(path)
        with open_bytes(path) as start:
            begin = start.read(6)
        if begin[:4] == b"FEA1":
            raise InputError(
                "data file",
                "must be Feather of version 2",
                path.name,
                "write it again with version=2, or as Parquet",
            )
        if begin != b"ARROW1":
            raise damage_error(path, "must be a complete Arrow file, which starts with ARROW1")
        # a mapped file that is cut off meanwhile would end the process
        self._source = (
            self._arrow.PythonFile(open_bytes(path))
            if is_remote(path)
            else self._arrow.OSFile(str(path))
        )
        self.schema_arrow = self._open(None).schema

    def __enter__(self) -> ArrowFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._source.close()

    def count_groups(self) -> list[int]:
        """The records of every batch, of which the form alone is read, or one column."""
        return [batch.num_rows for batch in self._read_batches([0])]

    def iter_batches(
        self, *, batch_size: int, row_groups: list[int], columns: list[str], use_threads: bool
    ) -> Iterator[Any]:
        """The records of some batches and columns, 1 .. ``batch_size`` at a time."""
        names = self.schema_arrow.names
        for batch in self._read_batches([names.index(name) for name in columns], row_groups):
            for first in range(0, batch.num_rows, batch_size):
                yield batch.slice(first, batch_size)

    def _read_batches(self, fields: list[int], numbers: list[int] | None = None) -> Iterator[Any]:
        reader = self._open(fields if self.schema_arrow.names else None)
        every = range(reader.num_record_batches) if numbers is None else numbers
        try:
            yield from map(reader.get_batch, every)
        except Exception as error:
            raise damage_error(self._path, "must be a complete Arrow file", error) from None

    def _open(self, fields: list[int] | None) -> Any:
        """Its reader, of some columns; pyarrow raises errors of many kinds on damaged bytes."""
        ipc = self._arrow.ipc
        options = ipc.IpcReadOptions(included_fields=fields, use_threads=False)
        try:
            reader = ipc.open_file(self._source, options=options)
            reader.schema.names  # noqa: B018 decodes them
            return reader
        except Exception as error:
            raise damage_error(self._path, "must be a complete Arrow file", error) from None


def _form_name(path: Path) -> str:
    return "Arrow" if path.suffix.lower() in ARROW else "Parquet"


def _import_library(path: Path) -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError:
        raise InputError(
            "data file",
            f"in {_form_name(path)} needs pyarrow",
            path.name,
            "install it with: pip install lastiterate[parquet]",
        ) from None
    return pyarrow


def column_types(part: Part) -> dict[str, str]:
    """Names of the columns, and what the file's own schema calls their types; no cell is read."""
    with open_columns(part.path) as file:
        schema = file.schema_arrow
    own = column_names(list(schema.names))
    above = dict.fromkeys(_all_names(own, part)[len(own) :], "string")
    return dict(zip(own, map(str, schema.types), strict=True)) | above


def read_types(path: Path) -> dict[str, str]:
    """Names of the columns, and the kinds that the file's own schema states for what they hold; no
    cell is read."""
    first = parts_of(path)[0]
    with open_columns(first.path) as file:
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

    own = dict(zip(column_names(list(schema.names)), map(kind, schema.types), strict=True))
    index = dict.fromkeys(own.keys() & _index_columns(schema.metadata), "ignore")
    return own | index | {name: "category" for name, _ in first.keys}


def _index_columns(metadata: dict[bytes, bytes] | None) -> set[str]:
    """The columns that pandas' own entry of a file calls an index, which is no column of a frame."""
    try:
        listed = json.loads((metadata or {})[b"pandas"])["index_columns"]
        return {name for name in listed if isinstance(name, str)}
    except (KeyError, TypeError, ValueError, RecursionError):  # there is none, or it is damaged
        return set()


def read_stated_types(part: Part, unread: Container[str] = ()) -> dict[str, str]:
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

    with open_columns(part.path) as file:
        schema = file.schema_arrow
    names = column_names(list(schema.names))
    for name, kind in zip(names, schema.types, strict=True):
        if name not in unread:
            _check_type(name, kind)
    return dict(zip(names, map(name_type, schema.types), strict=True)) | {
        name: "text" for name, _ in part.keys
    }


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
