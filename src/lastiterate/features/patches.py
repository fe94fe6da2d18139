"""Responses of images to filters that are patches of synthetic pictures."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import sys
import zipfile
import zlib
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import ClassVar, Self, final

import numpy as np

from lastiterate.atomic_files import write_file
from lastiterate.errors import InputError
from lastiterate.features.columns import RecordMap
from lastiterate.features.dead_leaves import SIDE, dead_leaves
from lastiterate.features.record_fields import Field, Grid, Values
from lastiterate.features.scattering import (
    WORKING_SIDE,
    as_images,
    cell_means,
    check_shape,
    grid_shape,
    image_shape,
    pixels,
    smaller,
)
from lastiterate.processor_threads import map_in_threads
from lastiterate.run.serialization import require
from lastiterate.run.validation import check_integer

# Filters, their responses, and principal axes of the responses, from synthetic pictures alone.
# Coates, Ng and Lee, "An analysis of single-layer networks in unsupervised feature learning",
# AISTATS 2011, section 3: normalised and whitened patches as filters, soft thresholds, means over
# quadrants. Coates and Ng, "The importance of encoding versus training with sparse coding", ICML
# 2011: patches drawn at random do as well as learned ones.
#
# Every machine makes the same map. Pictures are bytes, patches and responses are rounded to a grid
# on which double precision adds without rounding in any order, and eigenvectors are taken in double
# precision with their signs fixed: machines differ by far less than single precision does.

VERSION = 1
"""Of the recipe: another one has other files in the cache."""
PICTURES, FEWEST, SLICE = 4000, 400, 200
"""Synthetic pictures of 32 x 32 pixels for many filters and for few, and of a thread."""
PATCHES, PER_PICTURE = 40_000, 16
FLAT = 10.0
"""Added to the variance of a patch of bytes, so that noise is not magnified."""
REGULAR = 0.1
"""Added to the eigenvalues of normalised patches before they are whitened."""
THRESHOLD = 0.5
"""What a response is lowered by; below it is 0."""
POWER = 0.35
"""An axis is divided by its eigenvalue to this power: .5 would whiten."""
PATCH_STEPS, RESPONSE_STEPS = 2.0**10, 2.0**12
"""Steps of the grids of numbers whose products are summed up exactly."""
SMALLEST, LARGEST = 8, 96
"""Pixels of a side, after large images are averaged down."""
CHUNK = 32
"""Images that a thread maps before it asks for more."""
SLOW = 2e10
"""Products of a basis from which on it takes seconds, so that a line says so."""


@dataclass(frozen=True)
class Recipe:
    """All that a basis follows from: public numbers."""

    filters: int
    axes: int
    patch: int
    cells: int
    mirrored: bool
    seed: int
    height: int
    width: int
    channels: int

    @property
    def positions(self) -> tuple[int, int]:
        """Patches of an image, down and across."""
        return self.height - self.patch + 1, self.width - self.patch + 1

    @property
    def responses(self) -> int:
        """Numbers that an image becomes before the axes."""
        return 2 * self.filters * self.cells**2

    @property
    def pictures(self) -> int:
        """Synthetic pictures that the axes are found on: more than axes, whatever the size."""
        wanted = max(PICTURES * min(1.0, SIDE**2 / (self.height * self.width)), 2 * self.axes)
        return max(FEWEST, round(min(wanted, 2 * self.responses)))

    @property
    def products(self) -> int:
        """Multiplications of the responses that a basis is found from."""
        numbers = self.patch**2 * self.channels * self.filters * (1 + self.mirrored)
        return self.pictures * math.prod(self.positions) * numbers

    def text(self) -> str:
        """A line that names the basis."""
        return json.dumps({"version": VERSION, **asdict(self)}, sort_keys=True)


@dataclass(frozen=True, eq=False)
class Basis:
    """Filters (numbers of a patch, filters), weights (cells, positions) of means over cells, and
    the centre (cells * responses,) and axes (axes, cells * responses) of responses."""

    filters: np.ndarray
    cells: np.ndarray
    centre: np.ndarray
    axes: np.ndarray


def extract_patches(images: np.ndarray, patch: int) -> np.ndarray:
    """Patches (n, positions, patch * patch * channels) of images (n, height, width, channels)."""
    found = np.lib.stride_tricks.sliding_window_view(images, (patch, patch), axis=(1, 2))  # pyright: ignore
    n, high, wide = found.shape[:3]
    return np.moveaxis(found, 3, 5).reshape(n, high * wide, -1)


def normalise_patches(patches: np.ndarray) -> np.ndarray:
    """Patches (..., numbers) of bytes with mean 0, divided by the root of their variance + 10."""
    centred = patches - patches.mean(axis=-1, keepdims=True)
    variance = np.einsum("...i,...i->...", centred, centred) / patches.shape[-1]
    centred /= np.sqrt(variance + patches.dtype.type(FLAT))[..., None]
    return centred


def principal_axes(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues, the largest first, and eigenvectors in columns, whose largest entry is positive."""
    values, vectors = np.linalg.eigh(matrix)
    values, vectors = values[::-1], vectors[:, ::-1]
    largest = np.abs(vectors).argmax(axis=0)
    return values, vectors * np.sign(vectors[largest, np.arange(len(values))])


