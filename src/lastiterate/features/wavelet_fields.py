"""The scattering transform: wavelets, absolute values and local means.

Mallat 2012; Bruna and Mallat 2013: with wavelets psi of J scales and L angles and a Gaussian window phi, an image x
gives x * phi, |x * psi_a| * phi and ||x * psi_a| * psi_b| * phi for all scales a < b.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lastiterate.features.wavelets import thinned_wavelets, window_means


def absolute_fields(planes: np.ndarray, scales: int, angles: int) -> Iterator[tuple[int, np.ndarray]]:
    """The fields before the window, as ``(every, fields)`` with fields of shape (n, channels, height / every, width /
    every) float32: the image, then every scale and the pairs in which it is the finer one.

    ``planes``: (n, height, width) float32 whose sides are multiples of 2^scales, taken to wrap around.
    """
    yield 1, planes[:, None]
    shape = (planes.shape[1], planes.shape[2])
    spectrum = _transform(planes)[:, None]
    for first in range(scales):
        outer = _filtered(spectrum, thinned_wavelets(shape, first, angles, 1), 2**first)
        yield 2**first, outer
        inner = _transform(outer) if first + 1 < scales else outer
        for second in range(first + 1, scales):
            for wavelet in thinned_wavelets(shape, second, angles, 2**first):
                yield 2**second, _filtered(inner, wavelet, 2 ** (second - first))


def orders(scales: int, angles: int) -> list[int]:
    """How many wavelets made each channel: 0, 1 or 2, in the order of ``absolute_fields``."""
    later = (scales - 1 - first for first in range(scales))
    return [0, *(order for pairs in later for order in [1] * angles + [2] * (pairs * angles**2))]


def _transform(fields: np.ndarray) -> np.ndarray:
    from scipy.fft import fft2  # pyright: ignore

    return np.asarray(fft2(fields))


def _filtered(spectrum: np.ndarray, wavelet: np.ndarray, every: int) -> np.ndarray:
    """|field * wavelet| at each ``every``-th pixel, from the field's transform (n, channels or 1, height, width)."""
    from scipy.fft import ifft2  # pyright: ignore

    product = spectrum * wavelet
    if every > 1:  # taking each k-th pixel folds the transform
        n, channels, height, width = product.shape
        folds = product.reshape(n, channels, every, height // every, every, width // every)
        product = sum(folds[:, :, i, :, j] for i in range(every) for j in range(every)) / np.float32(every**2)
    return np.abs(np.asarray(ifft2(product, overwrite_x=True)))


def pooled(planes: np.ndarray, scales: int, angles: int, cells: int) -> np.ndarray:
    """Coefficients (n, channels, cells, cells) float32 of planes (n, height, width) float32: means of the windowed
    fields over cells x cells equal parts of the image, whose border is mirrored."""
    sides = (planes.shape[1], planes.shape[2])
    whole = tuple((side // 2**scales + 2) * 2**scales for side in sides)
    around = [((full - side) // 2, full - side - (full - side) // 2) for full, side in zip(whole, sides, strict=True)]
    means = list[np.ndarray]()
    for every, fields in absolute_fields(np.pad(planes, ((0, 0), *around), mode="reflect"), scales, angles):
        down, across = (window_means(side, full, every, scales, cells)
                        for side, full in zip(sides, whole, strict=True))
        n, channels, height, width = fields.shape
        rows = np.matmul(fields.reshape(n, channels * height, width), across)  # a product for each image by itself
        means.append(np.matmul(down.T, rows.reshape(n, channels, height, cells)))
    return np.concatenate(means, axis=1)
