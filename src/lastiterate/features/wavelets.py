"""Morlet wavelets and the Gaussian window of a scattering transform, on a grid of pixels that wraps around.

Mallat, "Group invariant scattering", 2012; Bruna and Mallat, "Invariant scattering convolution networks", IEEE PAMI
2013, section 2. A wavelet of scale j is a wave of frequency 3 pi / 4 / 2^j under a Gaussian of width 0.8 2^j, as in
their software (ScatNet, Kymatio).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

WIDTH, FREQUENCY = 0.8, 3 * np.pi / 4
"""Standard deviation in pixels and radians per pixel, at scale 0."""
WRAPS = 2
"""Copies of the grid on each side of it over which a wavelet is summed up: beyond them it is below 1e-15."""


def gabor(shape: tuple[int, int], width: float, angle: float, frequency: float, slant: float) -> np.ndarray:
    """A complex wave under a Gaussian of integral 1, shape (height, width) of the grid, its centre at pixel (0, 0).

    ``slant``: the Gaussian's width along the wave over its width across.
    """
    along, across = np.cos(angle), np.sin(angle)
    wave = np.zeros(shape, dtype=np.complex128)
    for down in range(-WRAPS, WRAPS + 1):
        for right in range(-WRAPS, WRAPS + 1):
            x, y = np.mgrid[:shape[0], :shape[1]] + np.array([down * shape[0], right * shape[1]])[:, None, None]
            u, v = along * x + across * y, along * y - across * x
            wave += np.exp(-(u**2 + (slant * v)**2) / (2 * width**2) + 1j * frequency * u)
    return wave * slant / (2 * np.pi * width**2)


@lru_cache(maxsize=64)
def wavelets(shape: tuple[int, int], scale: int, angles: int) -> np.ndarray:
    """Fourier transforms (angles, height, width) float32 of the Morlet wavelets of one scale.

    Each is a Gabor function less the multiple of its Gaussian that makes its mean 0, at angles k pi / angles; their
    transforms are real.
    """
    width, slant = WIDTH * 2**scale, 4 / angles
    filters = np.empty((angles, *shape), dtype=np.float32)
    for place in range(angles):
        angle = place * np.pi / angles
        wave = gabor(shape, width, angle, FREQUENCY / 2**scale, slant)
        window = gabor(shape, width, angle, 0, slant)
        filters[place] = np.fft.fft2(wave - wave.sum() / window.sum() * window).real
    filters.setflags(write=False)
    return filters


@lru_cache(maxsize=64)
def thinned_wavelets(shape: tuple[int, int], scale: int, angles: int, every: int) -> np.ndarray:
    """Transforms (angles, height / every, width / every) of the wavelets given at each ``every``-th pixel."""
    filters = wavelets(shape, scale, angles)
    height, width = shape[0] // every, shape[1] // every
    filters = filters.reshape(angles, every, height, every, width).sum(axis=(1, 3))
    filters.setflags(write=False)
    return filters


@lru_cache(maxsize=64)
def window_means(side: int, padded: int, every: int, scales: int, cells: int) -> np.ndarray:
    """Weights (padded / every, cells) float32 that average a row of an image over ``cells`` equal parts of it, after
    the Gaussian window of width 0.8 2^(scales - 1).

    The row has ``side`` pixels with padding around them, ``padded`` in all, of which each ``every``-th is given.
    """
    width = WIDTH * 2 ** (scales - 1)
    pixels, given = np.arange(side)[:, None] + (padded - side) // 2, np.arange(0, padded, every)
    apart = pixels - given
    gauss = sum(np.exp(-(apart + wrap * padded) ** 2 / (2 * width**2)) for wrap in range(-WRAPS, WRAPS + 1))
    weights = (cell_means(side, cells) @ gauss).T * every / (np.sqrt(2 * np.pi) * width)
    weights = np.ascontiguousarray(weights, dtype=np.float32)
    weights.setflags(write=False)
    return weights


def cell_means(side: int, cells: int) -> np.ndarray:
    """Weights (cells, side): means over equal parts of ``side`` pixels; a pixel on a border counts for both by its
    shares."""
    edges = np.linspace(0, side, cells + 1)
    pixels = np.arange(side)
    shares = np.minimum(pixels + 1, edges[1:, None]) - np.maximum(pixels, edges[:-1, None])
    return np.maximum(shares, 0) * cells / side
