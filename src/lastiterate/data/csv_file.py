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

from lastiterate.data.table import Cells, Table, column_names
from lastiterate.data.unpack import opened
from lastiterate.errors import InputError

STANDARD_INPUT = Path("-")
SEPARATORS = ",;\t|"
LONGEST = 2**24
"""Characters of a cell, at most: a text may be longer than the 131,072 that Python's reader takes of itself."""
HEADERLESS = ("begin with a header of column names, and its first row holds a number",
              "or a schema must name the columns: schema_template(file, header=False, columns=NAME:KIND,...) makes one")


def read_csv(path: Path, names: Sequence[str] = (), without: str = "") -> Table:
    """Text cells by column; ``names``: the columns, in order, of a file without a header.

    ``without``: the name that is missing where records have one cell fewer, as new records have no target.

    A file that was cut off after a record, or in its last cell, looks like a shorter one.
    """
    with records_of(path, names, without) as (header, records):
        columns = list(zip(*records, strict=True))
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
        separator = _separator(file)
        rows = csv.reader(file, delimiter=separator, strict=True)
        first = next(rows, list[str]())
        if names and len(first) == len(names) - 1:
            names = [name for name in names if name != without]
        header = column_names(list(names)) if names else _header(first, path)
        yield header, _whole(chain([first], rows) if names and first else rows, len(header))


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
        separator = _separator(file)
        return _header(next(csv.reader(file, delimiter=separator, strict=True), list[str]()), path)


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


def _separator(file: io.TextIOBase) -> str:
    """What separates the names in the first line: the one that stands there most often."""
    line = file.readline()
    file.seek(0)
    return max(SEPARATORS, key=line.count)


@contextmanager
def _text(path: Path) -> Generator[io.TextIOBase]:
    csv.field_size_limit(max(LONGEST, csv.field_size_limit()))  # of the whole process: never lowered
    try:
        if path == STANDARD_INPUT:
            yield io.StringIO(sys.stdin.buffer.read().decode("utf-8-sig"), newline="")
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
