"""Files of images, their shape kept: an array (n, height, width[, channels]) of .npz or .npy, or IDX."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lastiterate.data.idx import is_idx, labels_beside, read_idx_array, read_idx_shaped
from lastiterate.data.numpy_files import labels_file, plain_array, read_archive
from lastiterate.errors import InputError

LABELS = {"X": "y", "x": "y", "images": "labels"}
"""Names of images and of their labels in an archive; PART_images has PART_labels, x_PART has y_PART."""


@dataclass(frozen=True, eq=False)
class Images:
    """Pixels (n, height, width, channels) float32 in [0, 1], and labels (n,) or ``None``; ``part``: "" or train ..."""

    part: str
    pixels: np.ndarray
    labels: np.ndarray | None


def read_images(path: Path) -> list[Images]:
    """All sets of images in a file. Errors: ``InputError`` for files that hold none, or other shapes."""
    if not path.is_file():
        raise InputError("images", "must be an existing file", str(path))
    if path.suffix == ".npz":
        return _archive(path)
    if path.suffix == ".npy":
        beside = labels_file(path)
        return [_checked("", plain_array(path), plain_array(beside) if beside.is_file() else None)]
    if is_idx(path):
        beside = labels_beside(path)
        return [_checked("", read_idx_shaped(path), None if beside is None else read_idx_array(beside))]
    raise InputError("images", "must be a .npz, .npy or IDX file of images", path.name)


def _archive(path: Path) -> list[Images]:
    arrays = read_archive(path)
    images = list[Images]()
    for name, array in arrays.items():
        if array.ndim >= 3:
            part = name.removesuffix("_images").removeprefix("x_") if name not in LABELS else ""
            labels = next((arrays[key] for key in (LABELS.get(name, ""), f"{part}_labels", f"y_{part}")
                           if key in arrays), None)
            images.append(_checked(part, array, labels))
    if not images:
        raise InputError("images", "must hold an array of shape (n, height, width) or with channels behind",
                         sorted(arrays))
    return images


def _checked(part: str, array: np.ndarray, labels: np.ndarray | None) -> Images:
    if array.ndim == 3:
        array = array[..., None]
    if array.ndim != 4 or array.shape[3] > 4 or min(array.shape) < 1:
        raise InputError("images", "must have shape (n, height, width) or (n, height, width, channels)", array.shape)
    if array.dtype == np.uint8:
        array = array / np.float32(255)
    pixels = np.asarray(array, dtype=np.float32)
    if not np.isfinite(pixels).all() or pixels.min() < 0 or pixels.max() > 1:
        raise InputError("images", "must be bytes, or numbers in [0, 1]", str(array.dtype))
    if labels is not None and len(labels) != len(pixels):
        raise InputError("labels", f"must be one for each of {len(pixels)} images", len(labels))
    return Images(part, pixels, None if labels is None else labels.ravel())
