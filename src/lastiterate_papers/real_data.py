"""Real data for the items that ask for them: files below ``--data-dir``, read when an item runs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lastiterate.data import read_archive, read_idx_array
from lastiterate.errors import InputError

CIFAR, PNEUMONIA = "cifar10_features.npz", "pneumoniamnist.npz"
MNIST = tuple(
    f"mnist/{part}-{kind}-ubyte.gz"
    for part in ("train", "t10k")
    for kind in ("images-idx3", "labels-idx1")
)

Labelled = tuple[np.ndarray, np.ndarray]
"""Rows (n, d) and labels (n,)."""


@dataclass(frozen=True, eq=False)
class RealSet:
    """Rows (n, d) of norm at most 1, labels, and a test part. ``scale``: the public number rows
    were divided by."""

    name: str
    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    scale: float

    @property
    def classes(self) -> int:
        return int(self.y.max()) + 1

    def first(self, n: int) -> RealSet:
        """A part with at most n random records, the same for every call."""
        kept = np.random.default_rng(0).permutation(len(self.x))[:n]
        return RealSet(self.name, self.x[kept], self.y[kept], self.x_test, self.y_test, self.scale)


def folder_of(data_dir: Path | None) -> Path:
    if data_dir is None:
        raise InputError("data_dir", "must name the folder of the data", None)
    return data_dir


def present(data_dir: Path | None, *names: str) -> bool:
    """Whether a folder is named and holds all those files."""
    return data_dir is not None and all((data_dir / name).is_file() for name in names)


def cifar(data_dir: Path | None) -> RealSet:
    """Features of CIFAR-10 images; rows of norm at most 24."""
    parts = [
        part
        for kind in ("train", "test")
        for part in _labelled(data_dir, CIFAR, f"x_{kind}", f"y_{kind}", 2, 10)
    ]
    x, y, x_test, y_test = parts
    if x.shape[1] != x_test.shape[1]:
        raise _not_what(
            CIFAR,
            "must have rows of one length in both parts",
            f"{x.shape[1]} and {x_test.shape[1]}",
        )
    return RealSet(
        "CIFAR-10 features",
        (x / 24).astype(np.float32),
        y,
        (x_test / 24).astype(np.float32),
        y_test,
        24.0,
    )


def pneumonia_images(data_dir: Path | None, part: str) -> Labelled:
    """Pixels (n, 28, 28) in 0..255 and labels (n,) of PneumoniaMNIST; part: train or test."""
    return _labelled(data_dir, PNEUMONIA, f"{part}_images", f"{part}_labels", 3, 2)


def pneumonia(data_dir: Path | None) -> RealSet:
    """Pixels of PneumoniaMNIST over 255; rows of norm at most 28."""

    def part(name: str) -> Labelled:
        images, labels = pneumonia_images(data_dir, name)
        return (images.reshape(len(images), -1) / 255 / 28).astype(np.float32), labels

    return RealSet("PneumoniaMNIST pixels", *part("train"), *part("test"), 28.0)


def mnist_images(data_dir: Path | None, part: str, n: int | None = None) -> Labelled:
    """Pixels (n, 28, 28) in 0..255 and labels (n,); part: train or t10k."""
    folder = folder_of(data_dir) / "mnist"
    name, answers = (f"{part}-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1"))
    pixels, labels = read_idx_array(folder / name), read_idx_array(folder / answers)
    if pixels.ndim != 2 or pixels.shape[1] != 28 * 28:
        raise _not_what(name, "must hold images of 28 x 28 pixels", pixels.shape)
    return pixels[:n].reshape(-1, 28, 28), _checked(answers, labels, len(pixels), 10)[:n]


def check(data_dir: Path | None, names: Collection[str]) -> None:
    """Refuse files among ``names`` that are there and are not what they should be, before any work
    rests on them."""
    for reader, files in ((cifar, (CIFAR,)), (pneumonia, (PNEUMONIA,)), (_mnist, MNIST)):
        if set(files) <= set(names) and present(data_dir, *files):
            reader(data_dir)


def _mnist(data_dir: Path | None) -> None:
    for part in ("train", "t10k"):
        mnist_images(data_dir, part)


def _labelled(
    data_dir: Path | None, name: str, rows: str, answers: str, ndim: int, classes: int
) -> Labelled:
    """Two arrays of an archive: finite rows (n, ...) of ``ndim`` dimensions, and n labels in
    0..classes - 1."""

    def chosen(inside: list[str]) -> tuple[str, str]:
        if missing := [key for key in (rows, answers) if key not in inside]:
            raise _not_what(
                name, f"must hold the arrays {rows} and {answers}", "no " + " and no ".join(missing)
            )
        return rows, answers

    x, y = read_archive(folder_of(data_dir) / name, chosen).values()
    if x.ndim != ndim or min(x.shape) < 1 or x.dtype.kind not in "fiu" or not np.isfinite(x).all():
        raise _not_what(
            name, f"must hold finite numbers of {ndim} dimensions in {rows}", f"{x.dtype} {x.shape}"
        )
    return x, _checked(name, y, len(x), classes)


def _checked(name: str, labels: np.ndarray, n: int, classes: int) -> np.ndarray:
    found = labels.ravel()
    whole = found.dtype.kind in "fiu" and bool((found == np.floor(found)).all())
    if len(found) != n or not whole or (n and not 0 <= found.min() <= found.max() < classes):
        raise _not_what(
            name,
            f"must hold one label in 0..{classes - 1} for each of {n} records",
            f"{len(found)} labels",
        )
    return found.astype(np.int64)


def _not_what(name: str, rule: str, value: object) -> InputError:
    return InputError(name, rule, value, "the file is another one, or damaged; take a fresh copy")


def unit_rows(x: np.ndarray) -> np.ndarray:
    """Every row scaled to norm 1, float64: a public map of each record by itself."""
    rows = np.asarray(x, np.float64)
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def pooled(images: np.ndarray) -> np.ndarray:
    """Means over 4 x 4 pixels of images (n, 28, 28), centred in each image, rows of norm 1; (n,
    49)."""
    means = (
        np.asarray(images, np.float64)
        .reshape(len(images), 7, 4, 7, 4)
        .mean(axis=(2, 4))
        .reshape(len(images), -1)
    )
    return unit_rows(means - means.mean(axis=1, keepdims=True))
