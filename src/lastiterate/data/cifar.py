"""CIFAR-10 batches, binary or pickled; pickles are read without running anything."""

from __future__ import annotations

import math
import pickle
import re
from io import BufferedReader
from pathlib import Path
from typing import Any, cast

import numpy as np

from lastiterate import limits
from lastiterate.data.table import FormatFacts, Table, array_table, damage_error
from lastiterate.errors import InputError
from lastiterate.run.serialization import is_list

# Pickles of plain data and byte arrays, read without running anything that they ask for. A pickle
# is a program: it may name any function and call it. Here every name that NumPy's array pickles use
# only records what was asked, and every other name is refused before anything happens.

# pyright: basic
# Python's own unpickler has no types


class ArrayNote:
    """An array that a pickle describes: NumPy's state (version, shape, type, Fortran order, bytes)."""

    def __init__(self, *_: object) -> None:
        self.state: Any = None

    def __setstate__(self, state: object) -> None:
        self.state = state


class TypeNote:
    """An element type that a pickle describes, by its code; its state (byte order) says nothing
    about bytes."""

    def __init__(self, code: object = None, *_: object) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        pass


class _Latin1:
    """Replaces ``_codecs.encode``, with which Python 3 writes bytes in protocol 2. Holds nothing
    to overwrite."""

    __slots__ = ()

    def __call__(self, text: str, encoding: str) -> bytes:
        if encoding != "latin1":
            raise ValueError(f"asks for the encoding {encoding!r}")
        return text.encode("latin1")


_NAMES: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): ArrayNote,
    ("numpy._core.multiarray", "_reconstruct"): ArrayNote,
    ("numpy", "ndarray"): ArrayNote,
    ("numpy", "dtype"): TypeNote,
    ("_codecs", "encode"): _Latin1(),
}


_NEVER = {
    code[0]
    for code in (
        pickle.EXT1,
        pickle.EXT2,
        pickle.EXT4,
        pickle.PERSID,
        pickle.BINPERSID,
        pickle.BYTEARRAY8,
        pickle.NEXT_BUFFER,
        pickle.READONLY_BUFFER,
        pickle.EMPTY_SET,
        pickle.ADDITEMS,
        pickle.FROZENSET,
    )
}
_KEYS = (bytes, str, int)


class _Counted(dict[int, Any]):
    """Instructions by their codes, of which a pickle may look up so many: one byte each can make an
    object."""

    left = limits.OPCODES

    def __getitem__(self, code: int) -> Any:
        self.left -= 1
        if self.left < 0:
            raise InputError(
                "data file",
                f"must have at most {limits.OPCODES:,} instructions in its pickle",
                None,
            )
        return super().__getitem__(code)


_PYTHONS: Any = pickle._Unpickler  # pyright: ignore[reportAttributeAccessIssue]


