"""NumPy archives and arrays, IDX files, files of images and CIFAR-10's binary batches."""

from __future__ import annotations

import gzip
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from io import BufferedIOBase, BufferedReader
from pathlib import Path
from typing import Any, final

import numpy as np

from lastiterate.data.table import FormatFacts, Table, array_table, damage_error
from lastiterate.errors import InputError
from lastiterate.limits import open_unpacked, refuse_beyond

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


# IDX files, gzipped or not: the format of MNIST and its relatives (LeCun, Cortes and Burges, "The
# MNIST database"). Two zero bytes, a type, the number of dimensions, then each size as a
# big-endian 32-bit integer, then the values, big-endian, the last index running fastest.

TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
BYTES = FormatFacts(0, 255, "a pixel is one byte")
DIMENSIONS = 32
"""Sizes in a header, at most; images in colour have four."""
_NAME = re.compile(r"[-.]idx\d")
_IMAGES = re.compile(r"images([-.])idx\d-\w+?(\.gz)?$")
_BROKEN = (gzip.BadGzipFile, EOFError, zlib.error)
_DEFLATE = (
    1040  # DEFLATE makes at most 258 bytes of 2 bits: no file grows by more than a factor 1032
)


def is_idx(path: Path) -> bool:
    """By name (...idx3...), or by the first four bytes."""
    if _NAME.search(path.name):
        return True
    with open_unpacked(path) as file:
        try:
            head = file.read(4)
        except _BROKEN:
            return False
    return len(head) == 4 and head[:2] == b"\0\0" and head[2] in TYPES and head[3] > 0


def labels_name(path: Path) -> str | None:
    """Return the name of the labels file for a file of images, where its name leads to one."""
    name, changed = _IMAGES.subn(r"labels\1idx1-ubyte", path.name)
    return name if changed else None


def find_labels_file(path: Path) -> Path | None:
    """Find ``P-labels-idx1-ubyte[.gz]`` in the folder of ``P-images-idx3-ubyte[.gz]``; the same
    kind first, None if there is none."""
    name = labels_name(path)
    if name is None:
        return None
    choices = [path.with_name(name), path.with_name(name + ".gz")]
    if path.suffix == ".gz":
        choices.reverse()
    return next((choice for choice in choices if choice.is_file()), None)


def read_idx_array(path: Path) -> np.ndarray:
    """The array of an IDX file, in the machine's byte order; (n,) or, with all further dimensions
    as one, (n, d)."""
    array = read_idx_shaped(path)
    return array if array.ndim == 1 else array.reshape(len(array), -1)


def read_idx_shaped(path: Path) -> np.ndarray:
    """The same with the dimensions that the file states."""
    array = idx_array(path)
    refuse_beyond(array.bytes if array.packed else 0, path)
    return next(array.parts(array.shape[0], 0))


@final
@dataclass(frozen=True)
class MappedArray:
    """An array (n, ...) that lies in a file from byte ``begin`` on, and ends with it; ``rule``: what
    is said of a file of another length."""

    path: Path
    begin: int
    dtype: np.dtype
    shape: tuple[int, ...]
    rule: str
    packed: bool = False

    @property
    def bytes(self) -> int:
        """Bytes of the array."""
        return self.dtype.itemsize * math.prod(self.shape)

    def parts(self, most: int, first: int) -> Iterator[np.ndarray]:
        """Records from ``first`` on, ``most`` at a time, in the machine's byte order; read, not
        mapped."""
        size = self.dtype.itemsize * math.prod(self.shape[1:])
        with open_unpacked(self.path) as file:
            try:
                file.seek(self.begin + first * size)
                for at in range(first, self.shape[0], most):
                    many = min(most, self.shape[0] - at)
                    values = np.empty(many * size, np.uint8)
                    self._fill(file, values)
                    if at + many == self.shape[0] and file.read(1):  # gzip checks its checksum too
                        raise damage_error(self.path, self.rule)
                    records = values.view(self.dtype).reshape(many, *self.shape[1:])
                    yield records.astype(self.dtype.newbyteorder("="), copy=False)
            except _BROKEN as error:
                raise damage_error(self.path, "must be a complete gzip file", error) from None

    def _fill(self, file: BufferedIOBase, values: np.ndarray) -> None:
        """Read into an array of bytes, piece by piece and without a second array."""
        filled = 0
        while filled < values.size:
            got = file.readinto(values.data[filled : filled + 2**20])
            if not got:
                raise damage_error(self.path, self.rule)
            filled += got


