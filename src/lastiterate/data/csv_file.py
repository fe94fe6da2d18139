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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lastiterate.data.table import Table, column_names
from lastiterate.data.unpack import opened
from lastiterate.errors import InputError

STANDARD_INPUT = Path("-")
SEPARATORS = ",;\t|"
HEADERLESS = ("begin with a header of column names, and its first row holds a number",
              "name the columns in order with --columns NAME:KIND,..., which says that there is no header")


def read_csv(path: Path, names: Sequence[str] = (), without: str = "") -> Table:
    """Text cells by column; ``names``: the columns, in order, of a file without a header.

    ``without``: the name that is missing where records have one cell fewer, as new records have no target.

    A file that was cut off after a record, or in its last cell, looks like a shorter one.
    """
    with _text(path) as file:
        separator = _separator(file)
        rows = list(csv.reader(file, delimiter=separator, strict=True))
    while rows and not rows[-1]:
        del rows[-1]
    if names and rows and len(rows[0]) == len(names) - 1:
        names = [name for name in names if name != without]
    header = column_names(list(names)) if names else _header(rows[0] if rows else [], path)
    records = rows if names else rows[1:]
    if not records:
        raise InputError("data file", "must hold a header and at least one record", path.name)
    for number, row in enumerate(records, start=1):
        if len(row) != len(header):
            raise InputError("data file", f"needs {len(header)} cells in every record",
                             f"{len(row)} in record {number}", "the file may be cut off, or a line be empty")
    columns = zip(*records, strict=True)
    cells = {name: [cell.strip() for cell in column] for name, column in zip(header, columns, strict=True)}
    return Table(header, cells)


def read_header(path: Path) -> tuple[str, ...]:
    """The names in the first row; nothing else is looked at."""
    with _text(path) as file:
        separator = _separator(file)
        return _header(next(csv.reader(file, delimiter=separator, strict=True), []), path)


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
def _text(path: Path) -> Iterator[io.TextIOBase]:
    try:
        if path == STANDARD_INPUT:
            yield io.StringIO(sys.stdin.buffer.read().decode("utf-8-sig"), newline="")
            return
        with opened(path) as raw, io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as file:
            yield file
    except UnicodeDecodeError:
        raise InputError("data file", "must be UTF-8 text", path.name, "save it as UTF-8") from None
    except csv.Error as error:
        raise InputError("data file", "must be a CSV table", f"{path.name} ({error})", "it may be cut off") from None
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise InputError("data file", "must be a complete gzip file", path.name, "it may be damaged") from None