class _Unpickler(_PYTHONS):
    """Python's own unpickler in Python: the one in C allocates whatever size a damaged file
    invents.

    Codes for registered or outside objects, which need not pass ``find_class``, for buffers and for
    sets are left out. Keys are plain: to find the place of a tuple of tuples, Python visits every
    one of them, which may be 2^60.
    """

    dispatch = {  # noqa: RUF012
        code: act for code, act in _PYTHONS.dispatch.items() if code not in _NEVER
    }

    def __init__(self, file: BufferedReader) -> None:
        super().__init__(file, encoding="bytes")
        self.dispatch = _Counted(type(self).dispatch)

    def _plain_keys(self, keys: list[Any]) -> None:
        if not all(type(key) in _KEYS for key in keys):
            raise InputError("data file", "must have names as the keys of its pickle", None)

    def load_setitem(self) -> None:
        self._plain_keys(self.stack[-2:-1])
        super().load_setitem()

    def load_setitems(self) -> None:
        self._plain_keys(self.stack[::2])
        super().load_setitems()

    def load_dict(self) -> None:
        self._plain_keys(self.stack[::2])
        super().load_dict()

    dispatch |= {
        pickle.SETITEM[0]: load_setitem,
        pickle.SETITEMS[0]: load_setitems,
        pickle.DICT[0]: load_dict,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _NAMES:
            raise InputError(
                "data file",
                "may name nothing but NumPy's plain arrays in its pickle",
                f"{module}.{name}"[:80],
                "it was refused before anything in it ran",
            )
        return _NAMES[module, name]


def read_plain_pickle(path: Path) -> Any:
    """What the pickle holds: numbers, text, bytes (Python 2 strings too), lists, dicts and notes of
    arrays."""
    if path.stat().st_size > limits.PICKLE:
        raise limits.too_large("data file", limits.PICKLE, path)
    with path.open("rb") as file:
        try:
            content = _Unpickler(file).load()
            rest = file.read(1)
        except InputError:
            raise
        except Exception as error:  # a damaged program can fail in any way
            raise damage_error(path, "must be a complete pickle", type(error).__name__) from None
    if rest:
        raise damage_error(path, "must be one pickle and nothing more")
    return content


def byte_array(note: object) -> np.ndarray | None:
    """The two-dimensional array of bytes that a note describes, without a copy; ``None`` if it is
    anything else."""
    match note:
        case ArrayNote(
            state=(1, (int(n), int(d)), TypeNote(code="u1" | b"u1"), int(fortran), bytes(raw))
        ) if n > 0 and d > 0 and len(raw) == n * d:
            return np.frombuffer(raw, dtype=np.uint8).reshape((n, d), order="F" if fortran else "C")
        case _:
            return None


# CIFAR-10 as its authors distribute it: binary batches, Python batches, and the folder of either
# (Krizhevsky 2009). A binary record is a label byte and 3072 pixel bytes (32 x 32 red, then green,
# then blue). A Python batch is a pickled dict with ``b"data"``, (n, 3072) bytes, and ``b"labels"``,
# a list of n numbers.

SHAPE, CLASSES = (3, 32, 32), 10
PIXELS = math.prod(SHAPE)
FACTS = FormatFacts(
    0,
    255,
    "CIFAR-10: a pixel is one byte, and its ten classes are numbered 0 to 9",
    tuple(str(i) for i in range(CLASSES)),
)
PYTHON_BATCH = re.compile(r"data_batch_\d+|test_batch")
_TRAIN = re.compile(r"data_batch_(\d+)(\.bin)?")


def read_batch(path: Path) -> Table:
    """One batch: a *.bin file, or a pickle in which nothing is run. A binary one that was cut off
    between two records looks like a shorter one."""
    return _table([_batch(path)])


def read_folder(path: Path) -> Table:
    """All training batches of ``cifar-10-batches-bin`` or ``cifar-10-batches-py``, in order of
    their numbers."""
    files = sorted(
        (int(match[1]), match[2] or "", file)
        for file in path.iterdir()
        if (match := _TRAIN.fullmatch(file.name)) and file.is_file()
    )
    if not files:
        raise InputError(
            "data folder",
            "must hold .parquet files, or CIFAR-10's data_batch_1, "
            "data_batch_2, ... (with .bin or without)",
            str(path),
        )
    if len({suffix for _, suffix, _ in files}) > 1:
        raise InputError(
            "data folder",
            "holds binary and Python batches side by side",
            str(path),
            "keep one kind",
        )
    numbers = [number for number, _, _ in files]
    if numbers != list(range(1, len(files) + 1)):
        raise InputError(
            "data folder",
            "must hold the batches from data_batch_1 on without a gap or a double",
            numbers,
        )
    return _table([_batch(file) for _, _, file in files])


def _table(batches: list[tuple[np.ndarray, np.ndarray]]) -> Table:
    images, labels = (
        parts[0] if len(parts) == 1 else np.concatenate(parts)
        for parts in zip(*batches, strict=True)
    )
    return array_table(images.reshape(-1, *SHAPE), labels, answers_in="each batch", facts=FACTS)


def _batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    return _binary(path) if path.suffix.lower() == ".bin" else _python(path)


def _binary(path: Path) -> tuple[np.ndarray, np.ndarray]:
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


def _python(path: Path) -> tuple[np.ndarray, np.ndarray]:
    content = read_plain_pickle(path)
    entries = cast("dict[object, object]", content) if isinstance(content, dict) else {}
    images, labels = byte_array(entries.get(b"data")), entries.get(b"labels")
    if images is None or images.shape[1] != PIXELS:
        raise damage_error(
            path, f"must hold CIFAR-10's b'data', an array of bytes of shape (n, {PIXELS})"
        )
    if not is_list(labels) or not all(type(x) is int and 0 <= x < CLASSES for x in labels):
        raise damage_error(
            path, f"must hold CIFAR-10's b'labels', a list of integers below {CLASSES}"
        )
    if len(labels) != len(images):
        raise damage_error(
            path, "must hold one label per image", f"{len(labels)} labels, {len(images)} images"
        )
    return images, np.array(labels, dtype=np.uint8)
