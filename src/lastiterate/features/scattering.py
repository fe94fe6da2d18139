"""Scattering coefficients of images: wavelets, absolute values and local means."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar, Self, final

import numpy as np

from lastiterate.errors import InputError
from lastiterate.features.column_maps import RecordMap
from lastiterate.features.record_fields import Field, Grid, Values
from lastiterate.run.serialization import WHERE_GIVEN, require
from lastiterate.run.validation import check_integer

# Morlet wavelets and the Gaussian window of a scattering transform, on a grid of pixels that wraps
# around. Mallat, "Group invariant scattering", 2012; Bruna and Mallat, "Invariant scattering
# convolution networks", IEEE PAMI 2013, section 2. A wavelet of scale j is a wave of frequency 3 pi
# / 4 / 2^j under a Gaussian of width 0.8 2^j, as in their software (ScatNet, Kymatio).

WIDTH, FREQUENCY = 0.8, 3 * np.pi / 4
"""Standard deviation in pixels and radians per pixel, at scale 0."""
WRAPS = 2
"""Copies of the grid on each side of it over which a wavelet is summed up: beyond them it is below
1e-15."""


def gabor(
    shape: tuple[int, int], width: float, angle: float, frequency: float, slant: float
) -> np.ndarray:
    """A complex wave under a Gaussian of integral 1, shape (height, width) of the grid, its centre
    at pixel (0, 0).

    ``slant``: the Gaussian's width along the wave over its width across.
    """
    along, across = np.cos(angle), np.sin(angle)
    wave = np.zeros(shape, dtype=np.complex128)
    for down in range(-WRAPS, WRAPS + 1):
        for right in range(-WRAPS, WRAPS + 1):
            x, y = (
                np.mgrid[: shape[0], : shape[1]]
                + np.array([down * shape[0], right * shape[1]])[:, None, None]
            )
            u, v = along * x + across * y, along * y - across * x
            wave += np.exp(-(u**2 + (slant * v) ** 2) / (2 * width**2) + 1j * frequency * u)
    return wave * slant / (2 * np.pi * width**2)


@lru_cache(maxsize=64)
def wavelets(shape: tuple[int, int], scale: int, angles: int) -> np.ndarray:
    """Fourier transforms (angles, height, width) float32 of the Morlet wavelets of one scale.

    Each is a Gabor function less the multiple of its Gaussian that makes its mean 0, at angles k pi
    / angles; their transforms are real.
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
def thin_wavelets(shape: tuple[int, int], scale: int, angles: int, every: int) -> np.ndarray:
    """Transforms (angles, height / every, width / every) of the wavelets given at each ``every``-th
    pixel."""
    filters = wavelets(shape, scale, angles)
    height, width = shape[0] // every, shape[1] // every
    filters = filters.reshape(angles, every, height, every, width).sum(axis=(1, 3))
    filters.setflags(write=False)
    return filters


@lru_cache(maxsize=64)
def window_means(side: int, padded: int, every: int, scales: int, cells: int) -> np.ndarray:
    """Weights (padded / every, cells) float32 that average a row of an image over ``cells`` equal
    parts of it, after the Gaussian window of width 0.8 2^(scales - 1).

    The row has ``side`` pixels with padding around them, ``padded`` in all, of which each
    ``every``-th is given.
    """
    width = WIDTH * 2 ** (scales - 1)
    pixels, given = np.arange(side)[:, None] + (padded - side) // 2, np.arange(0, padded, every)
    apart = pixels - given
    gauss = sum(
        np.exp(-((apart + wrap * padded) ** 2) / (2 * width**2))
        for wrap in range(-WRAPS, WRAPS + 1)
    )
    weights = (cell_means(side, cells) @ gauss).T * every / (np.sqrt(2 * np.pi) * width)
    weights = np.ascontiguousarray(weights, dtype=np.float32)
    weights.setflags(write=False)
    return weights


def cell_means(side: int, cells: int) -> np.ndarray:
    """Weights (cells, side): means over equal parts of ``side`` pixels; a pixel on a border counts
    for both by its shares."""
    edges = np.linspace(0, side, cells + 1)
    pixels = np.arange(side)
    shares = np.minimum(pixels + 1, edges[1:, None]) - np.maximum(pixels, edges[:-1, None])
    return np.maximum(shares, 0) * cells / side


