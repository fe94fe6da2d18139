"""JSON lines: UTF-8 text with one JSON object per line, whose keys are the names of columns.

null, and a key that a record does not have, is a missing cell. A key that the schema does not
describe is refused as in every table.
"""

# pyright: basic
# Arrow has no types, and what JSON holds is checked here
from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from lastiterate.data.columns import Category, Date, Numeric, Words
from lastiterate.data.parquet import to_numbers
from lastiterate.data.schema import Schema
from lastiterate.data.table import Cells, CodedCells, NumberText, Table, column_names, number_text
from lastiterate.errors import InputError

ENDS = (".jsonl", ".ndjson")
NEAR = 256
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
        lines = block.split(b"\n", NEAR)
        return [b"\n".join(lines[:NEAR]), *lines[NEAR:]]

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
