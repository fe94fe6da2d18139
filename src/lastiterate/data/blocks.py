"""Tables of a file, one block of records after the other: what is held does not grow with the file.

Arrow parses a block of CSV where that gives the very cells that Python's reader gives, and Python's
reader parses it otherwise. Cells of text are coded: what a schema says of a text is found out once
for each block.
"""

# pyright: basic

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import islice, product
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from lastiterate import limits
from lastiterate.data import parquet
from lastiterate.data.columns import MISSING, Category, Date, Numeric, Words
from lastiterate.data.csv_files import (
    NEAR,
    STANDARD_INPUT,
    HeaderRule,
    Lines,
    WholeRecords,
    begin,
    open_text,
    read_csv,
    rows_of_lines,
    too_long,
)
from lastiterate.data.parquet import to_numbers
from lastiterate.data.readers import check_has_names, find_format, header_rule, read_table
from lastiterate.data.schema import Schema
from lastiterate.data.table import (
    Cells,
    CodedCells,
    NumberText,
    Table,
    column_names,
    explain_read_errors,
    number_text,
)
from lastiterate.errors import InputError
from lastiterate.remote_files import to_path

# JSON lines: UTF-8 text with one JSON object per line, whose keys are the names of columns.
#
# null, and a key that a record does not have, is a missing cell. A key that the schema does not
# describe is refused as in every table.

# Arrow has no types, and what JSON holds is checked here


ENDS = (".jsonl", ".ndjson")
LINES_BY_PYTHON = 256
"""Records at the beginning that say which columns there are."""
SMALL = 2**17
"""Bytes that are not worth the import of Arrow."""
SURROGATES = (b"\\ud", b"\\uD")
"""How a text may hold half a character, which Arrow has not."""


def is_json_lines(path: Path) -> bool:
    """Whether a file has JSON lines, by its name."""
    return path.name.lower().removesuffix(".gz").endswith(ENDS)


class JsonRecords:
    """The records of a file, block after block.

    ``wanted``: columns that are read; ``numbers``: those of them that may come as float64.
    """

    def __init__(
        self, path: Path, schema: Schema, wanted: Collection[str], numbers: Collection[str]
    ) -> None:
        self._path, self._schema, self._wanted, self._numbers = path, schema, wanted, numbers
        self._at, self._seen, self._by_arrow = 0, dict[str, None](), True
        self._absent = [column.name for column in schema.columns if _may_be_missing(column)]

    def tables(self, blocks: Iterator[bytes]) -> Iterator[Table]:
        """Tables of the records of every block of whole lines."""
        for block in blocks:
            block.decode()  # refuses what is no UTF-8
            for part in self._parts(block):
                table = self._parse(part) or self._read_lines(part.split(b"\n"))
                if len(table):
                    yield table
                self._at += len(table)
        if not self._at:
            raise InputError("data file", "must hold at least one record", self._path.name)

    def _parts(self, block: bytes) -> list[bytes]:
        """The block; the first one in two parts, of which the former says what columns there are."""
        if self._at:
            return [block]
        lines = block.split(b"\n", LINES_BY_PYTHON)
        return [b"\n".join(lines[:LINES_BY_PYTHON]), *lines[LINES_BY_PYTHON:]]

    def _parse(self, block: bytes) -> Table | None:
        """The table of a block by Arrow; ``None`` where Python has to look at it."""
        if not self._at or not self._by_arrow or len(block) < SMALL:
            return None
        if any(half in block for half in SURROGATES):
            return None
        try:
            import pyarrow
            from pyarrow import json as arrow
        except ImportError:
            self._by_arrow = False
            return None
        names = [name for name in self._seen if name in self._wanted]
        kinds = [(name, "float64" if name in self._numbers else "string") for name in names]
        try:
            read = arrow.read_json(
                pyarrow.BufferReader(block),
                read_options=arrow.ReadOptions(block_size=len(block) + 1),
                parse_options=arrow.ParseOptions(explicit_schema=pyarrow.schema(kinds)),
            )
        except pyarrow.ArrowException:
            self._by_arrow = False
            return None
        if any(name not in self._seen for name in read.schema.names):
            return None
        cells: dict[str, Cells] = {
            name: _column_cells(read.column(name), name in self._numbers) for name in names
        }
        return self._table(cells, read.num_rows)

    def _read_lines(self, lines: list[bytes]) -> Table:
        """The table of some lines by Python's own parser."""
        records: list[dict[str, Any]] = []
        for line in lines:
            if line.strip():
                records.append(self._read_line(line, self._at + len(records) + 1))
        self._seen |= dict.fromkeys(name for record in records for name in record)
        cells: dict[str, Cells] = {
            name: [
                self._text(name, record.get(name), number)
                for number, record in enumerate(records, self._at + 1)
            ]
            for name in self._seen
            if name in self._wanted
        }
        return self._table(cells, len(records))

    def _read_line(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            record = json.loads(line, object_pairs_hook=_once)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            raise InputError(
                "data file",
                "must hold one JSON object in every line, with every key once, and does not in "
                f"record {number}",
                None,
                "the file may be cut off, or hold one list: write one object in each line",
            )
        return record

    def _text(self, name: str, value: object, number: int) -> str:
        if isinstance(value, dict | list):
            raise InputError(
                f"column {name!r}",
                f"must hold numbers, text, true, false or null, and does not in record {number}",
                None,
                "spread a list over columns of its own, write other values as text",
            )
        if isinstance(value, float):
            return NumberText(number_text(value))
        if type(value) is int:
            return NumberText(value)
        return "" if value is None else str(value).strip()

    def _table(self, cells: dict[str, Cells], count: int) -> Table:
        """A table with the cells, and without a value where a column may miss one."""
        absent: dict[str, Cells] = {
            name: [""] * count for name in self._absent if name not in cells
        }
        return Table(
            column_names(list(self._seen | dict.fromkeys(absent))), cells | absent, first=self._at
        )


def _may_be_missing(column: object) -> bool:
    """Whether a record may lack a column; of others a record without it is refused."""
    return isinstance(column, Words) or (
        isinstance(column, Numeric | Category | Date) and column.missing != "refuse"
    )


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys stand there once."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands there twice")
    return found