# The scattering transform: wavelets, absolute values and local means. Mallat 2012; Bruna and
# Mallat 2013: with wavelets psi of J scales and L angles and a Gaussian window phi, an image x
# gives x * phi, |x * psi_a| * phi and ||x * psi_a| * psi_b| * phi for all scales a < b.


def absolute_fields(
    planes: np.ndarray, scales: int, angles: int
) -> Iterator[tuple[int, np.ndarray]]:
    """The fields before the window, as ``(every, fields)`` with fields of shape (n, channels,
    height / every, width / every) float32: the image, then every scale and the pairs in which it is
    the finer one.

    ``planes``: (n, height, width) float32 whose sides are multiples of 2^scales, taken to wrap
    around.
    """
    yield 1, planes[:, None]
    shape = (planes.shape[1], planes.shape[2])
    spectrum = _transform(planes)[:, None]
    for first in range(scales):
        outer = _filter(spectrum, thin_wavelets(shape, first, angles, 1), 2**first)
        yield 2**first, outer
        inner = _transform(outer) if first + 1 < scales else outer
        for second in range(first + 1, scales):
            for wavelet in thin_wavelets(shape, second, angles, 2**first):
                yield 2**second, _filter(inner, wavelet, 2 ** (second - first))


def orders(scales: int, angles: int) -> list[int]:
    """How many wavelets made each channel: 0, 1 or 2, in the order of ``absolute_fields``."""
    later = (scales - 1 - first for first in range(scales))
    return [0, *(order for pairs in later for order in [1] * angles + [2] * (pairs * angles**2))]


def _transform(fields: np.ndarray) -> np.ndarray:
    from scipy.fft import fft2  # pyright: ignore

    return np.asarray(fft2(fields))


