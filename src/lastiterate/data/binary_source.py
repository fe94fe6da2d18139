"""Arrays in files (.npy, IDX): records of one size, read where they lie."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from io import BufferedIOBase, RawIOBase
from pathlib import Path
from typing import final

import numpy as np

from lastiterate.data.decompression import opened
from lastiterate.data.file_stream import Stream, Watched
from lastiterate.data.numpy_files import BYTES, NPY, labels_beside, labels_file, read_head
from lastiterate.data.table import FormatFacts, Table, array_table, check_features, damaged
from lastiterate.errors import InputError


@final
@dataclass(frozen=True)
class Lying:
    """An array (n, ...) that lies in a file from byte ``begin`` on."""

    path: Path
    begin: int
    dtype: np.dtype
    shape: tuple[int, ...]

    def parts(self, most: int, first: int) -> Iterator[np.ndarray]:
        """Records from ``first`` on, ``most`` at a time, in the machine's byte order; read, not
        mapped."""
        size = self.dtype.itemsize * math.prod(self.shape[1:])
        with opened(self.path) as file:
            try:
                file.seek(self.begin + first * size)
                for at in range(first, self.shape[0], most):
                    many = min(most, self.shape[0] - at)
                    values = np.empty(many * size, np.uint8)
                    _read(file, values, self.path)
                    records = values.view(self.dtype).reshape(many, *self.shape[1:])
                    yield records.astype(self.dtype.newbyteorder("="), copy=False)
                if file.read(1):  # asking for one more byte also makes gzip check its checksum
                    raise damaged(self.path, "must end with its last record")
            except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                raise damaged(self.path, "must be a complete gzip file", error) from None


def _read(file: RawIOBase | BufferedIOBase, values: np.ndarray, path: Path) -> None:
    filled = 0
    while filled < values.size:
        got = file.readinto(values.data[filled:])
        if not got:
            raise damaged(path, "ends before its last record")
        filled += got


class ArrayFile(Stream):
    """Features, and labels that lie beside them (or none)."""

    dear = False

    def __init__(
        self, features: Lying, labels: Lying | None, answers_in: str, facts: FormatFacts | None
    ) -> None:
        self._features, self._labels, self._answers_in, self.facts = (
            features,
            labels,
            answers_in,
            facts,
        )
        self.watched = Watched.of(features.path, *(() if labels is None else (labels.path,)))
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
            answers_in=self._answers_in,
            facts=self.facts,
            shape=self.shape,
        )

    def _tables(self, most: int, first: int, numbers: frozenset[str]) -> Iterator[Table]:
        for at, (features, labels) in zip(
            range(first, len(self), most), self.arrays(most, first), strict=True
        ):
            table = array_table(features, labels, answers_in=self._answers_in, facts=self.facts)
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
    """NAME.npy, and NAME.labels.npy beside it where that exists."""
    beside = labels_file(path)
    return ArrayFile(_npy(path), _npy(beside) if beside.is_file() else None, beside.name, None)


def _npy(path: Path) -> Lying:
    """Where the array of a .npy file lies; the file ends where the array ends."""
    try:
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            read = (
                np.lib.format.read_array_header_1_0
                if version == (1, 0)
                else np.lib.format.read_array_header_2_0
            )
            shape, by_column, dtype = read(file)
            begin = file.seek(0, 1)
    except Exception as error:  # whatever NumPy's header parser raises on damaged bytes
        raise damaged(path, NPY, error) from None
    if (
        dtype.hasobject
        or by_column
        or begin + dtype.itemsize * math.prod(shape) != path.stat().st_size
    ):
        raise damaged(path, "must be a .npy file of one plain array, row by row, and nothing more")
    return Lying(path, begin, dtype, shape)


def open_idx(path: Path) -> ArrayFile:
    """Images (or rows) in an IDX file, and the labels beside it that its name leads to."""
    features, beside = _idx(path), labels_beside(path)
    facts = BYTES if features.dtype == np.uint8 else None
    labels = None if beside is None else _idx(beside)
    return ArrayFile(
        features, labels, "a file beside it, named like train-labels-idx1-ubyte", facts
    )


def _idx(path: Path) -> Lying:
    with opened(path) as file:
        try:
            dtype, shape = read_head(file, path)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise damaged(path, "must be a complete gzip file", error) from None
    array = Lying(path, 4 + 4 * len(shape), dtype, shape)
    whole = array.begin + array.dtype.itemsize * math.prod(array.shape)
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
    if not packed and whole != path.stat().st_size:
        raise damaged(path, "must hold the values that its IDX header states, no more and no less")
    return array