def idx_array(path: Path) -> MappedArray:
    """Where the array of an IDX file lies, from its header."""
    with open_unpacked(path) as file:
        try:
            dtype, shape = read_head(file, path)
        except _BROKEN as error:
            raise damage_error(path, "must be a complete gzip file", error) from None
        packed = isinstance(file, gzip.GzipFile)
    count = math.prod(shape) * dtype.itemsize
    array = MappedArray(path, 4 + 4 * len(shape), dtype, shape, _rule_for_bytes(count), packed)
    if not packed and array.begin + count != path.stat().st_size:
        raise damage_error(path, array.rule)
    return array


def read_head(file: gzip.GzipFile | BufferedReader, path: Path) -> tuple[np.dtype, tuple[int, ...]]:
    """Type and shape of the array behind an IDX header; sizes that the file cannot hold are
    refused."""
    head = file.read(4)
    if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in TYPES or head[3] == 0:
        raise damage_error(
            path,
            "must be an IDX file: two zero bytes, a type, the number of dimensions",
            head.hex(" "),
        )
    if head[3] > DIMENSIONS:
        raise damage_error(
            path, f"must state at most {DIMENSIONS} sizes in its IDX header", head[3]
        )
    sizes = file.read(4 * head[3])
    if len(sizes) < 4 * head[3]:
        raise damage_error(path, f"must state {head[3]} sizes in its IDX header")
    dtype, shape = np.dtype(TYPES[head[2]]), struct.unpack(f">{head[3]}I", sizes)
    count, packed = math.prod(shape) * dtype.itemsize, isinstance(file, gzip.GzipFile)
    if not 0 < count <= path.stat().st_size * (_DEFLATE if packed else 1):
        raise damage_error(path, _rule_for_bytes(count))
    return dtype, shape


def _rule_for_bytes(count: int) -> str:
    return f"must hold the values that its IDX header states ({count} bytes), no more and no less"


# NumPy's own files: .npz with features and labels inside, .npy with the labels in a second file.

FEATURES, LABELS = ("X", "x", "x_train", "train_images"), ("y", "y_train", "train_labels")
"""Names of arrays, the first that is there counts; the last as MedMNIST has them."""
NPZ, NPY = (
    "must be a complete .npz archive of plain arrays",
    "must be a complete .npy file of one plain array",
)


def read_archive(
    path: Path, chosen: Callable[[list[str]], Iterable[str]] = list
) -> dict[str, np.ndarray]:
    """The arrays of a .npz file that ``chosen`` picks from the names inside; all of them by
    default."""
    _starts(path, b"PK", NPZ)
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            names = list(chosen(list(archive.files)))
            sizes = {
                each.filename.removesuffix(".npy"): each.file_size
                for each in archive.zip.infolist()
            }
            refuse_beyond(sum(sizes[name] for name in names), path)
            return {name: np.asarray(archive[name]) for name in names}
    except InputError:
        raise
    except Exception as error:  # zipfile, zlib and NumPy raise a dozen kinds on damaged bytes
        raise damage_error(path, NPZ, error) from None


def read_npz(path: Path) -> Table:
    """``X`` (or ``x``, ``x_train``, ``train_images``), shape (n, ...), and ``y`` (or ``y_train``,
    ``train_labels``), n labels; the rest is not read."""

    def choose_names(inside: list[str]) -> list[str]:
        names = [next((key for key in keys if key in inside), None) for keys in (FEATURES, LABELS)]
        if names[0] is None:
            raise InputError(
                "data file",
                "needs an array 'X' (or 'x', 'x_train', 'train_images')",
                sorted(inside),
                "write it with numpy.savez(file, X=..., y=...)",
            )
        return [key for key in names if key is not None]

    features, *answers = read_archive(path, choose_names).values()
    return array_table(
        features, answers[0] if answers else None, answers_in="the array 'y' (or 'y_train')"
    )