def synthetic_pictures(recipe: Recipe) -> np.ndarray:
    """Pictures of a recipe's size, in slices of one thread each."""
    side = max(SIDE, recipe.height, recipe.width)
    work = partial(_draw_slice, recipe.seed, recipe.pictures, side, recipe.channels)
    pictures = np.concatenate(list(map_in_threads(work, range(0, recipe.pictures, SLICE))))
    return pictures


def _draw_slice(seed: int, pictures: int, side: int, channels: int, first: int) -> np.ndarray:
    return dead_leaves(seed, first, min(SLICE, pictures - first), side, channels)


def make_filters(recipe: Recipe, pictures: np.ndarray) -> np.ndarray:
    """Filters (numbers of a patch, filters) for normalised patches, float64.

    They are whitened patches of the pictures, of norm 1, from the half whose pixels differ most;
    each is whitened once more, which whitens the patches that it meets.
    """
    cut = extract_patches(pictures[: PATCHES // PER_PICTURE], recipe.patch)
    step = cut.shape[1] / PER_PICTURE
    each = (np.arange(PER_PICTURE) * step).astype(np.int64)
    places = (each + 7 * np.arange(len(cut))[:, None]) % cut.shape[1]
    found = cut[np.arange(len(cut))[:, None], places].reshape(-1, cut.shape[2]).astype(np.float64)
    numbers = found.shape[1]
    spread = numbers * np.square(found).sum(axis=1) - found.sum(axis=1) ** 2  # sums of integers
    plain = np.rint(normalise_patches(found) * PATCH_STEPS)
    values, vectors = principal_axes(plain.T @ plain / (len(plain) * PATCH_STEPS**2))
    whiten = (vectors / np.sqrt(np.maximum(values, 0) + REGULAR)) @ vectors.T
    structured = np.flatnonzero(spread > np.median(spread))
    chosen = structured[np.arange(recipe.filters) * len(structured) // recipe.filters]
    filters = plain[chosen] @ whiten
    filters /= np.linalg.norm(filters, axis=1, keepdims=True)
    return whiten @ filters.T


def mirror_filters(recipe: Recipe, filters: np.ndarray) -> np.ndarray:
    """The filters with left and right exchanged."""
    square = filters.reshape(recipe.patch, recipe.patch, recipe.channels, -1)
    return square[:, ::-1].reshape(filters.shape)


def respond(recipe: Recipe, basis: Basis, images: np.ndarray) -> np.ndarray:
    """Responses (n, cells * 2 * filters) of images (n, height, width, channels) of numbers from 0
    to 255: roots of means over cells, in the precision of the images.

    Products are a matrix of one size for each image by itself; two of them are all that is held.
    """
    sizes = (basis.cells.shape[1], basis.filters.shape[1])
    above, below = (np.empty(sizes, dtype=images.dtype) for _ in range(2))
    found = np.empty((len(images), len(basis.cells), 2, sizes[1]), dtype=images.dtype)
    threshold = images.dtype.type(THRESHOLD)
    for image, means in zip(images, found, strict=True):
        patches = normalise_patches(extract_patches(image[None], recipe.patch)[0])
        np.matmul(patches, basis.filters, out=above)
        np.add(above, threshold, out=below)
        np.minimum(below, 0, out=below)
        np.subtract(above, threshold, out=above)
        np.maximum(above, 0, out=above)
        means[:, 0], means[:, 1] = basis.cells @ above, -(basis.cells @ below)
    np.sqrt(found, out=found)
    if recipe.mirrored:
        found = found.reshape(-1, recipe.cells, recipe.cells, 2, 2, recipe.filters)
        found = (found[:, :, :, :, 0] + found[:, :, ::-1, :, 1]) / 2
    return found.reshape(len(images), -1)


def make_basis(recipe: Recipe) -> Basis:
    """The basis of a recipe, from nothing but its numbers."""
    pictures = synthetic_pictures(recipe)
    filters = make_filters(recipe, pictures)
    if recipe.mirrored:
        filters = np.concatenate([filters, mirror_filters(recipe, filters)], axis=1)
    means = [cell_means(side, recipe.cells) for side in recipe.positions]
    exact = Basis(filters, np.kron(*means), np.zeros(0), np.zeros((0, 0)))

    def work(first: int) -> np.ndarray:
        inside = pictures[first : first + CHUNK, : recipe.height, : recipe.width]
        return np.rint(respond(recipe, exact, inside.astype(np.float64)) * RESPONSE_STEPS)

    found = np.concatenate(list(map_in_threads(work, range(0, len(pictures), CHUNK))))
    total, n = found.sum(axis=0), len(found)
    moments = n * (found.T @ found) - np.outer(total, total)  # sums of integers
    values, vectors = principal_axes(moments / (n * RESPONSE_STEPS) ** 2)
    values = np.maximum(values[: recipe.axes], values[0] * 1e-9) ** -POWER
    axes = (vectors[:, : recipe.axes] * values).T
    arrays = (filters, exact.cells, total / (n * RESPONSE_STEPS), axes)
    return Basis(*(np.ascontiguousarray(array, dtype=np.float32) for array in arrays))


# Bases are made once and kept in the user's cache folder; without one they are made again.


def cache_folder() -> Path:
    """Where the user's programs keep what they can make again."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData/Local") / "lastiterate"
    own = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    return Path(os.environ.get("XDG_CACHE_HOME") or own) / "lastiterate"


@lru_cache(maxsize=8)
def basis_of(recipe: Recipe) -> Basis:
    """The basis of a recipe: as this process knows it, from the cache, or made and kept there."""
    name = f"patches-{hashlib.sha256(recipe.text().encode()).hexdigest()[:32]}.npz"
    try:
        path = cache_folder() / name
    except RuntimeError:  # nobody's home
        _announce(recipe)
        return make_basis(recipe)
    found = read_basis(path, recipe)
    if found is None:
        _announce(recipe)
        found = make_basis(recipe)
        content = io.BytesIO()
        np.savez(content, allow_pickle=False, recipe=np.array(recipe.text()), **vars(found))
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, content.getvalue())
    return found


def _announce(recipe: Recipe) -> None:
    """Say on standard error what takes long: nothing but sizes."""
    if recipe.products >= SLOW:
        shape = f"{recipe.height} x {recipe.width} x {recipe.channels}"
        print(
            f"patches: making filters and axes for images of {shape}, once for all runs; this takes "
            "up to a few minutes",
            file=sys.stderr,
            flush=True,
        )


def read_basis(path: Path, recipe: Recipe) -> Basis | None:
    """The basis in a file, or None where it is not the whole basis of this recipe."""
    high, wide = recipe.positions
    shapes = {
        "filters": (recipe.patch**2 * recipe.channels, recipe.filters * (1 + recipe.mirrored)),
        "cells": (recipe.cells**2, high * wide),
        "centre": (recipe.responses,),
        "axes": (recipe.axes, recipe.responses),
    }
    try:
        with np.load(path, allow_pickle=False) as stored:
            if str(stored["recipe"]) != recipe.text():
                return None
            arrays = {name: stored[name] for name in shapes}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        return None
    fits = all(
        array.shape == shapes[name] and array.dtype == np.float32 and np.isfinite(array).all()
        for name, array in arrays.items()
    )
    return Basis(**arrays) if fits else None


# A public map of every image by itself, with nothing learned from it and nothing spent.

CARRIED = 7.0
"""Records times mu for each axis, below which fewer axes did better on natural images
(benchmarks.utility.colour_images)."""
AXES = (1500, 1000, 500, 250, 125, 60)
"""Numbers of axes that a budget may get. A basis has the most of them, for all budgets."""
PAYS = 300.0
"""Records times mu from which on natural images did better than as pixels and by scattering."""


@final
@dataclass(frozen=True)
class Patches(RecordMap):
    """A map of images to principal axes of responses to filters.

    Filters are patches of synthetic pictures of shapes that hide each other. A response is the part
    of a filter's product with a normalised patch above a threshold, or below minus the threshold.
    Means over cells of an image are taken, and their roots. Axes and centre of the roots come from
    synthetic pictures as well. Every row is divided by its norm.

    Images have shape (height, width), or up to 4 channels first or last, and sides from 8 to 96
    pixels, after images whose shorter side has 64 pixels and more are averaged down to about 32.

    Parameters
    ----------
    filters : int, default 300
        Number of filters, at most 1000.
    axes : int, default 1000
        Number of axes, the entries of a row; there are at most as many as responses.
    patch : int, default 6
        Side of a patch in pixels, from 2 to 12; at most half an image's shorter side is used.
    cells : int, default 2
        Number of cells in each direction, at most 8.
    mirrored : bool, default True
        Whether responses are means of an image's and its mirror image's, which suits photographs
        and does not suit digits or text.
    seed : int, default 0
        Public seed of the synthetic pictures.

    Raises
    ------
    InputError
        If a value is out of range.

    See Also
    --------
    Scattering : Wavelets instead of filters of patches.

    Notes
    -----
    **Guarantee:** a row depends on its own image only, bit for bit, and has norm 1. No private data
    and no real picture is looked at for the map. Sources: Coates, Ng and Lee 2011; Lee, Mumford and
    Huang 2001 for the synthetic pictures.

    Examples
    --------
    >>> from lastiterate.features import Patches
    >>> Patches(filters=100, axes=500).words()
    'patches: 500 axes of responses to 100 filters, patches of synthetic pictures, and mirrored ones'
    """

    filters: int = field(
        default=300, metadata=require(check_integer, "filters of patches", most=1000)
    )
    axes: int = field(default=1000, metadata=require(check_integer, "axes of patches", most=4000))
    patch: int = field(
        default=6, metadata=require(check_integer, "patch of patches", least=2, most=12)
    )
    cells: int = field(default=2, metadata=require(check_integer, "cells of patches", most=8))
    mirrored: bool = True
    seed: int = field(
        default=0, metadata=require(check_integer, "seed of patches", least=0, most=2**31)
    )
    name: ClassVar[str] = "patches"
    takes: ClassVar[tuple[type[Field], ...]] = (Grid,)

    @classmethod
    def for_budget(cls, fields: tuple[Field, ...], resolved: float) -> Self:
        """Fewer axes for a budget that resolves little, and mirror images for colour images, which
        are taken for photographs."""
        shapes = [image_shape(field.shape) for field in fields if isinstance(field, Grid)]
        axes = next((axes for axes in AXES if resolved >= CARRIED * axes), AXES[-1])
        return cls(
            axes=axes,
            mirrored=all(shape is not None and shape[2] in COLOUR_CHANNELS for shape in shapes),
        )

    @classmethod
    def pays(cls, fields: tuple[Field, ...], resolved: float) -> bool:
        """For colour images of sizes that it maps."""
        shapes = [field.shape for field in fields if isinstance(field, Grid)]
        return bool(shapes) and resolved >= PAYS and all(map(is_colour, shapes))

    def recipe(self, shape: tuple[int, ...]) -> Recipe:
        """The public numbers that the basis for images of a shape follows from; a row takes its
        first axes.

        Errors: images that are too small, too large, or of another shape.
        """
        height, width, channels = check_shape(shape)
        block = max(1, min(height, width) // WORKING_SIDE)
        down, across = height // block, width // block
        if min(down, across) < SMALLEST or max(down, across) > LARGEST:
            raise InputError(
                "images",
                f"must have sides of {SMALLEST} to {LARGEST} pixels for patches, where the shorter "
                f"one is averaged down to about {WORKING_SIDE}",
                f"{height} x {width}",
                'use features="plain", or features="scattering" for long images',
            )
        patch = min(self.patch, min(down, across) // 2)
        cells = min(self.cells, min(down, across) - patch + 1)
        axes = min(max(self.axes, AXES[0]), 2 * self.filters * cells**2)
        return Recipe(
            self.filters, axes, patch, cells, self.mirrored, self.seed, down, across, channels
        )

    def columns(self, shape: tuple[int, ...]) -> int:
        """Numbers that an image of this shape becomes."""
        return min(self.axes, self.recipe(shape).axes)

    def width(self, field: Field) -> int:
        return self.columns(grid_shape(field))

    def norm(self, field: Field) -> float:
        self.recipe(grid_shape(field))
        return 1.0

    def words(self) -> str:
        return (
            f"patches: {self.axes} axes of responses to {self.filters} filters, patches of synthetic "
            f"pictures{', and mirrored ones' * self.mirrored}"
        )

    def rows(self, field: Field, values: Values) -> np.ndarray:
        given = np.asarray(values, dtype=np.float32)
        return self.apply(((given + 1) / 2).reshape(len(given), *grid_shape(field)))

    def apply(self, images: np.ndarray) -> np.ndarray:
        """Rows (n, axes) float32 of images (n, ...): bytes, or numbers in [0, 1].

        Numbers outside are taken for the nearer end, and what is no number for 0. Errors: other
        kinds of numbers, and what ``recipe`` refuses.
        """
        recipe = self.recipe(images.shape[1:])
        images = as_images(images)
        basis = basis_of(recipe)
        axes = basis.axes[: self.axes]
        out = np.empty((len(images), len(axes)), dtype=np.float32)

        def work(first: int) -> None:
            given = images[first : first + CHUNK]
            full = np.zeros((CHUNK, *images.shape[1:]), dtype=np.float32)  # of one size: see below
            full[: len(given)] = pixels(given)
            planes = smaller(np.moveaxis(full, 3, 1).reshape(-1, *full.shape[1:3]))
            small = np.moveaxis(planes.reshape(CHUNK, -1, *planes.shape[1:]), 1, 3)
            found = respond(recipe, basis, small * np.float32(255))
            rows = (found - basis.centre) @ axes.T  # a product of one size has the same bits
            norms = np.sqrt(np.square(rows, dtype=np.float64).sum(axis=1, keepdims=True))
            rows = (rows / np.where(norms > 0, norms, 1.0)).astype(np.float32)
            out[first : first + CHUNK] = rows[: len(given)]

        for _ in map_in_threads(work, range(0, len(images), CHUNK)):
            pass
        return out


COLOUR_CHANNELS = (3, 4)


def is_colour(shape: tuple[int, ...]) -> bool:
    """Whether arrays of a shape are images in colour of a size that the map takes."""
    found = image_shape(shape)
    if found is None or found[2] not in COLOUR_CHANNELS:
        return False
    try:
        Patches().recipe(shape)
    except InputError:
        return False
    return True
