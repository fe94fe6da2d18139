"""CSV: UTF-8 text, one record per line, as many cells in each as in the header; gzip and standard
input as well.

The cells are separated by what separates the names in the header: a comma, semicolon, tab or bar.
A .tsv file has tabs, and a first line ``sep=;`` names the separator. Lines that begin with # above
the header are comments where they have another number of cells.
The first row is a header if it names the columns of a schema. Without a schema it is one only if it
cannot be a record; otherwise somebody has to say what it is, so that no record is ever taken for
names.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import sys
import zlib
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Protocol

from lastiterate import limits
from lastiterate.data.cell_values import is_written_otherwise
from lastiterate.data.columns import MISSING, day_number
from lastiterate.data.table import (
    Cells,
    Table,
    check_header,
    column_names,
    is_number,
    misses,
    not_in_memory,
)
from lastiterate.errors import InputError
from lastiterate.limits import LimitedInput, open_unpacked

STANDARD_INPUT = Path("-")
SEPARATORS = ",;\t|"
TABBED = (".tsv", ".tab")
NAMED = (".csv", *TABBED)
STATED = re.compile(r'"?sep=(.)"?')
"""How spreadsheets state the separator in a line of its own."""
NEAR = 256
"""Records behind the first row that are compared with it."""
SAY = (
    "say header=True if it names the columns; for a file without a header schema_template(file, "
    "header=False, "
    "columns=NAME:KIND,...) makes a schema"
)


def is_text_table(path: Path) -> bool:
    """Whether a file is a table of text, by its name; "-" is standard input."""
    return path == STANDARD_INPUT or path.name.lower().removesuffix(".gz").endswith(NAMED)


@dataclass(frozen=True)
class HeaderRule:
    """What is publicly known about the first row of a file.

    ``stated``: whether it is a header, where somebody says so. ``names``: the columns, in order, of
    a file without a header. ``described``: the columns that a schema describes, and ``needed``:
    those of them that a header must name. ``target``: the column that is missing where records have
    one cell fewer, as new records have no target.
    """

    stated: bool | None = None
    names: tuple[str, ...] = ()
    described: frozenset[str] = frozenset()
    needed: tuple[str, ...] = ()
    target: str = ""

    def read(
        self, first: list[str], near: list[list[str]], path: Path
    ) -> tuple[tuple[str, ...], bool]:
        """Return the names of the columns, and whether the first row is a header; ``near``: the
        records behind it.

        Errors: a first row that may be either. Its cells are never shown: they may be those of a
        record.
        """
        cells = [cell.strip() for cell in first]
        if not cells and (not self.names or not near):
            raise InputError("data file", "must hold a header and at least one record", path.name)
        if self.names:
            return self._with_names(cells, path)
        if self.stated is False:
            raise InputError(
                "header",
                "must be the names of the columns, in order, where a file has none",
                None,
                f"write header = [NAME, NAME, ...] into the schema; {SAY}",
            )
        if self.described:
            return self._match_names(cells, near, path), True
        if self.stated is None:
            _check_no_record(cells, near, path)
        return column_names(cells), True

    def _match_names(self, cells: list[str], near: list[list[str]], path: Path) -> tuple[str, ...]:
        """The names in a header that has to be one of the schema's columns."""
        names = column_names(cells)
        check_header(names, self.described)
        absent = next((name for name in self.needed if name not in names), None)
        if absent is not None:
            raise misses(absent, names, self.described, stated=self.stated is True)
        if self.stated is None and _recurs(cells, near):
            raise InputError(
                "data file",
                "must have a first row whose cells do not stand below it as well, as those "
                "of a record would",
                path.name,
                'say header=True, or header = "yes" in the schema, if '
                "it names the columns; for a record write header = [NAME, NAME, ...] into the "
                "schema",
            )
        return names

    def _with_names(self, cells: list[str], path: Path) -> tuple[tuple[str, ...], bool]:
        """Names and form of a file that the schema says to have no header, where its first row does
        not name them."""
        names = self.names
        known = [set(names), set(names) - {self.target}]
        if self.stated is None and set(cells) in known:
            if all(map(is_number, cells)):
                raise _either(path, "holds the names of the columns, which are numbers")
            return column_names(cells), True
        if (
            self.stated is None
            and 2 * sum(cell in names and not is_number(cell) for cell in cells) >= len(cells) > 0
        ):
            raise _either(path, "holds names of columns, and not all of them")
        if len(cells) == len(names) - 1:
            names = tuple(name for name in names if name != self.target)
        return column_names(list(names)), False


