"""CIFAR-10 as its authors distribute it: binary batches, Python batches, and the folder of either (Krizhevsky 2009).

A binary record is a label byte and 3072 pixel bytes (32 x 32 red, then green, then blue). A Python batch is a pickled
dict with ``b"data"``, (n, 3072) bytes, and ``b"labels"``, a list of n numbers.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import cast

import numpy as np

from lastiterate.data.plain_pickle import byte_array, read_plain_pickle
from lastiterate.data.table import FormatFacts, Table, array_table, damaged
from lastiterate.errors import InputError
from lastiterate.run.strict_json import is_list

SHAPE, CLASSES = (3, 32, 32), 10
PIXELS = math.prod(SHAPE)
FACTS = FormatFacts(0, 255, "CIFAR-10: a pixel is one byte, and its ten classes are numbered 0 to 9",
                    tuple(str(i) for i in range(CLASSES)))
_PYTHON = re.compile(r"data_batch_\d+|test_batch")
_TRAIN = re.compile(r"data_batch_(\d+)(\.bin)?")


def is_python_batch(path: Path) -> bool:
    """``data_batch_1`` ... ``data_batch_5``, ``test_batch``."""
    return _PYTHON.fullmatch(path.name) is not None


def read_binary_batch(path: Path) -> Table:
    """One *.bin file. One that was cut off between two records looks like a shorter one."""
    return _table([_binary(path)])


def read_python_batch(path: Path) -> Table:
    """One pickled batch; nothing in the pickle is run."""
    return _table([_python(path)])


def read_folder(path: Path) -> Table:
    """All training batches of ``cifar-10-batches-bin`` or ``cifar-10-batches-py``, in order of their numbers."""
    files = sorted((int(match[1]), match[2] or "", file) for file in path.iterdir()
                   if (match := _TRAIN.fullmatch(file.name)) and file.is_file())
    if not files:
        raise InputError("data folder", "must hold .parquet files, or CIFAR-10's data_batch_1, "
                         "data_batch_2, ... (with .bin or without)",
                         path.name)
    if len({suffix for _, suffix, _ in files}) > 1:
        raise InputError("data folder", "holds binary and Python batches side by side", path.name, "keep one kind")
    numbers = [number for number, _, _ in files]
    if numbers != list(range(1, len(files) + 1)):
        raise InputError("data folder", "must hold the batches from data_batch_1 on without a gap or a double", numbers)
    return _table([_binary(file) if suffix else _python(file) for _, suffix, file in files])


def _table(batches: list[tuple[np.ndarray, np.ndarray]]) -> Table:
    images, labels = (parts[0] if len(parts) == 1 else np.concatenate(parts) for parts in zip(*batches, strict=True))
    return array_table(images.reshape(-1, *SHAPE), labels, answers_in="each batch", facts=FACTS)


def _binary(path: Path) -> tuple[np.ndarray, np.ndarray]:
    size = path.stat().st_size
    if size == 0 or size % (PIXELS + 1):
        raise damaged(path, f"must consist of CIFAR-10 records of {PIXELS + 1} bytes", f"{size} bytes")
    records = np.fromfile(path, dtype=np.uint8).reshape(-1, PIXELS + 1)
    if (records[:, 0] >= CLASSES).any():
        raise damaged(path, f"must hold CIFAR-10 records, whose first byte is a label below {CLASSES}")
    return records[:, 1:], records[:, 0]


def _python(path: Path) -> tuple[np.ndarray, np.ndarray]:
    content = read_plain_pickle(path)
    entries = cast("dict[object, object]", content) if isinstance(content, dict) else {}
    images, labels = byte_array(entries.get(b"data")), entries.get(b"labels")
    if images is None or images.shape[1] != PIXELS:
        raise damaged(path, f"must hold CIFAR-10's b'data', an array of bytes of shape (n, {PIXELS})")
    if not is_list(labels) or not all(type(x) is int and 0 <= x < CLASSES for x in labels):
        raise damaged(path, f"must hold CIFAR-10's b'labels', a list of whole numbers below {CLASSES}")
    if len(labels) != len(images):
        raise damaged(path, "must hold one label per image", f"{len(labels)} labels, {len(images)} images")
    return images, np.array(labels, dtype=np.uint8)
