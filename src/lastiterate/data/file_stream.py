"""Files read piece by piece: one Parquet file or a folder of parts, checked for changes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from lastiterate.data.parquet import (
    check_not_empty,
    count_records,
    parts_of,
    read_batches,
    read_stated_types,
    same_columns,
)
from lastiterate.data.table import FormatFacts, Table, column_names
from lastiterate.errors import InputError

# What every kind of file gives when it is read piece by piece, and what notices that it changed
# meanwhile.

PIECE = 2**20
"""Bytes of a file that are digested at once."""


@dataclass(frozen=True)
class FileSnapshot:
    """Files as they were found: which ones their names led to, their sizes and the times of their
    last change."""

    paths: tuple[Path, ...]
    states: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, *paths: Path) -> FileSnapshot:
        return cls(paths, tuple(map(_state, paths)))

    def check(self) -> None:
        """Refuse files that are not as they were found."""
        for path, before in zip(self.paths, self.states, strict=True):
            if _state(path) != before:
                raise InputError(
                    "data file",
                    "changed while it was read",
                    path.name,
                    "nothing was released; copy it first, and train on the copy",
                )

    def fingerprint(self) -> Iterator[np.ndarray]:
        """The bytes of all files."""
        for path in self.paths:
            with path.open("rb") as file:
                while part := file.read(PIECE):
                    yield np.frombuffer(part, np.uint8)
        self.check()

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(size for size, *_ in self.states)


def _state(path: Path) -> tuple[int, ...]:
    try:
        status = path.stat()
    except OSError as error:
        raise InputError(
            "data file", "must be readable", f"{path.name} ({error.strerror})"
        ) from None
    return status.st_size, status.st_mtime_ns, status.st_dev, status.st_ino


class Stream(ABC):
    """A file (or a folder of parts) that is read piece by piece.

    ``dear``: whether reading it again costs much more than reading bytes. ``watched``: its files.
    ``names``: of its columns. ``shape``: of one record of an array; ``None`` for a table.
    """

    dear: ClassVar[bool]
    watched: FileSnapshot
    names: tuple[str, ...]
    shape: tuple[int, ...] | None = None
    facts: FormatFacts | None = None

    @abstractmethod
    def __len__(self) -> int:
        """Records; a public number."""

    @abstractmethod
    def _tables(self, most: int, first: int, numbers: frozenset[str]) -> Iterator[Table]:
        """As ``tables``, without looking whether the files changed."""

    def tables(
        self, most: int, first: int = 0, numbers: frozenset[str] = frozenset()
    ) -> Iterator[Table]:
        """Records from number ``first`` on, 1 .. ``most`` at a time; ``numbers``: columns that may
        come as float64.

        Errors: files that changed since they were found, before the first piece and behind the last
        one.
        """
        self.watched.check()
        yield from self._tables(most, first, numbers)
        self.watched.check()

    @property
    def head(self) -> Table:
        """A table of no records with the same columns."""
        return Table(self.names, cells={name: [] for name in self.names})


# Parquet: one file, or a folder of parts that are read in the order of their names.


class ParquetParts(Stream):
    """Parquet files with the same columns, one behind the other."""

    dear = True

    def __init__(self, path: Path, unread: frozenset[str] = frozenset()) -> None:
        self._paths, self._unread = parts_of(path), unread
        self.watched = FileSnapshot.of(*self._paths)
        self.names = column_names(list(same_columns(self._paths)))
        self._counts = [count_records(part) for part in self._paths]
        check_not_empty(path, self.names, len(self))

    def __len__(self) -> int:
        return sum(self._counts)

    @property
    def head(self) -> Table:
        return replace(super().head, types=read_stated_types(self._paths[0], self._unread))

    def _tables(self, most: int, first: int, numbers: frozenset[str]) -> Iterator[Table]:
        at = 0
        for path, count in zip(self._paths, self._counts, strict=True):
            if at + count > first:
                for table in read_batches(path, most, at, numbers, self._unread):
                    if table.first + len(table) > first:
                        yield _skip_records(table, first)
            at += count


def _skip_records(table: Table, first: int) -> Table:
    """A table without the records before number ``first``."""
    cut = max(0, first - table.first)
    if cut == 0 or table.cells is None:
        return table
    return Table(
        table.names,
        {name: cells[cut:] for name, cells in table.cells.items()},
        first=table.first + cut,
    )
