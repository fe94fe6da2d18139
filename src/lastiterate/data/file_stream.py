"""Files read piece by piece: Parquet or Arrow, parts of a folder, and arrays where they lie."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from lastiterate import interrupts
from lastiterate.data.binary_files import (
    BYTES,
    MappedArray,
    find_labels_file,
    idx_array,
    labels_file,
    labels_name,
    map_array,
    read_idx_array,
    read_idx_shaped,
)
from lastiterate.data.parquet import (
    check_not_empty,
    count_groups,
    find_group,
    parts_of,
    read_batches,
    read_stated_types,
    same_columns,
)
from lastiterate.data.table import (
    Cells,
    CodedCells,
    FormatFacts,
    Table,
    array_table,
    check_features,
    column_names,
    damage_error,
    explain_read_errors,
)
from lastiterate.errors import InputError
from lastiterate.remote_files import find_versions, is_remote, open_bytes

# What every kind of file gives when it is read piece by piece, and what notices that it changed
# meanwhile.

PIECE = 2**20
"""Bytes of a file that are digested at once."""
TEXTS = 2**16
"""Records of which a column of text is read at once."""


@dataclass(frozen=True)
class FileSnapshot:
    """Files as they were found: which ones their names led to, their sizes and the times of their
    last change."""

    paths: tuple[Path, ...]
    states: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, *paths: Path) -> FileSnapshot:
        return cls(paths, _states(paths))

    def check(self) -> None:
        """Refuse files that are not as they were found."""
        for path, before, now in zip(self.paths, self.states, _states(self.paths), strict=True):
            if now != before:
                raise InputError(
                    "data file",
                    "changed while it was read",
                    path.name,
                    "nothing was released; copy it first, and train on the copy",
                )

    def fingerprint(self) -> Iterator[np.ndarray]:
        """The bytes of all files."""
        for path in self.paths:
            with open_bytes(path) as file:
                while part := file.read(PIECE):
                    yield np.frombuffer(part, np.uint8)
        self.check()

    @property
    def file_identity(self) -> str:
        """What processes that see one and the same files find alike, and copies of them otherwise:
        sizes, times of the last change and inodes, in a store versions; "" where a file system has
        no inodes.

        Devices have other numbers on other machines.
        """
        if any(inode == 0 for *_, inode in self.states):
            return ""
        return repr([(size, changed, inode) for size, changed, _, inode in self.states])

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(size for size, *_ in self.states)


def _states(paths: tuple[Path, ...]) -> tuple[tuple[int, ...], ...]:
    if not any(map(is_remote, paths)):
        return tuple(map(_state, paths))
    with explain_read_errors(paths[0]):
        return tuple(find_versions(paths))


def _state(path: Path) -> tuple[int, ...]:
    try:
        status = path.stat()
    except OSError as error:
        raise InputError(
            "data file", "must be readable", f"{path.name} ({error.strerror})"
        ) from None
    return status.st_size, status.st_mtime_ns, status.st_dev, status.st_ino


@dataclass(frozen=True)
class Wanted:
    """Columns of a table that are read; ``numbers``: those that may come as float64. ``point``:
    whether a text of a number has a decimal point."""

    names: frozenset[str]
    numbers: frozenset[str] = frozenset()
    point: bool = True


def _number_texts(cells: Cells, texts: dict[str, int]) -> np.ndarray:
    """The positions of cells in a list of texts, which grows by those that are new; (n,) int32."""

    def number(text: str) -> int:
        return texts.setdefault(text, len(texts))

    if not isinstance(cells, CodedCells):
        return np.array([number(str(cell)) for cell in cells], np.int32)
    numbers = cells.convert(lambda text, _: number(text), 0)  # -1: a text that no cell has
    return np.array([-1 if one is None else one for one in numbers], np.int32)[cells.codes]


class Stream(ABC):
    """A file (or a folder of parts) that is read piece by piece.

    ``dear``: whether reading it again costs much more than reading bytes. ``watched``: its files.
    ``names``: of its columns. ``shape``: of one record of an array; ``None`` for a table.
    ``kept``: as in ``Table``. ``progress``: is called with the number of records that were read,
    and of all.
    """

    dear: ClassVar[bool]
    watched: FileSnapshot
    names: tuple[str, ...]
    shape: tuple[int, ...] | None = None
    facts: FormatFacts | None = None
    kept: np.ndarray | None = None
    progress: Callable[[int, int], None] | None = None

    @abstractmethod
    def __len__(self) -> int:
        """Records; a public number."""

    @abstractmethod
    def _tables(self, most: int, first: int, wanted: Wanted) -> Iterator[Table]:
        """As ``tables``, without looking whether the files changed."""

    def tables(self, most: int, first: int = 0, wanted: Wanted | None = None) -> Iterator[Table]:
        """Records from number ``first`` on, 1 .. ``most`` at a time; of arrays all columns.

        Errors: files that changed since they were found, before the first piece and behind the last
        one.
        """
        self.watched.check()
        with explain_read_errors(self.watched.paths[0]):
            for table in self._tables(most, first, wanted or Wanted(frozenset(self.names))):
                yield table
                interrupts.check()
                if self.progress is not None:
                    self.progress(
                        table.first + len(table if table.kept is None else table.kept), self.count
                    )
        self.watched.check()

    def find_start(self, first: int) -> int:
        """Return the record at which reading has to begin for record number ``first``."""
        return 0 if self.dear else first

    @property
    def count(self) -> int:
        """Records of the file, also those that are not used."""
        return len(self)

    def read_texts(self, name: str, most: int = TEXTS) -> CodedCells | None:
        """The cells of one column of all records, as text; ``None`` where it has no such cells."""
        codes, texts = [np.zeros(0, np.int32)], dict[str, int]()
        if self.shape is not None or name not in self.names:
            return None
        for table in self.tables(most, wanted=Wanted(frozenset([name]))):
            if table.cells is None or name not in table.cells:
                return None
            codes.append(_number_texts(table.cells[name], texts))
        return CodedCells(list(texts), np.concatenate(codes))

    @property
    def head(self) -> Table:
        """A table of no records with the same columns."""
        return Table(self.names, cells={name: [] for name in self.names})


# Parquet and Arrow: one file, or a folder of parts that are read in the order of their names.


class ParquetParts(Stream):
    """Parquet or Arrow files with the same columns, one behind the other."""

    dear = True

    def __init__(self, path: Path, unread: frozenset[str] = frozenset()) -> None:
        self._parts, self._unread = parts_of(path), unread
        self.watched = FileSnapshot.of(*(part.path for part in self._parts))
        self.names = column_names(list(same_columns(self._parts)))
        self._groups = [count_groups(part) for part in self._parts]
        self._counts = list(map(sum, self._groups))
        check_not_empty(path, self.names, len(self))

    def __len__(self) -> int:
        return sum(self._counts)

    @property
    def head(self) -> Table:
        return replace(super().head, types=read_stated_types(self._parts[0], self._unread))

    def _tables(self, most: int, first: int, wanted: Wanted) -> Iterator[Table]:
        at = 0
        for part, groups, count in zip(self._parts, self._groups, self._counts, strict=True):
            if at + count > first:
                own = (groups, max(0, first - at))
                tables = read_batches(
                    part, most, at, wanted.numbers, self._unread, wanted.names, *own
                )
                yield from split_tables(tables, most, first)
            at += count

    def find_start(self, first: int) -> int:
        at = 0
        for groups, count in zip(self._groups, self._counts, strict=True):
            if at + count > first:
                return at + find_group(groups, first - at)[1]
            at += count
        return at


def split_tables(tables: Iterable[Table], most: int, first: int) -> Iterator[Table]:
    """Tables of cells of 1 .. ``most`` records, without those before number ``first``."""
    for table in tables:
        for begin in range(max(0, first - table.first), len(table), most):
            yield _slice(table, begin, begin + most)


def _slice(table: Table, begin: int, end: int) -> Table:
    if begin == 0 and end >= len(table):
        return table
    assert table.cells is not None
    cells: dict[str, Cells] = {name: column[begin:end] for name, column in table.cells.items()}
    return replace(table, cells=cells, first=table.first + begin)


# The records of a file that are used, where some are not.


class SelectedRecords(Stream):
    """The records of a table for which ``kept`` (n,) is true, with their numbers in the file."""

    def __init__(self, whole: Stream, kept: np.ndarray) -> None:
        self._whole, self._kept, self.kept = whole, kept, kept
        self.watched, self.names, self.facts = whole.watched, whole.names, whole.facts
        self._numbers = np.flatnonzero(kept)

    @property
    def dear(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._whole.dear

    @property
    def head(self) -> Table:
        return self._whole.head

    def __len__(self) -> int:
        return len(self._numbers)

    def find_start(self, first: int) -> int:
        start = self._whole.find_start(int(self._numbers[first])) if first < len(self) else first
        return int(np.searchsorted(self._numbers, start))

    @property
    def count(self) -> int:
        return self._whole.count

    def _tables(self, most: int, first: int, wanted: Wanted) -> Iterator[Table]:
        if first >= len(self):
            return
        for table in self._whole.tables(most, int(self._numbers[first]), wanted):
            kept = self._kept[table.first : table.first + len(table)]
            if kept.any():
                yield table.select(kept)


# Arrays in files (.npy, IDX): records of one size, read where they lie.


class ArrayFile(Stream):
    """Features, and labels in a second file (or none)."""

    dear = False

    def __init__(
        self,
        features: MappedArray,
        labels: MappedArray | None,
        answers_in: str,
        facts: FormatFacts | None,
    ) -> None:
        self._features, self._labels, self.answers_in, self.facts = (
            features,
            labels,
            answers_in,
            facts,
        )
        self.watched = FileSnapshot.of(features.path, *(() if labels is None else (labels.path,)))
        if len(features.shape) < 2 or 0 in features.shape or features.dtype.kind not in "biuf":
            raise InputError(
                "data file",
                "needs a numeric array of features of shape (n, d)",
                f"{features.dtype} of shape {features.shape}",
            )
        if labels is not None and (
            labels.shape[:1] != features.shape[:1] or math.prod(labels.shape[1:]) != 1
        ):
            raise InputError(
                "data file",
                f"needs one label for each of {features.shape[0]} rows in {answers_in}",
                labels.shape,
            )
        if labels is not None and labels.dtype.kind not in "biufU":
            raise InputError(
                "data file", f"needs numbers or text as labels in {answers_in}", str(labels.dtype)
            )
        self.shape = check_features(features.shape)
        self.names = tuple(f"x{i}" for i in range(math.prod(self.shape)))

    def __len__(self) -> int:
        return self._features.shape[0]

    @property
    def head(self) -> Table:
        return Table(
            self.names,
            array=np.zeros((0, len(self.names)), self._features.dtype),
            answers=None if self._labels is None else np.zeros(0, self._labels.dtype),
            answers_in=self.answers_in,
            facts=self.facts,
            shape=self.shape,
        )

    def _tables(self, most: int, first: int, wanted: Wanted) -> Iterator[Table]:
        for at, (features, labels) in zip(
            range(first, len(self), most), self.arrays(most, first), strict=True
        ):
            table = array_table(features, labels, answers_in=self.answers_in, facts=self.facts)
            yield replace(table, first=at)

    def arrays(self, most: int, first: int = 0) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        """Features as they lie in the file, (m, ...), and their labels (m,), or none."""
        features = self._features.parts(most, first)
        if self._labels is None:
            yield from ((part, None) for part in features)
            return
        for part, labels in zip(features, self._labels.parts(most, first), strict=True):
            yield part, labels.reshape(-1)


def open_npy(path: Path) -> ArrayFile:
    """Open NAME.npy, and NAME.labels.npy in the same folder where that exists."""
    labels = labels_file(path)
    return ArrayFile(_npy(path), _npy(labels) if labels.is_file() else None, labels.name, None)


def _npy(path: Path) -> MappedArray:
    """Where the array of a .npy file lies, row by row."""
    array = map_array(path)
    rule = "must be a .npy file of one plain array, row by row, and nothing more"
    if not array.flags.c_contiguous:
        raise damage_error(path, rule)
    return MappedArray(path, array.offset, array.dtype, array.shape, rule)


def open_idx(path: Path) -> ArrayFile:
    """Open the images (or rows) of an IDX file, and the labels file that its name leads to."""
    features, labels = idx_array(path), find_labels_file(path)
    if len(features.shape) < 2:
        raise InputError(
            "data file",
            "must hold images (or rows), and not their labels",
            path.name,
            "name the ...-images-idx3-ubyte file; its labels are found in the same folder",
        )
    where = "a file next to it, named like train-images-idx3-ubyte and train-labels-idx1-ubyte"
    return ArrayFile(
        features,
        None if labels is None else idx_array(labels),
        labels_name(path) or where,
        BYTES if features.dtype == np.uint8 else None,
    )


def read_idx(path: Path) -> Table:
    """The rows or images of an IDX file, and their labels, in memory."""
    answers = find_labels_file(path)
    labels = None if answers is None else read_idx_array(answers)
    file = open_idx(path)
    return array_table(read_idx_shaped(path), labels, answers_in=file.answers_in, facts=file.facts)
