"""Arrays in files (.npy, IDX): records of one size, read where they lie."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from lastiterate.data.file_stream import FileSnapshot, Stream, Wanted
from lastiterate.data.numpy_files import (
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
from lastiterate.data.table import FormatFacts, Table, array_table, check_features, damage_error
from lastiterate.errors import InputError


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