def labels_file(path: Path) -> Path:
    """Where the labels of NAME.npy lie."""
    return path.with_name(path.stem + ".labels.npy")


def read_npy(path: Path) -> Table:
    """Read features (n, ...) from NAME.npy, and n labels from NAME.labels.npy where that exists."""
    labels = labels_file(path)
    answers = plain_array(labels) if labels.is_file() else None
    return array_table(plain_array(path), answers, answers_in=labels.name)


def plain_array(path: Path) -> np.ndarray:
    """The file's one array, mapped into memory and not copied; the file ends where the array ends."""
    return np.asarray(map_array(path))


def map_array(path: Path) -> np.memmap:
    """The same as NumPy maps it, which knows where in the file it begins."""
    _starts(path, b"\x93NUMPY", NPY)
    try:
        array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # whatever NumPy's header parser raises on damaged bytes
        raise damage_error(path, NPY, error) from None
    if not isinstance(array, np.memmap) or array.offset + array.nbytes != path.stat().st_size:
        raise damage_error(path, "must be a .npy file of one plain array and nothing more")
    return array


def _starts(path: Path, magic: bytes, rule: str) -> None:
    """What does not even start as its kind does; NumPy would take it for a pickle, and say how to
    run it."""
    with path.open("rb") as file:
        if file.read(len(magic)) != magic:
            raise damage_error(path, rule)


# Files of images, their shape kept: an array (n, height, width[, channels]) of .npz or .npy, or
# IDX.

IMAGE_LABELS = {"X": "y", "x": "y", "images": "labels"}
"""Names of images and of their labels in an archive; PART_images has PART_labels, x_PART has
y_PART."""


@dataclass(frozen=True, eq=False)
class Images:
    """Images of ``shape`` (n, height, width, channels), which ``read`` gives as they lie in the
    file, so many at a time, and labels (n,) or ``None``; ``part``: "" or train ..."""

    part: str
    shape: tuple[int, ...]
    labels: np.ndarray | None
    read: Callable[[int], Iterator[np.ndarray]]

    def __len__(self) -> int:
        return self.shape[0]

    def pieces(self, most: int) -> Iterator[np.ndarray]:
        """Pixels (m, height, width, channels) float32 in [0, 1], ``most`` images at a time.
        Errors: other numbers."""
        for array in self.read(most):
            part = array.reshape(-1, *self.shape[1:])
            if part.dtype == np.uint8:
                yield part / np.float32(255)
                continue
            pixels = np.asarray(part, dtype=np.float32)
            if not np.isfinite(pixels).all() or pixels.min() < 0 or pixels.max() > 1:
                raise InputError("images", "must be bytes, or numbers in [0, 1]", str(part.dtype))
            yield pixels


def read_images(path: Path) -> list[Images]:
    """All sets of images in a file, of which the labels alone are read. Errors: ``InputError`` for
    files that hold none, or other shapes."""
    if not path.is_file():
        raise InputError("images", "must be an existing file", str(path))
    if path.suffix == ".npz":
        return _archive(path)
    if path.suffix == ".npy":
        labels = labels_file(path)
        array = map_array(path)
        known = plain_array(labels) if labels.is_file() else None
        return [_describe_images("", array.shape, array.dtype, known, _open_npy(path, array))]
    if is_idx(path):
        labels, array = find_labels_file(path), idx_array(path)
        known = None if labels is None else read_idx_array(labels)
        return [
            _describe_images("", array.shape, array.dtype, known, partial(array.parts, first=0))
        ]
    raise InputError("images", "must be a .npz, .npy or IDX file of images", path.name)


def _open_npy(path: Path, array: np.memmap) -> Callable[[int], Iterator[np.ndarray]]:
    """Read the records of a mapped array; those that lie one behind the other without the map,
    whose pages would count as memory of the program."""
    if array.flags.c_contiguous:
        lies = MappedArray(path, array.offset, array.dtype, array.shape, NPY)
        return partial(lies.parts, first=0)
    return lambda most: (
        np.asarray(array[first : first + most]) for first in range(0, len(array), most)
    )


