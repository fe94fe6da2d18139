"""A .npy file of any size, made on the spot: rows of 256 numbers, labels of a linear rule with
errors."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

FEATURES, PIECE = 256, 20_000
SPACE = 4.6
"""Times the size of the file that must be free: the file, its arranged rows, and two scatters of
them."""


def rule() -> np.ndarray:
    return np.random.default_rng(1).normal(size=FEATURES)


def records(first: int, count: int, features: int = FEATURES) -> tuple[np.ndarray, np.ndarray]:
    """Rows of norm about 1 and their labels, a function of the arguments; ``first`` is a multiple
    of ``PIECE``."""
    rng = np.random.default_rng([7, first])
    rows = rng.standard_normal((count, features), dtype=np.float32) / np.float32(features**0.5)
    return rows, (rows @ rule()[:features] + 0.3 * rng.standard_normal(count) > 0).astype(np.int64)


def write(folder: Path, gigabytes: float) -> tuple[Path, int]:
    """The file and how many records it has; refuses where the disk has no space for it and its
    scratch files."""
    n = int(gigabytes * 1e9 / (4 * FEATURES)) // PIECE * PIECE
    free = shutil.disk_usage(folder).free
    if free < SPACE * 4 * FEATURES * n:
        raise SystemExit(
            f"{free / 1e9:.1f} GB are free in {folder}, and {SPACE * gigabytes:.1f} are needed"
        )
    path = folder / "made.npy"
    with path.open("wb") as rows, path.with_name("made.labels.npy").open("wb") as labels:
        for file, shape, kind in ((rows, (n, FEATURES), "<f4"), (labels, (n,), "<i8")):
            np.lib.format.write_array_header_1_0(
                file, {"descr": kind, "fortran_order": False, "shape": shape}
            )
        for first in range(0, n, PIECE):
            x, y = records(first, PIECE)
            rows.write(x.tobytes())
            labels.write(y.tobytes())
    return path, n
