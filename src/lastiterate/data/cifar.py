"""CIFAR-10 batches in their binary form."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np

from lastiterate.data.table import FormatFacts, Table, array_table, damage_error
from lastiterate.errors import InputError

# CIFAR-10 as its authors distribute it: binary batches and their folder (Krizhevsky 2009). A record
# is a label byte and 3072 pixel bytes (32 x 32 red, then green, then blue). The Python batches hold
# the same images; they are pickles, which are programs, and are not opened.

SHAPE, CLASSES = (3, 32, 32), 10
PIXELS = math.prod(SHAPE)
FACTS = FormatFacts(
    0,
    255,
    "CIFAR-10: a pixel is one byte, and its ten classes are numbered 0 to 9",
    tuple(str(i) for i in range(CLASSES)),
)
_TRAIN = re.compile(r"data_batch_(\d+)\.bin")


def read_batch(path: Path) -> Table:
    """One batch. One that was cut off between two records looks like a shorter one."""
    return _table([_batch(path)])


def read_folder(path: Path) -> Table:
    """All training batches of ``cifar-10-batches-bin``, in order of their numbers."""
    files = sorted(
        (int(match[1]), file)
        for file in path.iterdir()
        if (match := _TRAIN.fullmatch(file.name)) and file.is_file()
    )
    if not files:
        raise InputError(
            "data folder",
            "must hold .parquet files, or CIFAR-10's data_batch_1.bin, data_batch_2.bin, ...",
            str(path),
            "of CIFAR-10 take the binary version: the Python version is pickles",
        )
    numbers = [number for number, _ in files]
    if numbers != list(range(1, len(files) + 1)):
        raise InputError(
            "data folder",
            "must hold the batches from data_batch_1 on without a gap or a double",
            numbers,
        )
    return _table([_batch(file) for _, file in files])


def _table(batches: list[tuple[np.ndarray, np.ndarray]]) -> Table:
    images, labels = (
        parts[0] if len(parts) == 1 else np.concatenate(parts)
        for parts in zip(*batches, strict=True)
    )
    return array_table(images.reshape(-1, *SHAPE), labels, answers_in="each batch", facts=FACTS)


def _batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    size = path.stat().st_size
    if size == 0 or size % (PIXELS + 1):
        raise damage_error(
            path, f"must consist of CIFAR-10 records of {PIXELS + 1} bytes", f"{size} bytes"
        )
    records = np.fromfile(path, dtype=np.uint8).reshape(-1, PIXELS + 1)
    if (records[:, 0] >= CLASSES).any():
        raise damage_error(
            path, f"must hold CIFAR-10 records, whose first byte is a label below {CLASSES}"
        )
    return records[:, 1:], records[:, 0]