def _archive(path: Path) -> list[Images]:
    """The sets of images in a .npz file."""
    _starts(path, b"PK", NPZ)
    with _explain_damage(path), zipfile.ZipFile(path) as archive:
        packed = [each.file_size for each in archive.infolist() if each.compress_type]
        refuse_beyond(sum(packed), path)
        heads = {
            name.removesuffix(".npy"): _read_head(archive, name)
            for name in archive.namelist()
            if name.endswith(".npy")
        }
    found = list[tuple[str, str, str | None]]()
    for name, (shape, _, _) in heads.items():
        if len(shape) >= 3:
            part = (
                name.removesuffix("_images").removeprefix("x_") if name not in IMAGE_LABELS else ""
            )
            keys = (IMAGE_LABELS.get(name, ""), f"{part}_labels", f"y_{part}")
            found.append((name, part, next((key for key in keys if key in heads), None)))
    if not found:
        raise InputError(
            "images",
            "must hold an array of shape (n, height, width) or with channels behind",
            sorted(heads),
        )
    known = read_archive(path, lambda _: [key for *_, key in found if key is not None])
    return [
        _describe_images(
            part,
            *heads[name][:2],
            None if key is None else known[key],
            partial(_read_member, path, name, *heads[name]),
        )
        for name, part, key in found
    ]


Head = tuple[tuple[int, ...], np.dtype, bool]
"""Shape and type of an array in an archive, and whether its first index runs fastest."""


def _read_head(archive: zipfile.ZipFile, name: str) -> Head:
    with archive.open(name) as file:
        return _skip_head(file)


def _skip_head(file: Any) -> Head:
    """The head of NumPy's format; the file is behind it then."""
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    shape, backwards, dtype = readers[np.lib.format.read_magic(file)](file)
    if dtype.hasobject:
        raise ValueError("objects")
    return shape, dtype, backwards


def _read_member(
    path: Path, name: str, shape: tuple[int, ...], dtype: np.dtype, backwards: bool, most: int
) -> Iterator[np.ndarray]:
    """The records of an array in an archive, unpacked as they are asked for."""
    if backwards:  # its records lie nowhere in one piece
        array = read_archive(path, lambda _: [name])[name]
        yield from (array[first : first + most] for first in range(0, len(array), most))
        return
    size = dtype.itemsize * math.prod(shape[1:])
    with (
        _explain_damage(path),
        zipfile.ZipFile(path) as archive,
        archive.open(f"{name}.npy") as file,
    ):
        _skip_head(file)
        for first in range(0, shape[0], most):
            many = min(most, shape[0] - first)
            yield np.frombuffer(file.read(many * size), dtype).reshape(many, *shape[1:])
        if file.read(1):  # its checksum is compared here too
            raise damage_error(path, NPZ)


@contextmanager
def _explain_damage(path: Path) -> Generator[None]:
    """Say in one sentence that an archive is damaged."""
    try:
        yield
    except (InputError, GeneratorExit):
        raise
    except Exception as error:  # zipfile, zlib and NumPy raise a dozen kinds on damaged bytes
        raise damage_error(path, NPZ, error) from None


def _describe_images(
    part: str,
    shape: tuple[int, ...],
    dtype: np.dtype,
    labels: np.ndarray | None,
    read: Callable[[int], Iterator[np.ndarray]],
) -> Images:
    """A set of images. Errors: other shapes, numbers that are no pixels, labels of others."""
    whole = (*shape, 1) if len(shape) == 3 else shape
    if len(whole) != 4 or whole[3] > 4 or min(whole) < 1:
        raise InputError(
            "images",
            "must have shape (n, height, width) or (n, height, width, channels)",
            shape,
        )
    if dtype.kind not in "biuf":
        raise InputError("images", "must be bytes, or numbers in [0, 1]", str(dtype))
    if labels is not None and len(labels) != whole[0]:
        raise InputError("labels", f"must be one for each of {whole[0]} images", len(labels))
    return Images(part, whole, None if labels is None else labels.ravel(), read)
