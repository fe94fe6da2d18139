"""A map of images to responses to filters that are patches of synthetic pictures."""

from __future__ import annotations

import hashlib
import io
import os
import sys
import zipfile
import zlib
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Self, final

import numpy as np

from lastiterate.atomic_files import write_file
from lastiterate.errors import InputError
from lastiterate.features.column_maps import RecordMap
from lastiterate.features.patch_responses import (
    CHUNK,
    COLOURS,
    Basis,
    Layer,
    Recipe,
    make_basis,
    project,
    respond,
)
from lastiterate.features.record_fields import Field, Grid, Values
from lastiterate.features.scattering import (
    WORKING_SIDE,
    as_images,
    check_shape,
    grid_shape,
    image_shape,
    pixels,
    smaller,
)
from lastiterate.processor_threads import map_in_threads
from lastiterate.run.serialization import WHERE_GIVEN, require
from lastiterate.run.validation import check_integer

SMALLEST, LARGEST = 8, 96
"""Pixels of a side, after large images are averaged down."""
SLOW = 2e10
"""Products of a basis from which on it takes seconds, so that a line says so."""

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
        np.savez(content, allow_pickle=False, recipe=np.array(recipe.text()), **found.arrays())
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
    numbers, both = 2 * recipe.filters, recipe.filters * (1 + recipe.mirrored)
    shapes = {
        "filters": (recipe.patch**2 * recipe.channels, both),
        "centre": (recipe.responses,),
        "axes": (recipe.axes, recipe.responses),
    }
    if recipe.full:
        shapes |= {
            "layer_centre": (numbers,),
            "layer_whiten": (numbers, recipe.kept),
            "layer_filters": (recipe.kept, numbers),
            "colours": (COLOURS, 1 + recipe.channels),
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
    if not fits:
        return None
    second = [arrays.pop(name) for name in shapes if name.startswith("layer_")]
    return Basis(layer=Layer(*second) if second else None, **arrays)


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
    full : bool, default False
        Whether a second layer compares windows of the responses, pixels are compared with colours,
        and axes come from pictures that are turned too. ``features="patches"`` takes it.

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
    full: bool = field(default=False, metadata=WHERE_GIVEN)
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
            full=True,
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
        recipe = Recipe(
            self.filters,
            max(self.axes, AXES[0]),
            patch,
            cells,
            self.mirrored,
            self.seed,
            down,
            across,
            channels,
            self.full,
        )
        return replace(recipe, axes=min(recipe.axes, recipe.responses))

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
            f"pictures{', and mirrored ones' * self.mirrored}{', a second layer and colours' * self.full}"
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
        along_axes = project(recipe, axes)
        out = np.empty((len(images), len(axes)), dtype=np.float32)

        def work(first: int) -> None:
            given = pixels(images[first : first + CHUNK]).astype(np.float32, copy=False)
            planes = smaller(np.moveaxis(given, 3, 1).reshape(-1, *given.shape[1:3]))
            small = np.moveaxis(planes.reshape(len(given), -1, *planes.shape[1:]), 1, 3)
            found = np.zeros((CHUNK, recipe.responses), dtype=np.float32)
            found[: len(given)] = respond(recipe, basis, small * np.float32(255)) - basis.centre
            rows = along_axes(found)
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