def _column_cells(column: Any, number: bool) -> Cells:
    if number:
        return to_numbers(column, math.nan)
    coded = column.combine_chunks().dictionary_encode()
    coded = coded.combine_chunks() if hasattr(coded, "combine_chunks") else coded
    texts = [text.strip() for text in coded.dictionary.to_pylist()]
    return CodedCells([*texts, ""], to_numbers(coded.indices.cast("int64"), len(texts)))


BLOCK = 2**22
"""Bytes of text that are held at once, about."""
RECORDS = 2**15
"""Records of a Parquet file that are held at once."""
JSON = "jsonl"
Records = TypeVar("Records", Table, range)
"""Records of a block, or as many numbers."""


def read_blocks(
    path: str | Path,
    schema: Schema,
    *,
    copied: Collection[str] = (),
    header: bool | None = None,
    form: str = "csv",
) -> Iterator[Table]:
    """The table in a file as ``read_table`` reads it, some of its records after the others.

    ``copied``: columns that are wanted in addition to those that make rows, as text. ``form``: what
    standard input holds, "csv" or "jsonl". Arrays come whole, in one table.
    """
    path = to_path(path)
    wanted = {column.name for column in schema.columns if column.fields} | set(copied)
    numbers = schema.numbers & wanted
    written = numbers - set(copied) if schema.decimal == "." else frozenset[str]()
    with explain_read_errors(path):
        if (is_json_lines(path) and path.is_file()) or (path == STANDARD_INPUT and form == JSON):
            check_has_names(schema, path)
            with open_text(path) as raw:
                records = JsonRecords(path, schema, wanted, written)
                yield from records.tables(iter(_Blocks(raw).read, b""))
            return
        kind = find_format(path)
        if kind.read is read_csv:
            with open_csv(path, header_rule(schema, header)) as table:
                yield from table.read(wanted, written)
        elif kind.read is parquet.read_parquet:
            check_has_names(schema, path)
            yield from parquet.read_blocks(path, RECORDS, numbers, schema.unread, wanted)
        else:
            yield read_table(path, schema, header)


