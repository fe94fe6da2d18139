"""Scattering coefficients of images: a public map of every image by itself, with nothing learned and nothing spent."""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ClassVar, Self, final

import numpy as np

from lastiterate.errors import InputError
from lastiterate.features.record_fields import Field, Grid, Values
from lastiterate.features.record_map import RecordMap
from lastiterate.features.wavelet_fields import orders, pooled
from lastiterate.features.wavelets import cell_means
from lastiterate.run.fields import settle
from lastiterate.run.validate import whole

PIXELS = 20_000
"""About so many pixels are worked on at once, so that they stay in a processor's cache."""
WORKING_SIDE = 32
"""Sides of twice as many pixels and more are averaged down to about so many first: the wavelets see shapes there."""
COLOURS = 4
STEEP = 50.0
CENTRE = np.array([2.9, 0.55, 0.085], dtype=np.float32)
"""What coefficients are multiplied by before the logarithm, and what is taken off behind it for orders 0, 1 and 2: the
usual values of synthetic pictures (benchmarks/utility/image_rules.py), so that rows differ by more than they share."""


CARRIED = 0.5
"""Records times mu for each feature, below which pixels do better."""
FINE = 250.0
"""Records times mu from which on 4 x 4 cells gained over 2 x 2 on synthetic pictures."""