def _either(path: Path, why: str) -> InputError:
    return InputError(
        "data file",
        f"must begin with a record, as the schema says, and its first row {why}",
        path.name,
        "say header=True if it is a header, or header=False if it is a record",
    )


def _check_no_record(cells: list[str], near: list[list[str]], path: Path) -> None:
    """Refuse a first row that may be a record: a header is text over a column that holds mostly
    numbers or days, and nothing of it recurs."""
    if any(map(is_number, cells)):
        raise InputError(
            "data file",
            "must begin with a header of column names, and its first row holds a number",
            path.name,
            SAY,
        )
    below = [
        [row[i].strip() for row in near if len(row) > i and row[i].strip().lower() not in MISSING]
        for i in range(len(cells))
    ]
    typed = any(
        cell.lower() not in MISSING
        and not _is_typed(cell)
        and 2 * sum(map(_is_typed, column)) > len(column)
        for cell, column in zip(cells, below, strict=True)
    )
    if near and (not typed or _recurs(cells, near)):
        raise InputError(
            "data file",
            "must begin with a header of column names, and its first row may be a record: "
            "all is text, as below, or stands there as well",
            path.name,
            SAY,
        )


def _recurs(cells: list[str], near: list[list[str]]) -> bool:
    """Whether a cell of the first row stands below it in its own column."""
    return any(
        cell and any(len(row) > i and row[i].strip() == cell for row in near)
        for i, cell in enumerate(cells)
    )


def _is_typed(cell: str) -> bool:
    """Whether a cell is a number, a day or true or false."""
    return (
        is_number(cell)
        or day_number(cell) is not None
        or cell.lower() in ("true", "false")
        or is_written_otherwise(cell)
    )


def read_csv(path: Path, rule: HeaderRule = HeaderRule()) -> Table:
    """Text cells by column; ``rule``: what is known about the first row.

    A file that was cut off after a record, or in its last cell, looks like a shorter one.
    """
    with records_of(path, rule) as (header, records):
        columns = list(zip(*_limit_memory(records, path), strict=True))
    if not columns:
        raise InputError("data file", "must hold a header and at least one record", path.name)
    cells: dict[str, Cells] = {
        name: [cell.strip() for cell in column]
        for name, column in zip(header, columns, strict=True)
    }
    return Table(header, cells)


@contextmanager
def records_of(
    path: Path, rule: HeaderRule
) -> Generator[tuple[tuple[str, ...], Iterator[list[str]]]]:
    """The names of the columns, and the records one after the other, each with as many cells; see
    ``read_csv``."""
    with _text(path) as file:
        rows = _rows(file, path)
        first = next(rows, list[str]())
        near = list(islice(rows, NEAR))
        header, named = rule.read(first, near, path)
        records = chain([first] if first and not named else [], near, rows)
        yield header, WholeRecords(len(header)).check(records)


def _limit_memory(records: Iterator[list[str]], path: Path) -> Iterator[list[str]]:
    """The records, refused where their lists alone take more than all memory, as millions of empty
    cells would."""
    most, taken = limits.memory(), 0
    for record in records:
        taken += limits.LEAST * (len(record) + 4)  # a list takes as much as four of its cells
        if taken > most:
            raise not_in_memory(path)
        yield record


class WholeRecords:
    """Checks records of ``width`` cells, one part of a file after the other; ``number``: how many
    rows there were. Empty lines are allowed behind the last record."""

    def __init__(self, width: int) -> None:
        self.width, self.number, self.empty = width, 0, 0

    def check(self, rows: Iterable[list[str]]) -> Iterator[list[str]]:
        """The records among the rows."""
        width = self.width
        for row in rows:
            self.number += 1
            if not row:
                self.empty += 1
                continue
            if not self.empty and len(row) > width:
                raise InputError(
                    "data file",
                    f"needs {width} cells in every record, and has {len(row)} in record "
                    f"{self.number}",
                    None,
                    'a cell with a separator in it needs quotation marks, such as "1,000"',
                )
            if self.empty or len(row) != width:
                raise InputError(
                    "data file",
                    f"needs {width} cells in every record, and has "
                    + (
                        f"0 in record {self.number - self.empty}"
                        if self.empty
                        else f"{len(row)} in record {self.number}"
                    ),
                    None,
                    "the file may be cut off, or a line be empty or a comment: leave that line out",
                )
            yield row


def read_header(path: Path, stated: bool | None = None) -> tuple[str, ...]:
    """The names in the first row; the records behind it say only whether it may be one itself."""
    with _text(path) as file:
        rows = _rows(file, path)
        return HeaderRule(stated).read(next(rows, list[str]()), list(islice(rows, NEAR)), path)[0]


