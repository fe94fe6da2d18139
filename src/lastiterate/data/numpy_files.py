"""NumPy's own files: .npz with features and labels inside, .npy with the labels in a file beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from lastiterate.data.table import Table, array_table, damaged
from lastiterate.data.unpack import refuse_beyond
from lastiterate.errors import InputError

FEATURES, LABELS = ("X", "x", "x_train", "train_images"), ("y", "y_train", "train_labels")
"""Names of arrays, the first that is there counts; the last as MedMNIST has them."""
NPZ, NPY = "must be a complete .npz archive of plain arrays", "must be a complete .npy file of one plain array"


def read_archive(path: Path, chosen: Callable[[list[str]], Iterable[str]] = list) -> dict[str, np.ndarray]:
    """The arrays of a .npz file that ``chosen`` picks from the names inside; all of them by default."""
    _starts(path, b"PK", NPZ)
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            refuse_beyond(sum(entry.file_size for entry in archive.zip.infolist()), path)
            return {name: np.asarray(archive[name]) for name in chosen(list(archive.files))}
    except InputError:
        raise
    except Exception as error:  # zipfile, zlib and NumPy raise a dozen kinds on damaged bytes
        raise damaged(path, NPZ, error) from None


def read_npz(path: Path) -> Table:
    """``X`` (or ``x``, ``x_train``, ``train_images``), shape (n, ...), and ``y`` (or ``y_train``, ``train_labels``), n
    labels; the rest is not read."""
    def chosen(inside: list[str]) -> list[str]:
        names = [next((key for key in keys if key in inside), None) for keys in (FEATURES, LABELS)]
        if names[0] is None:
            raise InputError("data file", "needs an array 'X' (or 'x', 'x_train', 'train_images')", sorted(inside),
                             "write it with numpy.savez(file, X=..., y=...)")
        return [key for key in names if key is not None]

    features, *answers = read_archive(path, chosen).values()
    return array_table(features, answers[0] if answers else None, answers_in="the array 'y' (or 'y_train')")


def labels_file(path: Path) -> Path:
    """Where the labels of NAME.npy lie."""
    return path.with_name(path.stem + ".labels.npy")


def read_npy(path: Path) -> Table:
    """Features (n, ...) from NAME.npy; n labels from NAME.labels.npy beside it, where that exists."""
    beside = labels_file(path)
    answers = plain_array(beside) if beside.is_file() else None
    return array_table(plain_array(path), answers, answers_in=beside.name)


def plain_array(path: Path) -> np.ndarray:
    """The file's one array, mapped into memory and not copied; the file ends where the array ends."""
    _starts(path, b"\x93NUMPY", NPY)
    try:
        array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # whatever NumPy's header parser raises on damaged bytes
        raise damaged(path, NPY, error) from None
    if not isinstance(array, np.memmap) or array.offset + array.nbytes != path.stat().st_size:
        raise damaged(path, "must be a .npy file of one plain array and nothing more")
    return np.asarray(array)


def _starts(path: Path, magic: bytes, rule: str) -> None:
    """What does not even start as its kind does; NumPy would take it for a pickle, and say how to run it."""
    with path.open("rb") as file:
        if file.read(len(magic)) != magic:
            raise damaged(path, rule)