@final
@dataclass(frozen=True)
class Scattering(RecordMap):
    """Scattering coefficients of ``scales`` scales and ``angles`` angles, of orders 0 to 2 (Bruna and Mallat 2013).

    Images are (height, width), or with at most 4 channels behind or before. An image is divided into cells, at most
    ``cells`` each way and as many as give at most ``most`` features, over which every channel of coefficients is
    averaged. A row holds log(1 + 50 c) of all of them, less a public number for each order, divided by the row's norm:
    every row has norm 1. Colours are channels of their own.

    **Guarantee:** a row depends on its image and on no other one, bit for bit, however many there are and in whatever
    order.
    """

    scales: int = 2
    angles: int = 8
    cells: int = 4
    most: int = 2000
    name: ClassVar[str] = "scattering"
    takes: ClassVar[tuple[type[Field], ...]] = (Grid,)

    def __post_init__(self) -> None:
        settle(self)
        whole("scales of scattering", self.scales, most=5)
        whole("angles of scattering", self.angles, least=2, most=32)
        whole("cells of scattering", self.cells, most=64)
        whole("most of scattering", self.most, most=10**6)

    @classmethod
    def sized(cls, fields: tuple[Field, ...], resolved: float) -> Self:
        """Coarse cells for a budget that resolves little."""
        return cls() if resolved >= FINE else cls(cells=2)

    @classmethod
    def pays(cls, fields: tuple[Field, ...], resolved: float) -> bool:
        """For pictures: arrays of two dimensions, or with few channels, that are large enough."""
        one = cls.sized(fields, resolved)
        shapes = [_as_image(field.shape) for field in fields if isinstance(field, Grid)]
        fit = [shape for shape in shapes if shape is not None and min(shape[:2]) >= one.least]
        return bool(fit) and len(fit) == len(shapes) and all(resolved >= CARRIED * one.features(shape) for shape in fit)

    @property
    def least(self) -> int:
        """Pixels that a side must have."""
        return 2 ** (self.scales + 1)

    def width(self, field: Field) -> int:
        return self.features(_shape(field))

    def norm(self, field: Field) -> float:
        self.cells_of(_shape(field))
        return 1.0

    def words(self) -> str:
        return f"scattering: wavelets of {self.scales} scales and {self.angles} angles, absolute values and local means"

    def rows(self, field: Field, values: Values) -> np.ndarray:
        given = np.asarray(values, dtype=np.float32)
        return self.apply(((given + 1) / 2).reshape(len(given), *_shape(field)))

    @property
    def channels(self) -> int:
        """Channels of one colour: the window, every wavelet, and every pair of a finer and a coarser one."""
        pairs = self.scales * (self.scales - 1) // 2
        return 1 + self.scales * self.angles + pairs * self.angles**2

    def cells_of(self, shape: tuple[int, ...]) -> int:
        """Cells each way of images of this shape.

        Errors: images that are too small, or have too many channels for ``most`` features.
        """
        height, width, colours = checked_shape(shape)
        if min(height, width) < self.least:
            raise InputError("images", f"must be at least {self.least} x {self.least} pixels for scattering",
                             f"{height} x {width}", "train on their pixels, features=\"plain\"")
        cells = min(self.cells, height, width, math.isqrt(self.most // (self.channels * colours)))
        if cells == 0:
            raise InputError("most of scattering", f"must be at least {self.channels * colours} for these images",
                             self.most)
        return cells

    def features(self, shape: tuple[int, ...]) -> int:
        """Numbers that an image of this shape becomes."""
        return self.channels * checked_shape(shape)[2] * self.cells_of(shape) ** 2

    def apply(self, images: np.ndarray) -> np.ndarray:
        """Rows (n, features) float32 of images (n, ...): bytes, or numbers in [0, 1].

        Numbers outside are taken for the nearer end, and what is no number for 0. Errors: other kinds of numbers, and
        what ``cells_of`` refuses.
        """
        if images.dtype.kind not in "fb" and images.dtype != np.uint8:
            raise InputError("images", "must be bytes, or floating-point numbers in [0, 1]", str(images.dtype),
                             "divide them by their largest possible value")
        cells, width = self.cells_of(images.shape[1:]), self.features(images.shape[1:])
        if images.ndim == 3:
            images = images[..., None]
        elif images.shape[3] > COLOURS:
            images = np.moveaxis(images, 1, 3)
        out = np.empty((len(images), width), dtype=np.float32)
        chunk = max(1, PIXELS // (min(images.shape[1], 2 * WORKING_SIDE) * min(images.shape[2], 2 * WORKING_SIDE)))

        def work(first: int) -> None:
            given = images[first:first + chunk]
            full = np.zeros((chunk, *images.shape[1:]), dtype=np.float32)  # always of one size, which fixes the bits
            full[:len(given)] = pixels(given)
            out[first:first + chunk] = self._rows(full, cells)[:len(given)]

        with ThreadPoolExecutor(min(os.cpu_count() or 1, 16)) as pool:
            list(pool.map(work, range(0, len(images), chunk)))
        return out

    def _rows(self, images: np.ndarray, cells: int) -> np.ndarray:
        planes = np.moveaxis(images, 3, 1)
        planes = smaller(np.ascontiguousarray(planes).reshape(-1, *images.shape[1:3]))
        means = pooled(planes, self.scales, self.angles, cells)
        centre = CENTRE[orders(self.scales, self.angles)][:, None, None]
        rows = (np.log1p(np.float32(STEEP) * means) - centre).reshape(len(images), -1)
        norms = np.sqrt(np.square(rows, dtype=np.float64).sum(axis=1, keepdims=True))
        return (rows / np.where(norms > 0, norms, 1.0)).astype(np.float32)


def _shape(field: Field) -> tuple[int, ...]:
    assert isinstance(field, Grid)
    return field.shape


def checked_shape(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Height, width and channels. Errors: what is no shape of an image."""
    sizes = _as_image(shape)
    if sizes is None:
        raise InputError("images", "must have shape (height, width), or with at most 4 channels behind or before",
                         shape, "state [array] shape = [height, width] in the schema of flat rows, or use "
                         "features=\"plain\"")
    return sizes


def _as_image(shape: tuple[int, ...]) -> tuple[int, int, int] | None:
    if len(shape) == 2:
        shape = (*shape, 1)
    if len(shape) != 3 or min(shape) < 1 or min(shape[0], shape[2]) > COLOURS:
        return None
    return (shape[0], shape[1], shape[2]) if shape[2] <= COLOURS else (shape[1], shape[2], shape[0])


def pixels(images: np.ndarray) -> np.ndarray:
    """Bytes, or numbers of which what lies outside [0, 1] is taken for the nearer end, as numbers in [0, 1]."""
    return images / np.float32(255) if images.dtype == np.uint8 else np.clip(np.nan_to_num(images), 0, 1)


def smaller(planes: np.ndarray) -> np.ndarray:
    """Planes (n, height, width) averaged over whole blocks of pixels, where their shorter side is long."""
    sides = planes.shape[1:]
    block = min(sides) // WORKING_SIDE
    if block < 2:
        return planes
    down, across = (cell_means(side, side // block).astype(np.float32) for side in sides)
    return np.matmul(down, np.matmul(planes, across.T))
