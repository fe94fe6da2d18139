"""CSV: UTF-8 text, one record per line, as many cells in each as in the header; gzip and standard input as well.

The cells are separated by what separates the names in the header: a comma, semicolon, tab or bar. A file without a
header is read only with the names of its columns, so that no record is ever taken for names.
"""

from __future__ import annotations

import csv
import gzip
import io
import sys
import zlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

from lastiterate import limits
from lastiterate.data.table import Cells, Table, column_names, not_in_memory
from lastiterate.data.unpack import most_unpacked, opened, refuse_beyond
from lastiterate.errors import InputError

STANDARD_INPUT = Path("-")
SEPARATORS = ",;\t|"
HEADERLESS = ("begin with a header of column names, and its first row holds a number",
              "or a schema must name the columns: schema_template(file, header=False, columns=NAME:KIND,...) makes one")


def read_csv(path: Path, names: Sequence[str] = (), without: str = "") -> Table:
    """Text cells by column; ``names``: the columns, in order, of a file without a header.

    ``without``: the name that is missing where records have one cell fewer, as new records have no target.

    A file that was cut off after a record, or in its last cell, looks like a shorter one.
    """
    with records_of(path, names, without) as (header, records):
        columns = list(zip(*_fitting(records, path), strict=True))
    if not columns:
        raise InputError("data file", "must hold a header and at least one record", path.name)
    cells: dict[str, Cells] = {name: [cell.strip() for cell in column]
                               for name, column in zip(header, columns, strict=True)}
    return Table(header, cells)


@contextmanager
def records_of(path: Path, names: Sequence[str] = (), without: str = "") -> Generator[
        tuple[tuple[str, ...], Iterator[list[str]]]]:
    """The names of the columns, and the records one after the other, each with as many cells; see ``read_csv``."""
    with _text(path) as file:
        rows = _rows(file)
        first = next(rows, list[str]())
        if names and len(first) == len(names) - 1:
            names = [name for name in names if name != without]
        header = column_names(list(names)) if names else _header(first, path)
        yield header, _whole(chain([first], rows) if names and first else rows, len(header))


def _fitting(records: Iterator[list[str]], path: Path) -> Iterator[list[str]]:
    """The records, refused where their lists alone take more than all memory, as millions of empty cells would."""
    most, taken = limits.memory(), 0
    for record in records:
        taken += limits.LEAST * (len(record) + 4)  # a list takes as much as four of its cells
        if taken > most:
            raise not_in_memory(path)
        yield record


def _whole(rows: Iterable[list[str]], width: int) -> Iterator[list[str]]:
    """Records of ``width`` cells; empty lines are allowed behind the last one."""
    empty = 0
    for number, row in enumerate(rows, start=1):
        if not row:
            empty += 1
            continue
        if not empty and len(row) > width:
            raise InputError("data file", f"needs {width} cells in every record", f"{len(row)} in record {number}",
                             "a cell with a separator in it needs quotation marks, such as \"1,000\"")
        if empty or len(row) != width:
            raise InputError("data file", f"needs {width} cells in every record",
                             f"0 in record {number - empty}" if empty else f"{len(row)} in record {number}",
                             "the file may be cut off, or a line be empty")
        yield row


def read_header(path: Path) -> tuple[str, ...]:
    """The names in the first row; nothing else is looked at."""
    with _text(path) as file:
        return _header(next(_rows(file), list[str]()), path)


def _header(row: list[str], path: Path) -> tuple[str, ...]:
    if not row:
        raise InputError("data file", "must hold a header and at least one record", path.name)
    if any(_is_number(cell) for cell in row):
        raise InputError("data file", f"must {HEADERLESS[0]}", path.name, HEADERLESS[1])
    return column_names(row)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _rows(file: io.TextIOBase) -> Iterator[list[str]]:
    """The cells of each record; what separates the names in the first line, the one that stands there most often, does
    in all others."""
    lines = _Lines(file)
    first = next(lines, "")
    separator = max(SEPARATORS, key=first.count)
    for row in csv.reader(chain([first], lines) if first else lines, delimiter=separator, strict=True):
        lines.taken = 0
        yield row


class _Lines:
    """The lines of a file, refused where the record that they belong to is too long; the reader of records starts the
    count again, and a cell may hold ends of lines."""

    def __init__(self, file: io.TextIOBase) -> None:
        self._file, self.taken = file, 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._file.readline(limits.RECORD + 1)
        if not line:
            raise StopIteration
        self.taken += len(line)
        if self.taken > limits.RECORD:
            raise InputError("data file", f"must have at most {limits.RECORD:,} characters in a record", None,
                             "a quotation mark may be missing")
        return line


@contextmanager
def _text(path: Path) -> Generator[io.TextIOBase]:
    # a text may be longer than the 131,072 characters that Python takes; of the whole process: never lowered
    csv.field_size_limit(max(limits.CELL, csv.field_size_limit()))
    try:
        if path == STANDARD_INPUT:
            content = sys.stdin.buffer.read(most_unpacked() + 1)
            refuse_beyond(len(content), path)
            yield io.StringIO(content.decode("utf-8-sig"), newline="")
            return
        with opened(path) as raw, io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as file:
            yield file
    except UnicodeDecodeError:
        raise InputError("data file", "must be UTF-8 text", path.name, "save it as UTF-8") from None
    except csv.Error as error:
        raise InputError("data file", "must be a CSV table", f"{path.name} ({error})",
                         "it may be cut off, or a quotation mark be missing") from None
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise InputError("data file", "must be a complete gzip file", path.name, "it may be damaged") from None
