"""Synthetic pictures of shapes that hide each other (dead leaves), from a public seed alone."""

from __future__ import annotations

import math

import numpy as np

# Dead leaves: Matheron 1968; Lee, Mumford and Huang, "Occlusion models for natural images", IJCV
# 2001: shapes whose sizes have density r^-3 and that hide each other have the statistics of
# natural images at all scales. Baradad et al., "Learning to see by looking at noise", NeurIPS 2021,
# learn from such pictures.
#
# Every machine draws the same pictures: random numbers are integers of a generator whose stream
# NumPy keeps, and pixels need only operations that IEEE 754 rounds in one way, but for the sines of
# angles, in double precision. Pixels are rounded to bytes at the end.

SIDE = 32
"""Pixels of a side; sizes of shapes are stated for it, at twice the resolution."""
FINER = 2
SHAPES, SMALLEST, LARGEST = 60, 3.0, 50.0
BRIGHTNESS, CONTRAST, CHROMA = (70.0, 180.0), 60.0, 20.0
SLOPE, RIPPLE, TEXTURED, ROUND = 20.0, 18.0, 0.3, 0.6
CHUNK = 64
"""Pictures that are drawn at once."""
BOXES = (20, 28, 40)
"""Sides of the boxes that small shapes are drawn in."""


def uniform(seed: int, stream: int, *shape: int) -> np.ndarray:
    """Numbers in [0, 1), float64, the same on every machine and for every version of NumPy."""
    raw = np.random.PCG64(np.random.SeedSequence((seed, stream))).random_raw(int(np.prod(shape)))
    return (raw >> np.uint64(11)).astype(np.float64).reshape(shape) * 2.0**-53


def dead_leaves(seed: int, first: int, pictures: int, side: int, channels: int) -> np.ndarray:
    """Pictures ``first`` to ``first + pictures`` of a seed: bytes (pictures, side, side, channels)."""
    parts = [
        _draw(seed, at, min(CHUNK, first + pictures - at), side, channels)
        for at in range(first, first + pictures, CHUNK)
    ]
    return np.concatenate(parts)


def _draw(seed: int, first: int, n: int, side: int, channels: int) -> np.ndarray:
    wide, larger = FINER * side, max(1.0, side / SIDE)
    shapes, own, each = round(SHAPES * larger**2), 3 + 5 * channels, 16 + 3 * channels
    drawn = np.stack([uniform(seed, first + i, own + shapes * each) for i in range(n)])
    whole, single = drawn[:, :own], drawn[:, own:].reshape(n, shapes, each)
    mean = BRIGHTNESS[0] + (BRIGHTNESS[1] - BRIGHTNESS[0]) * whole[:, 0]
    tint = CHROMA * _bell(whole[:, 3 : 3 + 3 * channels].reshape(n, channels, 3))
    slopes = whole[:, 1:3, None] + 0.3 * whole[:, 3 + 3 * channels :].reshape(n, 2, channels)
    down, across = np.moveaxis(2 * CONTRAST / wide * (slopes - 0.65), 1, 0).astype(np.float32)
    grid = np.arange(wide, dtype=np.float32) + np.float32(0.5)
    centred = (grid - np.float32(wide / 2))[:, None]
    picture = (mean[:, None] + tint).astype(np.float32)[:, None, None]
    picture = picture + down[:, None, None] * centred[:, None] + across[:, None, None] * centred
    small = SMALLEST**-2
    radii = 1 / np.sqrt(small - single[:, :, 0] * (small - (LARGEST * larger) ** -2))
    for at in range(shapes):
        u, radius = single[:, at], radii[:, at]
        root = np.sqrt(0.35 + 0.65 * u[:, 2])
        reach = radius / root * np.where(u[:, 5] < ROUND, 1.0, math.sqrt(2)) + 4
        fill = (
            (mean + CONTRAST * _bell(u[:, 7:10]))[:, None]
            + tint
            + CHROMA * _bell(u[:, 16:].reshape(n, channels, 3))
        )
        box = np.full(n, wide)
        for size in BOXES[::-1]:
            box[2 * reach + 2 < size] = min(size, wide)
        for size in np.unique(box):
            _paint(picture, np.flatnonzero(box == size), int(size), u, radius, root, fill)
    fine = picture.reshape(n, side, FINER, side, FINER, channels)
    mixed = sum(fine[:, :, i, :, j] for i in range(FINER) for j in range(FINER))
    return np.clip(np.rint(mixed / np.float32(FINER**2)), 0, 255).astype(np.uint8)


def _paint(
    picture: np.ndarray,
    places: np.ndarray,
    box: int,
    u: np.ndarray,
    radius: np.ndarray,
    root: np.ndarray,
    fill: np.ndarray,
) -> None:
    """Draw a shape on each of some pictures, in a box of pixels around its centre."""

    def as_field(numbers: np.ndarray) -> np.ndarray:
        return numbers[places].astype(np.float32)[:, None, None]

    u = u[places]
    wide, every = picture.shape[1], np.arange(box)
    centre = u[:, 3:5] * wide
    corner = np.clip(np.rint(centre - box / 2), 0, wide - box).astype(np.int64)
    rows, columns = (corner[:, i, None] + every for i in range(2))
    y, x = (
        (pixel + (0.5 - middle[:, None])).astype(np.float32)
        for pixel, middle in zip((rows, columns), centre.T, strict=True)
    )
    y, x = y[:, :, None], x[:, None]
    cos, sin = (f(np.pi * u[:, 1]).astype(np.float32)[:, None, None] for f in (np.cos, np.sin))
    long, short = as_field(radius / root), as_field(radius * root)
    along = cos * x + sin * y
    left, up = np.abs(along) / long, np.abs(cos * y - sin * x) / short
    is_round = (u[:, 5] < ROUND)[:, None, None]
    round_reach: np.ndarray = np.sqrt(left * left + up * up)
    reach: np.ndarray = np.where(is_round, round_reach, np.maximum(left, up))
    soft = (0.7 + 1.6 * u[:, 6] ** 2).astype(np.float32)[:, None, None]
    cover = np.clip((1 - reach) * short / soft + np.float32(0.5), 0, 1)
    tilt = np.where(u[:, 10] < TEXTURED, SLOPE * (2 * u[:, 11] - 1), 0).astype(np.float32)
    wave = np.where(u[:, 12] < TEXTURED, 8 * RIPPLE * u[:, 13], 0).astype(np.float32)
    period, phase = ((3 + 12 * u[:, 14]).astype(np.float32), u[:, 15].astype(np.float32))
    turns = along / period[:, None, None] + phase[:, None, None]
    turns -= np.floor(turns) + np.float32(0.5)
    ripple = turns * (1 - 2 * np.abs(turns))  # parabolas for a sine
    shade = tilt[:, None, None] * along / long + wave[:, None, None] * ripple
    at = (places[:, None, None] * wide + rows[:, :, None]) * wide + columns[:, None]
    pixels = picture.reshape(wide * wide * len(picture), -1)  # a view
    under = pixels.take(at, axis=0)
    colour = fill[places].astype(np.float32)[:, None, None] + shade[..., None]
    pixels[at] = under + cover[..., None] * (colour - under)


def _bell(numbers: np.ndarray) -> np.ndarray:
    """Sums of three uniform numbers with mean 0 and variance 1, nearly normal."""
    return 2 * (numbers.sum(axis=-1) - 1.5)
