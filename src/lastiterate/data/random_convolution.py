"""A fixed backbone without a download: two layers of random convolutions, the same for everybody.

It has seen no data, so that its features are a public map of each image by itself, as a pretrained network's are.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

SEED, FIRST, SECOND, GRID, CHUNK = 20_240_601, 24, 48, 4, 128
"""The filters' seed, their numbers, cells per side that responses are averaged over, images at once."""


@lru_cache(maxsize=4)
def filters(channels: int) -> tuple[np.ndarray, np.ndarray]:
    """Filters (25 channels, FIRST) and (9 FIRST, SECOND), each of mean 0 and norm 1."""
    rng = np.random.default_rng(SEED)

    def drawn(rows: int, columns: int) -> np.ndarray:
        found = rng.normal(size=(rows, columns))
        found -= found.mean(axis=0)
        return (found / np.linalg.norm(found, axis=0)).astype(np.float32)

    return drawn(25 * channels, FIRST), drawn(9 * FIRST, SECOND)


def _convolved(images: np.ndarray, weights: np.ndarray, side: int) -> np.ndarray:
    """Rectified responses of shape (n, height, width, filters); borders are padded with their own values."""
    pad = side // 2
    padded = np.pad(images, ((0, 0), (pad, pad), (pad, pad), (0, 0)), mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, (side, side), axis=(1, 2))  # (n, h, w, c, side, side)
    return np.maximum(windows.reshape(*windows.shape[:3], -1) @ weights, 0)


def _averaged(responses: np.ndarray, cells: int) -> np.ndarray:
    """Means over about cells x cells parts of each image."""
    edges = [np.unique(np.linspace(0, size, min(cells, size) + 1).astype(int))[:-1] for size in responses.shape[1:3]]
    sums = np.add.reduceat(np.add.reduceat(responses, edges[0], axis=1), edges[1], axis=2)
    counts = [np.diff(np.append(edge, size)) for edge, size in zip(edges, responses.shape[1:3], strict=True)]
    return sums / (counts[0][:, None] * counts[1])[..., None]


def features(images: np.ndarray) -> np.ndarray:
    """Rows (n, d) of norm 1 (0 for an image without contrast) of images (n, height, width, channels) in [0, 1]."""
    first, second = filters(images.shape[3])
    rows = list[np.ndarray]()
    for begin in range(0, len(images), CHUNK):
        part = images[begin:begin + CHUNK]
        inner = _convolved(part, first, 5)
        half = _averaged(inner, max(1, max(part.shape[1:3]) // 2))
        outer = _convolved(half.astype(np.float32), second, 3)
        rows.append(np.concatenate([_averaged(inner, GRID).reshape(len(part), -1),
                                    _averaged(outer, GRID).reshape(len(part), -1)], axis=1))
    found = np.concatenate(rows)
    norms = np.linalg.norm(found, axis=1, keepdims=True)
    return (found / np.where(norms > 0, norms, 1.0)).astype(np.float32)
