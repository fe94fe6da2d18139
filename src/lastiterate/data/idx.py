"""IDX files, gzipped or not: the format of MNIST and its relatives (LeCun, Cortes and Burges, "The MNIST database").

Two zero bytes, a type, the number of dimensions, then each size as a big-endian 32-bit integer, then the values,
big-endian, the last index running fastest.
"""

from __future__ import annotations

import gzip
import math
import re
import struct
import zlib
from io import BufferedIOBase, BufferedReader
from pathlib import Path

import numpy as np

from lastiterate.data.table import FormatFacts, Table, array_table, damaged
from lastiterate.data.unpack import opened, refuse_beyond
from lastiterate.errors import InputError

TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
BYTES = FormatFacts(0, 255, "a pixel is one byte")
DIMENSIONS = 32
"""Sizes in a header, at most; images in colour have four."""
_NAME = re.compile(r"[-.]idx\d")
_IMAGES = re.compile(r"images([-.])idx\d-\w+?(\.gz)?$")
_BROKEN = (gzip.BadGzipFile, EOFError, zlib.error)
_DEFLATE = 1040  # DEFLATE makes at most 258 bytes of 2 bits: no file grows by more than a factor 1032


def is_idx(path: Path) -> bool:
    """By name (...idx3...), or by the first four bytes."""
    if _NAME.search(path.name):
        return True
    with opened(path) as file:
        try:
            head = file.read(4)
        except _BROKEN:
            return False
    return len(head) == 4 and head[:2] == b"\0\0" and head[2] in TYPES and head[3] > 0


def read_idx(path: Path) -> Table:
    """Rows or images (n, ...) of raw values; labels from the file beside it that the name leads to, if it exists."""
    images = read_idx_shaped(path)
    if images.ndim < 2:
        raise InputError("data file", "must hold images (or rows), and not their labels", path.name,
                         "name the ...-images-idx3-ubyte file; the labels beside it are found")
    beside = labels_beside(path)
    answers = None if beside is None else read_idx_array(beside)
    known = BYTES if images.dtype == np.uint8 else None
    named = _labels_name(path)
    where = "a file beside it, named like train-images-idx3-ubyte and train-labels-idx1-ubyte"
    return array_table(images, answers, answers_in=where if named is None else named, facts=known)


def _labels_name(path: Path) -> str | None:
    name, changed = _IMAGES.subn(r"labels\1idx1-ubyte", path.name)
    return name if changed else None


def labels_beside(path: Path) -> Path | None:
    """``P-labels-idx1-ubyte[.gz]`` beside ``P-images-idx3-ubyte[.gz]``; the same kind first, None if there is none."""
    name = _labels_name(path)
    if name is None:
        return None
    choices = [path.with_name(name), path.with_name(name + ".gz")]
    if path.suffix == ".gz":
        choices.reverse()
    return next((choice for choice in choices if choice.is_file()), None)


def read_idx_array(path: Path) -> np.ndarray:
    """The array of an IDX file, in the machine's byte order; (n,) or, with all further dimensions as one, (n, d)."""
    array = read_idx_shaped(path)
    return array if array.ndim == 1 else array.reshape(len(array), -1)


def read_idx_shaped(path: Path) -> np.ndarray:
    """The same with the dimensions that the file states."""
    with opened(path) as file:
        try:
            return _parse(file, path)
        except _BROKEN as error:
            raise damaged(path, "must be a complete gzip file", error) from None


def read_head(file: gzip.GzipFile | BufferedReader, path: Path) -> tuple[np.dtype, tuple[int, ...]]:
    """Type and shape of the array behind an IDX header; sizes that the file cannot hold are refused."""
    head = file.read(4)
    if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in TYPES or head[3] == 0:
        raise damaged(path, "must be an IDX file: two zero bytes, a type, the number of dimensions", head.hex(" "))
    if head[3] > DIMENSIONS:
        raise damaged(path, f"must state at most {DIMENSIONS} sizes in its IDX header", head[3])
    sizes = file.read(4 * head[3])
    if len(sizes) < 4 * head[3]:
        raise damaged(path, f"must state {head[3]} sizes in its IDX header")
    dtype, shape = np.dtype(TYPES[head[2]]), struct.unpack(f">{head[3]}I", sizes)
    count, packed = math.prod(shape) * dtype.itemsize, isinstance(file, gzip.GzipFile)
    if not 0 < count <= path.stat().st_size * (_DEFLATE if packed else 1):
        raise _other_size(path, count)
    return dtype, shape


def _other_size(path: Path, count: int) -> InputError:
    return damaged(path, f"must hold the values that its IDX header states ({count} bytes), no more and no less")


def _parse(file: gzip.GzipFile | BufferedReader, path: Path) -> np.ndarray:
    dtype, shape = read_head(file, path)
    count = math.prod(shape) * dtype.itemsize
    if isinstance(file, gzip.GzipFile):
        refuse_beyond(count, path)
    values = np.empty(count, dtype=np.uint8)
    filled = _fill(file, values)
    if filled < count or file.read(1):  # asking for one more byte also makes gzip check its checksum
        raise _other_size(path, count)
    return values.view(dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=False)


def _fill(file: BufferedIOBase, values: np.ndarray) -> int:
    """Read into an array of bytes, piece by piece and without a second array; how many came."""
    buffer, filled = values.data, 0
    while filled < len(buffer) and (got := file.readinto(buffer[filled:filled + 2**20])):  # gzip passes each piece on
        filled += got
    return filled
