"""CSV files, parsed record by record."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from lastiterate.data.csv_file import STANDARD_INPUT, HeaderRule, records_of
from lastiterate.data.sources.stream import Stream, Watched
from lastiterate.data.table import Cells, Table
from lastiterate.errors import InputError


class TextFile(Stream):
    """A CSV file; it is read once to count its records, and every reading parses it anew."""

    dear = True

    def __init__(self, path: Path, rule: HeaderRule = HeaderRule()) -> None:  # noqa: B008
        if path == STANDARD_INPUT:
            raise InputError("data file", "must be a file to be read piece by piece", "-", "write it to a file first")
        self._path, self._rule, self.watched = path, rule, Watched.of(path)
        with records_of(path, rule) as (self.names, records):
            self._n = sum(1 for _ in records)
        if self._n == 0:
            raise InputError("data file", "must hold a header and at least one record", path.name)

    def __len__(self) -> int:
        return self._n

    def _tables(self, most: int, first: int, numbers: frozenset[str]) -> Iterator[Table]:
        with records_of(self._path, self._rule) as (names, records):
            at = sum(1 for _ in islice(records, first))
            while rows := list(islice(records, most)):
                cells: dict[str, Cells] = {name: [cell.strip() for cell in column]
                                           for name, column in zip(names, zip(*rows, strict=True), strict=True)}
                yield Table(names, cells, first=at)
                at += len(rows)