class _Blocks:
    """The bytes of a text in blocks of whole lines; the last line of a file may have no end."""

    def __init__(self, raw: Any) -> None:
        self._raw, self._rest, self._begun = raw, b"", False

    def read(self) -> bytes:
        """The next block, empty at the end of the text."""
        block = self._rest
        while True:
            more = self._raw.read(BLOCK)
            block += more
            if not self._begun:
                self._begun, block = True, block.removeprefix(b"\xef\xbb\xbf")
            # the end of a line that a carriage return alone ends is seen by what stands behind it
            end = block.rfind(b"\n") + 1 or block.rfind(b"\r", 0, len(block) - 1) + 1
            if end or not more:
                end = end if more else len(block)
                self._rest = block[end:]
                return block[:end]
            if len(block) > 4 * limits.RECORD:  # bytes of as many characters
                raise too_long()


class _Text:
    """The lines of blocks, as Python's reader of CSV takes them."""

    def __init__(self, blocks: _Blocks) -> None:
        self._blocks, self._text, self._length = blocks, io.StringIO(), 0

    def open(self, block: bytes) -> None:
        """Read the lines of this block next."""
        text = block.decode()
        self._text, self._length = io.StringIO(text, newline=""), len(text)

    def readline(self, size: int, /) -> str:
        """The next line, of the next block where this one has none left."""
        line = self._text.readline(size)
        if not line and (block := self._blocks.read()):
            self.open(block)
            return self._text.readline(size)
        return line

    @property
    def at_end(self) -> bool:
        """Whether the open block has no line left."""
        return self._text.tell() >= self._length

    def take_rest(self) -> bytes:
        """The rest of the open block, and the next block where there is none."""
        return self._text.read().encode() or self._blocks.read()


@contextmanager
def open_csv(path: Path, rule: HeaderRule) -> Generator[CsvBlocks]:
    """A CSV file of which the header is read; ``rule``: what is known about its first row."""
    with open_text(path) as raw:
        yield CsvBlocks(_Blocks(raw), path, rule)


