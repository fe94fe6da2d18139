"""Real data for the items that ask for them: files below ``--data-dir``, read when an item runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lastiterate.data.idx import read_array
from lastiterate.errors import InputError

CIFAR, PNEUMONIA = "cifar10_features.npz", "pneumoniamnist.npz"
MNIST = tuple(f"mnist/{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))

Labelled = tuple[np.ndarray, np.ndarray]
"""Rows (n, d) and labels (n,)."""


@dataclass(frozen=True, eq=False)
class RealSet:
    """Rows (n, d) of norm at most 1, labels, and a test part. ``scale``: the public number rows were divided by."""

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
    found = np.load(folder_of(data_dir) / CIFAR)
    x, y, x_test, y_test = (np.asarray(found[name]) for name in ("x_train", "y_train", "x_test", "y_test"))
    return RealSet("CIFAR-10 features", (x / 24).astype(np.float32), y.astype(int).ravel(),
                   (x_test / 24).astype(np.float32), y_test.astype(int).ravel(), 24.0)


def pneumonia(data_dir: Path | None) -> RealSet:
    """Pixels of PneumoniaMNIST over 255; rows of norm at most 28."""
    found = np.load(folder_of(data_dir) / PNEUMONIA)

    def part(name: str) -> Labelled:
        images = np.asarray(found[f"{name}_images"])
        return ((images.reshape(len(images), -1) / 255 / 28).astype(np.float32),
                np.asarray(found[f"{name}_labels"]).astype(int).ravel())

    return RealSet("PneumoniaMNIST pixels", *part("train"), *part("test"), 28.0)


def mnist_images(data_dir: Path | None, part: str, n: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Pixels (n, 28, 28) in 0..255 and labels (n,); part: train or t10k."""
    folder = folder_of(data_dir) / "mnist"
    pixels = read_array(folder / f"{part}-images-idx3-ubyte.gz")[:n]
    return pixels, read_array(folder / f"{part}-labels-idx1-ubyte.gz")[:n].astype(np.int64)


def unit_rows(x: np.ndarray) -> np.ndarray:
    """Every row scaled to norm 1, float64: a public map of each record by itself."""
    rows = np.asarray(x, np.float64)
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def pooled(images: np.ndarray) -> np.ndarray:
    """Means over 4 x 4 pixels of images (n, 28, 28), centred in each image, rows of norm 1; (n, 49)."""
    means = np.asarray(images, np.float64).reshape(len(images), 7, 4, 7, 4).mean(axis=(2, 4)).reshape(len(images), -1)
    return unit_rows(means - means.mean(axis=1, keepdims=True))
