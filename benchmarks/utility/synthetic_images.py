"""Synthetic pictures, for choosing constants of maps of images without a look at any real set.

Four kinds: pen strokes, textures, coloured things before a background, and soft scans of two
classes that differ little. All pixels lie in 0..1; every kind varies light and contrast from image
to image.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

TEST = 2000  #: images kept for testing
Pictures = tuple[np.ndarray, np.ndarray]
"""Images (n, side, side, channels) float32 and labels (n,)."""
Maker = Callable[[np.random.Generator, int, int], Pictures]


def _moved(
    rng: np.random.Generator, points: np.ndarray, n: int, turn: float, shift: float
) -> np.ndarray:
    """Points (n, k, 2) in 0..1 turned, sheared, scaled and shifted a little, anew for each of n
    images."""
    angle, size = turn * rng.normal(size=n), np.exp(0.12 * rng.normal(size=(n, 2)))
    shear = 0.2 * rng.normal(size=n)
    matrix = np.stack(
        [np.cos(angle), shear - np.sin(angle), np.sin(angle), np.cos(angle)], -1
    ).reshape(n, 2, 2)
    return (
        np.einsum("nij,nkj->nki", matrix * size[:, None], points - 0.5)
        + 0.5
        + shift * rng.normal(size=(n, 1, 2))
    )


def _light(rng: np.random.Generator, images: np.ndarray, least: float) -> np.ndarray:
    """Another gain, offset and bend for every image."""
    n = (len(images), 1, 1, 1)
    gain = rng.uniform(least, 1, size=n)
    return (
        gain * np.clip(images, 0, 1) ** np.exp(0.2 * rng.normal(size=n))
        + rng.uniform(0, 1, size=n) * (1 - gain)
    ).astype(np.float32)


def strokes(rng: np.random.Generator, n: int, side: int) -> Pictures:
    """Ten signs, each of two curved pen strokes, written by shaky hands."""
    y = rng.integers(0, 10, n)
    control = rng.uniform(0.15, 0.85, size=(10, 2, 4, 2))
    t = np.linspace(0, 1, 24)
    curve = np.stack([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3])  # Bezier
    images = np.zeros((n, side, side), np.float32)
    grid = (np.arange(side) + 0.5) / side
    width = rng.uniform(0.025, 0.05, size=(n, 1, 1))
    for part in range(2):
        shaky = control[y, part] + 0.05 * rng.normal(size=(n, 4, 2))
        points = _moved(rng, np.einsum("kt,nkc->ntc", curve, shaky), n, 0.12, 0.03)
        for at in range(len(t)):
            apart = (grid[None, None] - points[:, at, 0, None, None]) ** 2 + (
                grid[None, :, None] - points[:, at, 1, None, None]
            ) ** 2
            np.maximum(images, np.exp(-apart / (2 * width**2)), out=images, casting="same_kind")
    return _light(rng, np.clip(1.5 * images - 0.2, 0, 1)[..., None], 0.8), y


def _noise(rng: np.random.Generator, power: np.ndarray) -> np.ndarray:
    """Gaussian fields of given power spectra (n, side, side), of standard deviation 1."""
    found = np.fft.ifft2(np.fft.fft2(rng.normal(size=power.shape)) * np.sqrt(power)).real
    return found / found.std(axis=(1, 2), keepdims=True).clip(1e-9)


def _spectrum(side: int, angle: np.ndarray, slope: np.ndarray, sharp: np.ndarray) -> np.ndarray:
    """Power (n, side, side) that falls as a power of the frequency and prefers a direction."""
    down, right = np.fft.fftfreq(side)[:, None], np.fft.fftfreq(side)[None]
    size, way = np.hypot(down, right), np.arctan2(down, right)
    bent = np.exp(sharp[:, None, None] * np.cos(2 * (way - angle[:, None, None])))
    return (
        bent
        * np.where(size > 0, np.maximum(size, 1 / side), 1) ** (-slope[:, None, None])
        * (size > 0)
    )


def textures(rng: np.random.Generator, n: int, side: int) -> Pictures:
    """Six materials: spectra with directions and slopes of their own, grey."""
    y = rng.integers(0, 6, n)
    angle, slope, sharp = rng.uniform(0, np.pi, 6), rng.uniform(1, 3.5, 6), rng.uniform(0, 1.5, 6)
    bent = rng.uniform(-1, 1, 6)
    field = _noise(
        rng,
        _spectrum(
            side, angle[y] + 0.3 * rng.normal(size=n), slope[y] + 0.4 * rng.normal(size=n), sharp[y]
        ),
    )
    field = field + 0.3 * bent[y, None, None] * field**2
    return _light(rng, 0.5 + 0.2 * field[..., None], 0.4), y


def things(rng: np.random.Generator, n: int, side: int) -> Pictures:
    """Ten kinds of coloured things (an outline, a usual colour, a texture) before textured
    backgrounds; three colours."""
    y = rng.integers(0, 10, n)
    outline, own = rng.normal(size=(10, 6)) / np.arange(1, 7), rng.uniform(0.1, 0.9, size=(10, 3))
    behind, rough = rng.uniform(0.1, 0.9, size=(10, 3)), rng.uniform(1, 3, 10)
    grid = (np.arange(side) + 0.5) / side
    centre = 0.5 + 0.08 * rng.normal(size=(n, 2))
    right, down = (
        grid[None, None] - centre[:, 0, None, None],
        grid[None, :, None] - centre[:, 1, None, None],
    )
    way = np.arctan2(down, right) + 0.3 * rng.normal(size=(n, 1, 1))
    shape = outline[y] + 0.25 * rng.normal(size=(n, 6)) / np.arange(1, 7)
    radius = 0.3 * np.exp(
        0.15 * rng.normal(size=(n, 1, 1))
        + 0.25
        * sum(
            shape[:, k, None, None] * np.cos((k // 2 + 1) * way + (k % 2) * np.pi / 2)
            for k in range(6)
        )
    )
    inside = 1 / (1 + np.exp(np.clip((np.hypot(right, down) - radius) * 60, -30, 30)))[..., None]
    flat = np.zeros(n)
    back = 0.25 * _noise(rng, _spectrum(side, flat, 2 + 0.5 * rng.normal(size=n), flat))[..., None]
    front = 0.15 * _noise(rng, _spectrum(side, flat, rough[y], flat + 1))[..., None]
    colour = own[y] + 0.25 * rng.normal(size=(n, 3))
    ground = 0.5 * behind[y] + 0.5 * rng.uniform(0, 1, size=(n, 3)) + 0.15 * rng.normal(size=(n, 3))
    images = inside * (colour[:, None, None] + front) + (1 - inside) * (
        ground[:, None, None] + back
    )
    return _light(rng, images, 0.5), y


def scans(rng: np.random.Generator, n: int, side: int) -> Pictures:
    """Two classes of soft grey bodies; in one of them (70 %) faint patches with fine structure are
    more frequent."""
    y = (rng.random(n) < 0.7).astype(int)
    grid = (np.arange(side) + 0.5) / side
    at = rng.uniform(0.2, 0.8, size=(8, 2))
    images = np.zeros((n, side, side))
    places = _moved(rng, np.broadcast_to(at, (n, 8, 2)), n, 0.08, 0.03)
    for spot in range(8):
        size = 0.13 * np.exp(0.2 * rng.normal(size=(n, 1, 1)))
        apart = (grid[None, None] - places[:, spot, 0, None, None]) ** 2 + (
            grid[None, :, None] - places[:, spot, 1, None, None]
        ) ** 2
        images += (0.5 if spot % 2 else -0.3) * np.exp(-apart / (2 * size**2))
    flat = np.zeros(n)
    for _ in range(3):
        seen = rng.random(n) < np.where(y == 1, 0.7, 0.15)
        where = rng.uniform(0.25, 0.75, size=(n, 2))
        apart = (grid[None, None] - where[:, 0, None, None]) ** 2 + (
            grid[None, :, None] - where[:, 1, None, None]
        ) ** 2
        patch = np.exp(-apart / (2 * 0.09**2)) * (
            0.25 + 0.15 * _noise(rng, _spectrum(side, flat, flat + 1, flat))
        )
        images += seen[:, None, None] * patch
    images += 0.03 * _noise(rng, _spectrum(side, flat, flat + 1.5, flat))
    return _light(rng, 0.4 + 0.5 * images[..., None], 0.5), y


FAMILIES: dict[str, Maker] = {
    "strokes": strokes,
    "textures": textures,
    "things": things,
    "scans": scans,
}
