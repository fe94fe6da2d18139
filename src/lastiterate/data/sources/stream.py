"""What every kind of file gives when it is read piece by piece, and what notices that it changed meanwhile."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from lastiterate.data.table import FormatFacts, Table
from lastiterate.errors import InputError

PIECE = 2**20
"""Bytes of a file that are digested at once."""


@dataclass(frozen=True)
class Watched:
    """Files as they were found: which ones their names led to, their sizes and the times of their last change."""

    paths: tuple[Path, ...]
    states: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, *paths: Path) -> Watched:
        return cls(paths, tuple(map(_state, paths)))

    def check(self) -> None:
        """Refuse files that are not as they were found."""
        for path, before in zip(self.paths, self.states, strict=True):
            if _state(path) != before:
                raise InputError("data file", "changed while it was read", path.name,
                                 "nothing was released; copy it first, and train on the copy")

    def digested(self) -> Iterator[np.ndarray]:
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
        raise InputError("data file", "must be readable", f"{path.name} ({error.strerror})") from None
    return status.st_size, status.st_mtime_ns, status.st_dev, status.st_ino


class Stream(ABC):
    """A file (or a folder of parts) that is read piece by piece.

    ``dear``: whether reading it again costs much more than reading bytes. ``watched``: its files. ``names``: of its
    columns. ``shape``: of one record of an array; ``None`` for a table.
    """

    dear: ClassVar[bool]
    watched: Watched
    names: tuple[str, ...]
    shape: tuple[int, ...] | None = None
    facts: FormatFacts | None = None

    @abstractmethod
    def __len__(self) -> int:
        """Records; a public number."""

    @abstractmethod
    def _tables(self, most: int, first: int, numbers: frozenset[str]) -> Iterator[Table]:
        """As ``tables``, without looking whether the files changed."""

    def tables(self, most: int, first: int = 0, numbers: frozenset[str] = frozenset()) -> Iterator[Table]:
        """Records from number ``first`` on, 1 .. ``most`` at a time; ``numbers``: columns that may come as float64.

        Errors: files that changed since they were found, before the first piece and behind the last one.
        """
        self.watched.check()
        yield from self._tables(most, first, numbers)
        self.watched.check()

    @property
    def head(self) -> Table:
        """A table of no records with the same columns."""
        return Table(self.names, cells={name: [] for name in self.names})
