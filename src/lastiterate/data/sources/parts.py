"""Parquet: one file, or a folder of parts that are read in the order of their names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from lastiterate.data.parquet import cells_by_kind, opened_parquet, parts_of, same_columns, stated_types
from lastiterate.data.sources.stream import Stream, Watched
from lastiterate.data.table import Table, column_names, damaged
from lastiterate.errors import InputError


class ParquetParts(Stream):
    """Parquet files with the same columns, one behind the other."""

    dear = True

    def __init__(self, path: Path) -> None:
        self._paths = parts_of(path)
        self.watched = Watched.of(*self._paths)
        self.names = column_names(list(same_columns(self._paths)))
        self._types = stated_types(self._paths[0])
        self._counts = [_records(part) for part in self._paths]
        if not sum(self._counts) or not self.names:
            raise InputError("data file", "must hold at least one column and one record", path.name)

    def __len__(self) -> int:
        return sum(self._counts)

    @property
    def head(self) -> Table:
        return replace(super().head, types=self._types)

    def _tables(self, most: int, first: int, numbers: frozenset[str]) -> Iterator[Table]:
        at = 0
        for path, count in zip(self._paths, self._counts, strict=True):
            if at + count > first:
                for table in _part(path, most, at, numbers):
                    if table.first + len(table) > first:
                        yield _behind(table, first)
            at += count


def _records(path: Path) -> int:
    with opened_parquet(path) as file:
        return file.metadata.num_rows


def _part(path: Path, most: int, at: int, numbers: frozenset[str]) -> Iterator[Table]:
    """The records of one part, of which ``at`` lie before it."""
    with opened_parquet(path) as file:
        batches = file.iter_batches(batch_size=most, use_threads=False)
        while (batch := _next(batches, path)) is not None:
            names = column_names(list(batch.schema.names))
            cells = {name: cells_by_kind(name, column, name in numbers)
                     for name, column in zip(names, batch.columns, strict=True)}
            yield Table(names, cells, first=at)
            at += batch.num_rows


def _next(batches: Iterator[Any], path: Path) -> Any:
    try:
        batch = next(batches, None)
        while batch is not None and batch.num_rows == 0:
            batch = next(batches, None)
        if batch is not None:
            batch.validate(full=True)
        return batch
    except Exception as error:  # pyarrow raises OSError, ValueError and its own kinds on damaged bytes
        raise damaged(path, "must be a complete Parquet file", error) from None


def _behind(table: Table, first: int) -> Table:
    """A table without the records before number ``first``."""
    cut = max(0, first - table.first)
    if cut == 0 or table.cells is None:
        return table
    return Table(table.names, {name: cells[cut:] for name, cells in table.cells.items()}, first=table.first + cut)