class CsvBlocks:
    """A table of text that is read block by block, once.

    ``names``: of its columns.
    """

    def __init__(self, blocks: _Blocks, path: Path, rule: HeaderRule) -> None:
        self._blocks, self._text, self._path = blocks, _Text(blocks), path
        lines = Lines(self._text)
        begun, self._separator = begin(lines, path)
        rows = rows_of_lines(lines, begun, self._separator)
        first = next(rows, list[str]())
        near = list(islice(rows, NEAR))
        self.names, named = rule.read(first, near, path)
        self._records = WholeRecords(len(self.names))
        self._head = [*([first] if first and not named else []), *near]
        self._odd = set[str]()
        """Columns of numbers with cells that Arrow does not read as numbers."""

    def read(self, wanted: Collection[str], numbers: Collection[str]) -> Iterator[Table]:
        """Tables of the ``wanted`` columns; ``numbers``: those that may come as float64."""
        return self._read_blocks(
            lambda block, at: self._parse(block, wanted, numbers, at),
            lambda rows, at: self._make_table(rows, wanted, at),
        )

    def count(self) -> int:
        """How many records there are. Errors: those of ``read``, of which none follows from what a
        cell holds."""
        counted = self._read_blocks(
            lambda block, _: self._count(block), lambda rows, _: range(len(rows))
        )
        return sum(map(len, counted))

    def _read_blocks(
        self,
        parse: Callable[[bytes, int], Records | None],
        make: Callable[[list[list[str]], int], Records],
    ) -> Iterator[Records]:
        """What ``parse`` makes of every block and the number of records before it, or else
        ``make`` of its rows."""
        at = 0
        part = make(list(self._records.check(self._head)), at)
        block = self._text.take_rest()
        while True:
            if len(part):
                yield part
            at += len(part)
            if not block:
                break
            parsed = None if self._records.empty else parse(block, at)
            if parsed is None:
                part = make(list(self._records.check(self._read_rows(block))), at)
            else:
                self._records.number += len(parsed)
                part = parsed
            block = self._blocks.read()
        if not at:
            raise InputError(
                "data file", "must hold a header and at least one record", self._path.name
            )

    def _make_table(self, rows: list[list[str]], wanted: Collection[str], at: int) -> Table:
        columns = zip(*rows, strict=True) if rows else [()] * len(self.names)
        cells: dict[str, Cells] = {
            name: [cell.strip() for cell in column]
            for name, column in zip(self.names, columns, strict=True)
            if name in wanted
        }
        return Table(self.names, cells, first=at)

    def _read_rows(self, block: bytes) -> Iterator[list[str]]:
        """The rows that begin in a block, by Python's reader."""
        self._text.open(block)
        lines = Lines(self._text)
        for row in csv.reader(lines, delimiter=self._separator, strict=True):
            lines.taken = 0
            yield row
            if self._text.at_end:
                return

    def _parse(
        self, block: bytes, wanted: Collection[str], numbers: Collection[str], at: int
    ) -> Table | None:
        """The table of a block by Arrow; ``None`` where it may read other cells than Python does."""
        names = [name for name in self.names if name in wanted]
        if not names or not self._is_plain(block):
            return None
        given = [name for name in names if name in numbers and name not in self._odd]
        read = self._read_columns(block, names, given)
        if read is None:
            if self._read_columns(block, names, []) is None:
                return None
            self._odd.update(
                name for name in given if self._read_columns(block, [name], [name]) is None
            )
            return self._parse(block, wanted, numbers, at)
        cells = {name: _cells_of(read.column(name), name in given) for name in names}
        odd = [name for name, column in cells.items() if column is None]
        if odd:
            self._odd.update(odd)
            return self._parse(block, wanted, numbers, at)
        return Table(self.names, {k: v for k, v in cells.items() if v is not None}, first=at)

    def _count(self, block: bytes) -> range | None:
        """A range as long as the records of a block; ``None`` as in ``_parse``."""
        if not self._is_plain(block):
            return None
        read = self._read_columns(block, [self.names[0]], [], text="binary")
        return None if read is None else range(len(read))

    def _is_plain(self, block: bytes) -> bool:
        """Whether Arrow reads the cells of a block as Python does: they follow from its separators
        and ends of lines alone, or from quotation marks that each begin or end a whole cell."""
        if not SMALL <= len(block) <= limits.CELL or not _has_arrow():
            return False
        block.decode()  # refuses what is no UTF-8
        odd_ends = b"\r" in block and block.count(b"\r") != block.count(b"\r\n")
        empty = block.startswith((b"\n", b"\r\n")) or b"\n\n" in block or b"\n\r\n" in block
        if odd_ends or empty or b"\0" in block:
            return False
        if b'"' not in block:
            return True
        letters = np.frombuffer(b"\n" + block + b"\n", np.uint8)
        marks = np.flatnonzero(letters == ord('"'))
        ends = np.frombuffer(f"{self._separator}\r\n".encode(), np.uint8)
        return (
            len(marks) % 2 == 0
            and bool(np.isin(letters[marks[::2] - 1], ends).all())
            and bool(np.isin(letters[marks[1::2] + 1], ends).all())
        )

    def _read_columns(
        self, block: bytes, names: list[str], numbers: list[str], text: Any = None
    ) -> Any:
        """Columns of a block; ``None`` where one of the ``numbers`` has another cell, or a record
        another number of cells. ``text``: the type of Arrow of the others."""
        import pyarrow
        from pyarrow import csv as arrow

        text = text or pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
        kinds = {name: pyarrow.float64() if name in numbers else text for name in names}
        try:
            return arrow.read_csv(
                pyarrow.BufferReader(block),
                arrow.ReadOptions(column_names=list(self.names), block_size=len(block) + 1),
                arrow.ParseOptions(
                    delimiter=self._separator,
                    quote_char='"' if b'"' in block else False,
                    newlines_in_values=b'"' in block,
                ),
                arrow.ConvertOptions(
                    column_types=kinds, include_columns=names, null_values=_marks()
                ),
            )
        except pyarrow.ArrowException:
            return None


def _has_arrow() -> bool:
    """Whether pyarrow reads CSV here."""
    try:
        import pyarrow.csv  # noqa: F401
    except ImportError:
        return False
    return True


@cache
def _marks() -> list[str]:
    """Cells that are missing numbers, in every case of their letters."""
    return sorted(
        {"".join(one) for text in MISSING for one in product(*((c, c.upper()) for c in text))}
    )


def _cells_of(column: Any, number: bool) -> Cells | None:
    """The cells of a column of a block; ``None`` where a number is not finite, and Python has to
    look at its text."""
    if number:
        values = parquet.to_numbers(column, math.nan)
        return None if np.count_nonzero(~np.isfinite(values)) != column.null_count else values
    coded = column.combine_chunks()
    coded = coded.combine_chunks() if hasattr(coded, "combine_chunks") else coded
    texts = [text.strip() for text in coded.dictionary.to_pylist()]
    return CodedCells(texts, np.from_dlpack(coded.indices))