def _rows(file: io.TextIOBase, path: Path) -> Iterator[list[str]]:
    """The cells of each record, and of the header."""
    lines = Lines(file)
    begun, separator = begin(lines, path)
    return rows_of_lines(lines, begun, separator)


def rows_of_lines(lines: Lines, begun: list[str], separator: str) -> Iterator[list[str]]:
    """The cells of each record, and of the header, in the lines that have ``begun`` and the rest."""
    rows = _count_anew(csv.reader(chain(begun, lines), delimiter=separator, strict=True), lines)
    yield from _leave_comments(rows)


def begin(lines: Lines, path: Path) -> tuple[list[str], str]:
    """The first lines, up to one that is surely no comment, and the separator.

    The separator is the one that the file's name or a line ``sep=;`` states, or else the most
    frequent one in that line.
    """
    tabbed, stated = path.name.lower().removesuffix(".gz").endswith(TABBED), ""
    begun = list[str]()
    for line in lines:
        said = None if begun else STATED.fullmatch(line.strip())
        if said is not None:
            stated = _check_separator(said[1], path)
        elif line.strip() or begun:
            begun.append(line)
        if begun and (len(begun) > NEAR or not line.startswith("#")):
            break
    names = begun[-1] if begun else ""
    if tabbed and "\t" in names:
        stated = stated or "\t"
    return begun, stated or max(SEPARATORS, key=names.count)


def _leave_comments(rows: Iterator[list[str]]) -> Iterator[list[str]]:
    """The rows without the comments above the header: those that begin with # and have another
    number of cells than the first row that does not."""
    first = list[list[str]]()
    for row in rows:
        first.append(row)
        if not row or not row[0].startswith("#") or len(first) > NEAR:
            break
    width = len(first[-1]) if first else 0
    while first and first[0] and first[0][0].startswith("#") and len(first[0]) != width:
        del first[0]
    yield from chain(first, rows)


def _count_anew(rows: Iterator[list[str]], lines: Lines) -> Iterator[list[str]]:
    """The rows, each with a count of its own of the characters that were read."""
    for row in rows:
        lines.taken = 0
        yield row


def _check_separator(stated: str, path: Path) -> str:
    if stated not in SEPARATORS:
        raise InputError(
            "data file",
            "must have cells that a comma, semicolon, tab or bar separates",
            f"sep={stated} in {path.name}",
            "write it again with one of these",
        )
    return stated


class HasLines(Protocol):
    """Text that is read line by line."""

    def readline(self, size: int, /) -> str:
        """The next line, of at most so many characters; empty at the end."""
        ...


class Lines:
    """The lines of a file, refused where the record that they belong to is too long; the reader of
    records starts the count again, and a cell may hold ends of lines."""

    def __init__(self, file: HasLines) -> None:
        self._file, self.taken = file, 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._file.readline(limits.RECORD + 1)
        if not line:
            raise StopIteration
        self.taken += len(line)
        if self.taken > limits.RECORD:
            raise too_long()
        return line


def too_long() -> InputError:
    """The refusal of a record without an end."""
    return InputError(
        "data file",
        f"must have at most {limits.RECORD:,} characters in a record",
        None,
        "a quotation mark may be missing",
    )


@contextmanager
def _text(path: Path) -> Generator[io.TextIOBase]:
    with open_text(path) as raw:
        if path == STANDARD_INPUT:
            yield io.StringIO(raw.read().decode("utf-8-sig"), newline="")
            return
        with io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as file:
            yield file


@contextmanager
def open_text(path: Path) -> Generator[Any]:
    """The bytes of a table of text, unpacked; errors of those who read it, in words."""
    # a text may be longer than the 131,072 characters that Python takes; of the whole process:
    # never lowered
    csv.field_size_limit(max(limits.CELL, csv.field_size_limit()))
    try:
        if path == STANDARD_INPUT:
            yield LimitedInput(sys.stdin.buffer, path)
            return
        with open_unpacked(path) as raw:
            yield raw
    except UnicodeDecodeError:
        raise InputError("data file", "must be UTF-8 text", path.name, "save it as UTF-8") from None
    except csv.Error as error:
        raise InputError(
            "data file",
            "must be a CSV table",
            f"{path.name} ({error})",
            "it may be cut off, or a quotation mark be missing",
        ) from None
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise InputError(
            "data file", "must be a complete gzip file", path.name, "it may be damaged"
        ) from None
