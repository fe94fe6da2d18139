"""Records in public order, as often as a run asks for them: from files or a function."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast, final

import numpy as np

from lastiterate.data.binary_files import is_idx
from lastiterate.data.blocks import open_csv
from lastiterate.data.csv_files import STANDARD_INPUT, HeaderRule, is_text_table, read_csv
from lastiterate.data.encoding import encode, encode_tables, find_faults, form_of
from lastiterate.data.file_stream import (
    ArrayFile,
    FileSnapshot,
    ParquetParts,
    Stream,
    Wanted,
    open_idx,
    open_npy,
    split_tables,
)
from lastiterate.data.parquet import is_columns, is_parts, read_parquet
from lastiterate.data.readers import (
    check_has_names,
    find_format,
    header_rule,
    read_table,
    refuse_missing,
)
from lastiterate.data.schema import Schema, read_schema
from lastiterate.data.table import Table, explain_read_errors
from lastiterate.errors import InputError
from lastiterate.features.column_maps import SLICE, RowForm
from lastiterate.remote_files import is_remote, to_path
from lastiterate.run.validation import check_integer

# CSV files, parsed block by block.


class TextFile(Stream):
    """A CSV file; it is read once to count its records, and every reading parses it again, block by
    block."""

    dear = True

    def __init__(self, path: Path, rule: HeaderRule = HeaderRule()) -> None:  # noqa: B008
        if path == STANDARD_INPUT:
            raise InputError(
                "data file",
                "must be a file to be read piece by piece",
                "-",
                "write it to a file first",
            )
        self._path, self._rule, self.watched = path, rule, FileSnapshot.of(path)
        with open_csv(path, rule) as table:
            self.names, self._n = table.names, table.count()

    def __len__(self) -> int:
        return self._n

    def _tables(self, most: int, first: int, wanted: Wanted) -> Iterator[Table]:
        numbers = wanted.numbers if wanted.point else frozenset[str]()
        with open_csv(self._path, self._rule) as table:
            yield from split_tables(table.read(wanted.names, numbers), most, first)


# Records in public order, as often as a run asks for them: from files, or made by a function.

Piece = tuple[np.ndarray, ...]
ARRAY = 12.0
"""Bytes of memory for a number of an array, which is scaled and arranged in single precision."""
CELLS = 2**20
"""Cells of text that are parsed at once, about."""
MAPPED = 2**24
"""Bytes of rows that are made at once, about, where fewer are asked for: each table costs some time."""
AT_ONCE = 2**15
"""Records that become rows at once, where all of them do."""


def iterate_used(stream: Stream, schema: Schema, most: int, first: int = 0) -> Iterator[Table]:
    """Records from number ``first`` on, 1 .. ``most`` at a time: the columns that make rows, and
    targets."""
    used = {column.name for column in schema.columns if column.fields} | {schema.target}
    if stream.shape is None:
        most = min(most, max(1, CELLS // len(stream.names)))
    wanted = Wanted(frozenset(used), schema.numbers, schema.decimal == ".")
    return stream.tables(most, first, wanted)


def find_faults_of(stream: Stream, schema: Schema) -> list[InputError]:
    """The first refusal of each column and of the target; none where ``encode`` takes all."""
    return find_faults(iterate_used(stream, schema, AT_ONCE), schema)


@final
@dataclass(frozen=True)
class EncodedSource:
    """A file through its schema: rows (m, d) float32, and targets, (m,)."""

    stream: Stream
    schema: Schema

    def __post_init__(self) -> None:
        self.form  # noqa: B018 refuses

    @property
    def dear(self) -> bool:
        return self.stream.dear

    def __len__(self) -> int:
        return len(self.stream)

    @property
    def form(self) -> RowForm:
        """How records become rows."""
        return form_of(self.stream.head, self.schema)

    @cached_property
    def first(self) -> Piece:
        """The first record, whose form is looked at again and again."""
        with closing(self.pieces(1)) as pieces:
            return next(pieces)

    def pieces(self, most: int, first: int = 0) -> Generator[Piece]:
        """Records from number ``first`` on, 1 .. ``most`` of them at a time."""
        once = most
        if most > 1 and self.stream.shape is None:  # of one record somebody looks at the form
            once = max(most, min(SLICE, MAPPED // (4 * self.form.width)))
        for table in self.tables(once, first):
            rows, target = encode(table, self.schema)
            for begin in range(0, len(rows), most):
                yield rows[begin : begin + most], target[begin : begin + most]

    def find_start(self, first: int) -> int:
        """Return the record at which reading has to begin for record number ``first``."""
        return self.stream.find_start(first)

    @property
    def file_identity(self) -> str:
        """As that of ``FileSnapshot``."""
        return self.stream.watched.file_identity

    def tables(self, most: int, first: int = 0) -> Iterator[Table]:
        """The same before they become rows."""
        return iterate_used(self.stream, self.schema, most, first)

    def read_whole(self, *, public: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """All records at once, to the last bit as ``encode`` gives them for the whole table, or
        ``encode_public`` where they are ``public``."""
        return encode_tables(self.tables(AT_ONCE), self.schema, len(self), public=public)

    def check(self) -> None:
        """Refuse files that changed since they were found."""
        self.stream.watched.check()

    def fingerprint(self) -> Iterator[np.ndarray]:
        """The bytes of the files, and the schema."""
        yield from self.stream.watched.fingerprint()
        yield np.frombuffer(json.dumps(self.schema.to_dict(), sort_keys=True).encode(), np.uint8)


@final
@dataclass(frozen=True)
class ArraySource:
    """Arrays in files as they are: records (m, ...), and labels (m,) where the files have them."""

    file: ArrayFile
    dear = False

    def __len__(self) -> int:
        return len(self.file)

    def pieces(self, most: int, first: int = 0) -> Iterator[Piece]:
        """Records from number ``first`` on, 1 .. ``most`` of them at a time."""
        self.file.watched.check()
        for features, labels in self.file.arrays(most, first):
            yield (features,) if labels is None else (features, labels)
        self.file.watched.check()

    def check(self) -> None:
        """Refuse files that changed since they were found."""
        self.file.watched.check()

    @property
    def file_identity(self) -> str:
        """As that of ``FileSnapshot``."""
        return self.file.watched.file_identity

    def fingerprint(self) -> Iterator[np.ndarray]:
        """The bytes of the files."""
        return self.file.watched.fingerprint()


@final
@dataclass(frozen=True)
class Generated:
    """``n`` records that ``make(first, count)`` gives, a tuple of arrays with ``count`` records
    along their first axis.

    ``make`` is a function of its arguments alone: a run that reads records again reads the same
    ones. ``dear``: whether it takes long, so that a run that reads them several times keeps them in
    an encrypted scratch file.
    """

    n: int
    make: Callable[[int, int], Any]
    dear: bool = False

    def __post_init__(self) -> None:
        check_integer("n", self.n)
        if not callable(self.make):
            raise InputError(
                "make",
                "must be a function of the first record's number and how many are wanted",
                type(self.make).__name__,
            )

    def __len__(self) -> int:
        return self.n

    def pieces(self, most: int, first: int = 0) -> Iterator[Piece]:
        """Records from number ``first`` on, 1 .. ``most`` of them at a time."""
        for begin in range(first, self.n, most):
            count = min(most, self.n - begin)
            made = self.make(begin, count)
            if not isinstance(made, tuple):
                raise InputError(
                    "make", f"must return a tuple of arrays of {count} records", type(made).__name__
                )
            piece: Piece = tuple(np.asarray(part) for part in cast("tuple[Any, ...]", made))
            if any(part.shape[:1] != (count,) for part in piece) or not piece:
                raise InputError(
                    "make",
                    f"must return a tuple of arrays of {count} records",
                    tuple(part.shape for part in piece),
                )
            yield piece

    def fingerprint(self) -> Iterator[np.ndarray]:
        """All records."""
        for piece in self.pieces(2**16):
            yield from piece


def stream(path: str | Path, schema: object = None) -> EncodedSource | ArraySource:
    """The records of a file, read piece by piece: .npy, IDX, CSV, Parquet, Arrow, or a folder of Parquet
    parts; tables also by an address in a store, ``s3://BUCKET/NAME.parquet``.

    ``schema``: public facts of its columns (a Schema, its dictionary, or the path of its TOML
    file), which scale features to [-1, 1]; without one an array's records are as they are in the
    file. Only headers are looked at, and the records of a CSV file are counted.
    """
    if not isinstance(path, str | Path):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(
            "path",
            "must be a file, or a folder of Parquet files",
            type(path).__name__,
            "arrays in memory need no stream: give train the tuple itself",
        )
    facts = None if schema is None else read_schema(schema)
    source = open_stream(path, facts)
    if facts is not None:
        return EncodedSource(source, facts)
    if not isinstance(source, ArrayFile):
        raise InputError(
            "schema",
            "is needed: the public ranges, categories and classes of the columns",
            None,
            f"write one to fill in with: lastiterate schema {path}",
        )
    return ArraySource(source)


def open_stream(path: str | Path, schema: Schema | None = None) -> Stream:
    """The file as it is read piece by piece. Errors: a kind of file that cannot be."""
    path = to_path(path)
    if not path.exists():
        raise refuse_missing(path)
    if is_remote(path):
        find_format(path)  # refuses arrays
    with explain_read_errors(path):
        if is_columns(path):
            return ParquetParts(path, frozenset() if schema is None else schema.unread)
        if is_text_table(path):
            return TextFile(path, header_rule(schema))
        if path.suffix.lower() == ".npy":
            return open_npy(path)
        if path.is_file() and is_idx(path):
            return open_idx(path)
    raise InputError(
        "data file",
        "cannot be read piece by piece",
        path.name,
        "write it as .npy, IDX, .csv, .parquet or .arrow (or a folder of .parquet files)",
    )


def open_table(path: str | Path, schema: Schema) -> Table | Stream:
    """The table of a file: what reads it block by block where it is CSV or Parquet, or else the
    table itself, as ``read_table`` reads it."""
    path = to_path(path)
    kind = find_format(path)
    if path == STANDARD_INPUT or kind.read not in (read_csv, read_parquet):
        return read_table(path, schema)
    if kind.read is read_parquet:
        check_has_names(schema, path)
    return open_stream(path, schema)


def is_table(path: str | Path) -> bool:
    """Whether a file that is read piece by piece is a table, by its name."""
    path = to_path(path)
    return is_text_table(path) or is_columns(path)


def estimate_memory(path: str | Path) -> float:
    """Bytes of memory, about, that the values of an array file take as a whole, from its header."""
    source = open_stream(path)
    return len(source) * len(source.names) * ARRAY


def streams(path: str | Path) -> bool:
    """Whether a file is of a kind that can be read piece by piece."""
    path = to_path(path)
    if not path.is_file():
        return is_parts(path)
    return is_table(path) or path.name.lower().endswith(".npy") or is_idx(path)