def _filter(spectrum: np.ndarray, wavelet: np.ndarray, every: int) -> np.ndarray:
    """|field * wavelet| at each ``every``-th pixel, from the field's transform (n, channels or 1, height, width)."""
    from scipy.fft import ifft2  # pyright: ignore

    product = spectrum * wavelet
    if every > 1:  # taking each k-th pixel folds the transform
        n, channels, height, width = product.shape
        folds = product.reshape(n, channels, every, height // every, every, width // every)
        product = sum(
            folds[:, :, i, :, j] for i in range(every) for j in range(every)
        ) / np.float32(every**2)
    return np.abs(np.asarray(ifft2(product, overwrite_x=True)))


def pool_cells(planes: np.ndarray, scales: int, angles: int, cells: int) -> np.ndarray:
    """Coefficients (n, channels, cells, cells) float32 of planes (n, height, width) float32: means
    of the windowed fields over cells x cells equal parts of the image, whose border is mirrored."""
    sides = (planes.shape[1], planes.shape[2])
    whole = tuple((side // 2**scales + 2) * 2**scales for side in sides)
    around = [
        ((full - side) // 2, full - side - (full - side) // 2)
        for full, side in zip(whole, sides, strict=True)
    ]
    means = list[np.ndarray]()
    for every, fields in absolute_fields(
        np.pad(planes, ((0, 0), *around), mode="reflect"), scales, angles
    ):
        down, across = (
            window_means(side, full, every, scales, cells)
            for side, full in zip(sides, whole, strict=True)
        )
        n, channels, height, width = fields.shape
        rows = np.matmul(
            fields.reshape(n, channels * height, width), across
        )  # a product for each image by itself
        means.append(np.matmul(down.T, rows.reshape(n, channels, height, cells)))
    return np.concatenate(means, axis=1)


# Scattering coefficients of images: a public map of every image by itself, with nothing learned and
# nothing spent.

PIXELS = 20_000
"""About so many pixels are worked on at once, so that they stay in a processor's cache."""
WORKING_SIDE = 32
"""Sides of twice as many pixels and more are averaged down to about so many first: the wavelets see
shapes there."""
COLOURS = 4
STEEP = 50.0
CENTRE = np.array([2.9, 0.55, 0.085], dtype=np.float32)
"""What coefficients are multiplied by before the logarithm, and what is taken off behind it for
orders 0, 1 and 2: the usual values of synthetic pictures (benchmarks/utility/image_rules.py), so
that rows differ by more than they share."""


CARRIED = 0.5
"""Records times mu for each feature, below which pixels do better."""
FINE = 250.0
"""Records times mu from which on 4 x 4 cells gained over 2 x 2 on synthetic pictures."""


@final
@dataclass(frozen=True)
class Scattering(RecordMap):
    """A map of images to scattering coefficients of orders 0 to 2.

    Images have shape (height, width), or up to 4 channels first or last. An image is divided into
    cells, over which every channel of coefficients is averaged. A row holds log(1 + 50 c) of the
    averages c, less a public number for each order, divided by the row's norm: every row has norm
    1.

    Parameters
    ----------
    scales : int, default 2
        Number of scales, at most 5.
    angles : int, default 8
        Number of angles, from 2 to 32.
    cells : int, default 4
        Most cells in each direction, at most 64.
    most : int, default 2000
        Most features of a row; there are as many cells as fit.
    mirrored : bool, default False
        Whether logarithms are means of an image's and its mirror image's, which suits photographs
        and does not suit digits or text. It takes twice the time.

    Raises
    ------
    InputError
        If a value is out of range.

    Notes
    -----
    **Guarantee:** a row depends on its own image only, bit for bit. Source: Bruna and Mallat 2013.

    Examples
    --------
    >>> from lastiterate.features import Scattering
    >>> Scattering(cells=2).features((28, 28, 1)) <= 2000
    True
    """

    scales: int = field(default=2, metadata=require(check_integer, "scales of scattering", most=5))
    angles: int = field(
        default=8, metadata=require(check_integer, "angles of scattering", least=2, most=32)
    )
    cells: int = field(default=4, metadata=require(check_integer, "cells of scattering", most=64))
    most: int = field(
        default=2000, metadata=require(check_integer, "most of scattering", most=10**6)
    )
    mirrored: bool = field(default=False, metadata=WHERE_GIVEN)
    name: ClassVar[str] = "scattering"
    takes: ClassVar[tuple[type[Field], ...]] = (Grid,)

    @classmethod
    def for_budget(cls, fields: tuple[Field, ...], resolved: float) -> Self:
        """Coarse cells for a budget that resolves little."""
        return cls() if resolved >= FINE else cls(cells=2)

    @classmethod
    def pays(cls, fields: tuple[Field, ...], resolved: float) -> bool:
        """For pictures: arrays of two dimensions, or with few channels, that are large enough."""
        one = cls.for_budget(fields, resolved)
        shapes = [image_shape(field.shape) for field in fields if isinstance(field, Grid)]
        fit = [shape for shape in shapes if shape is not None and min(shape[:2]) >= one.least]
        return (
            bool(fit)
            and len(fit) == len(shapes)
            and all(resolved >= CARRIED * one.features(shape) for shape in fit)
        )

    @property
    def least(self) -> int:
        """Pixels that a side must have."""
        return 2 ** (self.scales + 1)

    def width(self, field: Field) -> int:
        return self.features(grid_shape(field))

    def norm(self, field: Field) -> float:
        self.cells_of(grid_shape(field))
        return 1.0

    def words(self) -> str:
        return (
            f"scattering: wavelets of {self.scales} scales and {self.angles} angles, absolute values "
            f"and local means{', and those of mirror images' * self.mirrored}"
        )

    def rows(self, field: Field, values: Values) -> np.ndarray:
        given = np.asarray(values, dtype=np.float32)
        return self.apply(((given + 1) / 2).reshape(len(given), *grid_shape(field)))

    @property
    def channels(self) -> int:
        """Channels of one colour: the window, every wavelet, and every pair of a finer and a
        coarser one."""
        pairs = self.scales * (self.scales - 1) // 2
        return 1 + self.scales * self.angles + pairs * self.angles**2

    def cells_of(self, shape: tuple[int, ...]) -> int:
        """Cells each way of images of this shape.

        Errors: images that are too small, or have too many channels for ``most`` features.
        """
        height, width, colours = check_shape(shape)
        if min(height, width) < self.least:
            raise InputError(
                "images",
                f"must be at least {self.least} x {self.least} pixels for scattering",
                f"{height} x {width}",
                'train on their pixels, features="plain"',
            )
        cells = min(self.cells, height, width, math.isqrt(self.most // (self.channels * colours)))
        if cells == 0:
            raise InputError(
                "most of scattering",
                f"must be at least {self.channels * colours} for these images",
                self.most,
            )
        return cells

    def features(self, shape: tuple[int, ...]) -> int:
        """Numbers that an image of this shape becomes."""
        return self.channels * check_shape(shape)[2] * self.cells_of(shape) ** 2

    def apply(self, images: np.ndarray) -> np.ndarray:
        """Rows (n, features) float32 of images (n, ...): bytes, or numbers in [0, 1].

        Numbers outside are taken for the nearer end, and what is no number for 0. Errors: other
        kinds of numbers, and what ``cells_of`` refuses.
        """
        cells, width = self.cells_of(images.shape[1:]), self.features(images.shape[1:])
        images = as_images(images)
        out = np.empty((len(images), width), dtype=np.float32)
        chunk = max(
            1,
            PIXELS
            // (min(images.shape[1], 2 * WORKING_SIDE) * min(images.shape[2], 2 * WORKING_SIDE)),
        )

        def work(first: int) -> None:
            given = images[first : first + chunk]
            full = np.zeros(
                (chunk, *images.shape[1:]), dtype=np.float32
            )  # always of one size, which fixes the bits
            full[: len(given)] = pixels(given)
            out[first : first + chunk] = self._rows(full, cells)[: len(given)]

        with ThreadPoolExecutor(min(os.cpu_count() or 1, 16)) as pool:
            list(pool.map(work, range(0, len(images), chunk)))
        return out

    def _rows(self, images: np.ndarray, cells: int) -> np.ndarray:
        planes = np.moveaxis(images, 3, 1)
        planes = smaller(np.ascontiguousarray(planes).reshape(-1, *images.shape[1:3]))
        rows = self._logarithms(planes, cells)
        if self.mirrored:
            rows = (rows + self._logarithms(np.ascontiguousarray(planes[:, :, ::-1]), cells)) / 2
        rows = rows.reshape(len(images), -1)
        norms = np.sqrt(np.square(rows, dtype=np.float64).sum(axis=1, keepdims=True))
        return (rows / np.where(norms > 0, norms, 1.0)).astype(np.float32)

    def _logarithms(self, planes: np.ndarray, cells: int) -> np.ndarray:
        means = pool_cells(planes, self.scales, self.angles, cells)
        centre = CENTRE[orders(self.scales, self.angles)][:, None, None]
        return np.log1p(np.float32(STEEP) * means) - centre


def grid_shape(field: Field) -> tuple[int, ...]:
    assert isinstance(field, Grid)
    return field.shape


def check_shape(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Height, width and channels. Errors: what is no shape of an image."""
    sizes = image_shape(shape)
    if sizes is None:
        raise InputError(
            "images",
            "must have shape (height, width), or with at most 4 channels behind or before",
            shape,
            "state [array] shape = [height, width] in the schema of flat rows, or use "
            'features="plain"',
        )
    return sizes


def image_shape(shape: tuple[int, ...]) -> tuple[int, int, int] | None:
    if len(shape) == 2:
        shape = (*shape, 1)
    if len(shape) != 3 or min(shape) < 1 or min(shape[0], shape[2]) > COLOURS:
        return None
    return (shape[0], shape[1], shape[2]) if shape[2] <= COLOURS else (shape[1], shape[2], shape[0])


def as_images(arrays: np.ndarray) -> np.ndarray:
    """Images (n, height, width, channels) of arrays that ``check_shape`` takes. Errors: numbers
    other than bytes and floating-point ones."""
    if arrays.dtype.kind not in "fb" and arrays.dtype != np.uint8:
        raise InputError(
            "images",
            "must be bytes, or floating-point numbers in [0, 1]",
            str(arrays.dtype),
            "divide them by their largest possible value",
        )
    if arrays.ndim == 3:
        return arrays[..., None]
    return np.moveaxis(arrays, 1, 3) if arrays.shape[3] > COLOURS else arrays


def pixels(images: np.ndarray) -> np.ndarray:
    """Bytes, or numbers of which what lies outside [0, 1] is taken for the nearer end, as numbers
    in [0, 1]."""
    return (
        images / np.float32(255)
        if images.dtype == np.uint8
        else np.clip(np.nan_to_num(images), 0, 1)
    )


def smaller(planes: np.ndarray) -> np.ndarray:
    """Planes (n, height, width) averaged over whole blocks of pixels, where their shorter side is
    long."""
    sides = planes.shape[1:]
    block = min(sides) // WORKING_SIDE
    if block < 2:
        return planes
    down, across = (cell_means(side, side // block).astype(np.float32) for side in sides)
    return np.matmul(down, np.matmul(planes, across.T))
