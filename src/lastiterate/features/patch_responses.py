"""Responses of images to filters that are patches of synthetic pictures, and their axes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

import numpy as np

from lastiterate.features.dead_leaves import SIDE, dead_leaves
from lastiterate.features.scattering import cell_means
from lastiterate.processor_threads import map_in_threads, one_thread

# Filters, their responses, and principal axes of the responses, from synthetic pictures alone.
# Coates, Ng and Lee, "An analysis of single-layer networks in unsupervised feature learning",
# AISTATS 2011, section 3: normalised and whitened patches as filters, soft thresholds, means over
# quadrants. Coates and Ng, "The importance of encoding versus training with sparse coding", ICML
# 2011: patches drawn at random do as well as learned ones.
#
# Every machine makes the same map. Pictures are bytes, patches and responses are rounded to a grid
# on which double precision adds without rounding in any order, and eigenvectors are taken in double
# precision with their signs fixed: machines differ by far less than single precision does.

VERSIONS = (1, 3)
"""Of the recipe, and of the full one: another one has other files in the cache."""
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
WINDOWS = 3
"""Windows of the second layer in each direction, each of half a side."""
KEPT = 60
"""Numbers of a window's responses that the second layer compares."""
WINDOWED = 2000
"""Synthetic pictures whose windows the second layer is made of."""
ONCE_MORE = 0.1
"""Of the mean of the kept eigenvalues, added to each before windows are whitened."""
COLOURS, LIGHT, TINT, NARROW = 96, 35.0, 25.0, 2.0
"""Colours that pixels are compared with, what bytes of light and of tint are divided by for that,
and how much less a colour counts at distance 1: exp(-2)."""
PARTS, WEIGHTS = (2 / 3, 4 / 15, 1 / 15), (1.0, 0.8, 0.5)
"""Shares of both layers and of colours in the axes, and what their lengths shall be."""
CHUNK, TOGETHER = 32, 2**17
"""Images that a thread maps before it asks for more, and products that are found at once."""
ROWS_AT_ONCE = (CHUNK, 8, 4)
"""Rows of a product with axes that are tried: those that divide a chunk."""


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
    full: bool = False

    @property
    def positions(self) -> tuple[int, int]:
        """Patches of an image, down and across."""
        return self.height - self.patch + 1, self.width - self.patch + 1

    @property
    def grids(self) -> tuple[int, ...]:
        """Cells in each direction, and windows."""
        return (self.cells, WINDOWS) if self.full else (self.cells,)

    @property
    def kept(self) -> int:
        """Numbers of a window that the second layer compares."""
        return min(KEPT, self.filters)

    @property
    def parts(self) -> tuple[int, ...]:
        """Responses of the first layer, and of the second one and of colours."""
        first = 2 * self.filters * self.cells**2
        return (first, 4 * self.filters, COLOURS * self.cells**2) if self.full else (first,)

    @property
    def responses(self) -> int:
        """Numbers that an image becomes before the axes."""
        return sum(self.parts)

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
        facts = asdict(self)
        if not self.full:
            del facts["full"]  # bases of before keep their files
        return json.dumps({"version": VERSIONS[self.full], **facts}, sort_keys=True)


@dataclass(frozen=True, eq=False)
class Layer:
    """A second layer: the centre (numbers,) of a window's responses, what makes its kept numbers of
    them (numbers, kept), and filters of these (kept, filters)."""

    centre: np.ndarray
    whiten: np.ndarray
    filters: np.ndarray


@dataclass(frozen=True, eq=False)
class Basis:
    """Filters (numbers of a patch, filters), mirrored ones behind, and the centre (responses,) and
    axes (axes, responses) of responses."""

    filters: np.ndarray
    centre: np.ndarray
    axes: np.ndarray
    layer: Layer | None = None
    colours: np.ndarray | None = None
    """Light and tints (colours, 1 + channels) of colours."""

    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays by their names in a file."""
        found = {name: getattr(self, name) for name in ("filters", "centre", "axes")}
        if self.layer is not None:
            found |= {f"layer_{name}": one for name, one in vars(self.layer).items()}
        return found if self.colours is None else found | {"colours": self.colours}


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


def window_means(side: int) -> np.ndarray:
    """Weights (windows, side): means over windows of half of ``side`` pixels, which overlap."""
    quarters = cell_means(side, WINDOWS + 1)
    return (quarters[1:] + quarters[:-1]) / 2


def respond(recipe: Recipe, basis: Basis, images: np.ndarray) -> np.ndarray:
    """Responses (n, responses) of images (n, height, width, channels) of numbers from 0 to 255:
    roots of means over cells, those of the second layer and those of colours, in the precision of
    the images."""
    cells, *windows = respond_by_grids(recipe, basis, images)
    parts = [cells.reshape(len(images), -1)]
    if basis.layer is not None and basis.colours is not None:
        parts += [respond_again(basis.layer, windows[0]), compare_colours(recipe, basis, images)]
    return np.concatenate(parts, axis=1)


def respond_by_grids(recipe: Recipe, basis: Basis, images: np.ndarray) -> list[np.ndarray]:
    """Roots of means (n, cells, 2 * filters) over cells, and over windows where there are any.

    Every image by itself, some filters at once so that their products lie in the fastest memory.
    """
    kind, (high, wide), filters = images.dtype, recipe.positions, recipe.filters
    threshold = kind.type(THRESHOLD)
    grids = [tuple(one.astype(kind) for one in means) for means in grid_means(recipe)]
    of_rows = np.concatenate([down for down, _ in grids])
    even, odd = (part.astype(kind) for part in fold_filters(recipe, basis.filters))
    step = math.ceil(filters / math.ceil(filters * high * wide / TOGETHER))
    memory = np.zeros((4, high * wide * step), dtype=kind)
    rows = np.empty((2, 1 + recipe.mirrored, len(of_rows), wide, filters), dtype=kind)
    found = [np.empty((len(images), len(one) ** 2, 2 * filters), kind) for one, _ in grids]
    for at, image in enumerate(images):
        sums, differences = fold_patches(recipe, image)
        for first in range(0, filters, step):
            some = slice(first, min(first + step, filters))
            size = high * wide * (some.stop - first)
            plain, other, part, zero = memory[:, :size].reshape(4, high * wide, -1)
            np.matmul(sums.T, even[:, some], out=plain)
            products = [plain]
            if recipe.mirrored:
                np.matmul(differences.T, odd[:, some], out=part)
                np.subtract(plain, part, out=other)
                plain += part
                products.append(other)
            for side, product in enumerate(products):
                np.subtract(product, threshold, out=part)
                np.subtract(-threshold, product, out=product)
                for sign, above in enumerate((part, product)):
                    np.maximum(above, zero, out=above)
                    means = of_rows @ above.reshape(high, -1)
                    rows[sign, side, :, :, some] = means.reshape(len(of_rows), wide, -1)
        first = 0
        for out, (down, across) in zip(found, grids, strict=True):
            roots = np.sqrt(across @ rows[:, :, first : first + len(down)])
            if recipe.mirrored:
                roots = (roots[:, :1] + roots[:, 1:, :, ::-1]) / 2
            out[at] = np.moveaxis(roots[:, 0], 0, 2).reshape(out[at].shape)
            first += len(down)
    return found


def grid_means(recipe: Recipe) -> list[tuple[np.ndarray, np.ndarray]]:
    """Weights (cells, positions) of means over cells, down and across, and over windows where there
    are any."""
    cells = [cell_means(side, recipe.cells) for side in recipe.positions]
    windows = [window_means(side) for side in recipe.positions]
    return [(one[0], one[1]) for one in ((cells, windows) if recipe.full else (cells,))]


# A mirrored filter's product with a patch is the filter's with the mirrored patch. So sums of a
# patch's columns with their mirror images, and differences, meet half a filter each: the sum of the
# two products is the filter's, and their difference the mirrored one's.


def column_shares(recipe: Recipe) -> np.ndarray:
    """How much of the sum of a column and its mirror image counts: half for the one in the middle."""
    shares = np.ones((recipe.patch + 1) // 2)
    shares[recipe.patch // 2 :] = 0.5
    return shares


def fold_filters(recipe: Recipe, filters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Filters (numbers, filters) for both arrays of ``fold_patches``."""
    square = filters[:, : recipe.filters].reshape(recipe.patch, recipe.patch, recipe.channels, -1)
    columns = np.moveaxis(square, 0, 2)
    if not recipe.mirrored:
        return columns.reshape(-1, recipe.filters), np.empty((0, recipe.filters))
    shares, turned = column_shares(recipe)[:, None, None, None] / 2, columns[::-1]
    even = (columns + turned)[: len(shares)] * shares
    odd = (columns - turned)[: recipe.patch // 2] / 2
    return even.reshape(-1, recipe.filters), odd.reshape(-1, recipe.filters)


def fold_patches(recipe: Recipe, image: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Normalised patches of an image of bytes: sums (numbers, positions) of their columns with their
    mirror images, and differences; the columns and nothing where no filter is mirrored."""
    kind, (high, wide) = image.dtype, recipe.positions
    planes = np.moveaxis(image, 2, 0)
    columns = np.stack([planes[:, :, at : at + wide] for at in range(recipe.patch)])
    shares, both = np.ones(recipe.patch), 1 + recipe.mirrored
    if recipe.mirrored:
        shares, turned = column_shares(recipe), columns[::-1]
        many, half = len(shares), recipe.patch // 2
        columns = np.concatenate([columns[:many] + turned[:many], columns[:half] - turned[:half]])
    lines = columns.reshape(-1, recipe.height * wide)
    windows = np.lib.stride_tricks.sliding_window_view(lines, high * wide, axis=1)  # pyright: ignore
    patches = windows[:, ::wide].reshape(-1, high * wide)
    each = recipe.channels * recipe.patch
    weights = np.ones(len(patches), dtype=kind)
    weights[: len(shares) * each] = np.repeat(shares, each)
    numbers = kind.type(recipe.patch * each)
    sums = patches[: len(shares) * each]
    sums -= weights[: len(sums)] @ sums * (both / numbers)
    variance = weights @ np.square(patches) / (both * numbers)
    patches /= np.sqrt(variance + kind.type(FLAT))
    return sums, patches[len(sums) :]


def respond_again(layer: Layer, windows: np.ndarray) -> np.ndarray:
    """Responses (n, 2 * filters) of the second layer to windows (n, windows, numbers)."""
    kept = whiten_windows(layer, windows)
    products = kept @ layer.filters
    threshold = windows.dtype.type(THRESHOLD)
    means = [np.maximum(sign * products - threshold, 0).mean(axis=1) for sign in (1, -1)]
    return np.sqrt(np.concatenate(means, axis=1))


def whiten_windows(layer: Layer, windows: np.ndarray) -> np.ndarray:
    """Kept numbers (..., kept) of windows, whose squares have mean 1."""
    kept = (windows - layer.centre) @ layer.whiten
    squares = np.einsum("...i,...i->...", kept, kept) / kept.shape[-1]
    return kept / np.sqrt(squares + windows.dtype.type(1e-9))[..., None]


def colour_means(recipe: Recipe) -> list[np.ndarray]:
    """Weights (pixels, side) that halve each side of an image."""
    return [cell_means(side, side // 2) for side in (recipe.height, recipe.width)]


def light_and_tints(recipe: Recipe, images: np.ndarray) -> np.ndarray:
    """Light and the tint of every channel (n, pixels, 1 + channels) of images of half a side."""
    down, across = (means.astype(images.dtype) for means in colour_means(recipe))
    rows = np.matmul(down, images.reshape(len(images), recipe.height, -1))
    rows = rows.reshape(len(images), len(down), recipe.width, -1)
    half = np.matmul(across, rows).reshape(len(images), -1, recipe.channels)
    light = half.mean(axis=2, keepdims=True)
    return np.concatenate(
        [light / half.dtype.type(LIGHT), (half - light) / half.dtype.type(TINT)], 2
    )


def compare_colours(recipe: Recipe, basis: Basis, images: np.ndarray) -> np.ndarray:
    """Roots of mean shares (n, cells * colours) of the colours that pixels are near to."""
    colours = basis.colours
    assert colours is not None
    given, steep = light_and_tints(recipe, images), images.dtype.type(NARROW)
    shares = (2 * (given @ colours.T) - np.square(colours).sum(axis=1)) * steep
    np.exp(shares - shares.max(axis=2, keepdims=True), out=shares)
    shares /= shares.sum(axis=2, keepdims=True)
    cells = colour_cells(recipe).astype(images.dtype)
    found = np.sqrt(cells @ shares)
    if recipe.mirrored:
        square = found.reshape(len(images), recipe.cells, recipe.cells, -1)
        found = (square + square[:, :, ::-1]) / 2
    return found.reshape(len(images), -1)


def colour_cells(recipe: Recipe) -> np.ndarray:
    """Weights (cells, pixels) of means over cells of an image of half a side."""
    return np.kron(*(cell_means(len(means), recipe.cells) for means in colour_means(recipe)))


def choose_colours(recipe: Recipe, pictures: np.ndarray) -> np.ndarray:
    """Light and tints of colours: of pixels of pictures, one of each."""
    chosen = pictures[np.arange(COLOURS) * len(pictures) // COLOURS]
    inside = chosen[:, : recipe.height, : recipe.width].astype(np.float64)
    found = light_and_tints(recipe, inside)
    return found[np.arange(COLOURS), 37 * np.arange(COLOURS) % found.shape[1]]


def make_layer(recipe: Recipe, windows: np.ndarray) -> Layer:
    """The second layer for windows (n, windows, 2 * filters) of integers, responses times
    RESPONSE_STEPS."""
    windows = windows.reshape(-1, windows.shape[2])
    total, n = windows.sum(axis=0), len(windows)
    moments = windows.T @ windows - np.outer(total, total) / n  # sums of integers
    values, vectors = principal_axes(moments / (n * RESPONSE_STEPS**2))
    values = np.maximum(values[: recipe.kept], 0)
    whiten = vectors[:, : recipe.kept] / np.sqrt(values + ONCE_MORE * values.mean())
    layer = Layer(total / (n * RESPONSE_STEPS), whiten, whiten[:0])
    chosen = windows[np.arange(2 * recipe.filters) * n // (2 * recipe.filters)]
    filters = whiten_windows(layer, chosen / RESPONSE_STEPS) / np.sqrt(recipe.kept)
    return replace(layer, filters=filters.T)


def make_basis(recipe: Recipe) -> Basis:
    """The basis of a recipe, from nothing but its numbers."""
    pictures = synthetic_pictures(recipe)
    filters = make_filters(recipe, pictures)
    if recipe.mirrored:
        filters = np.concatenate([filters, mirror_filters(recipe, filters)], axis=1)
    exact = Basis(filters, np.zeros(0), np.zeros((0, 0)))

    def in_steps(
        work: Callable[[np.ndarray], np.ndarray], shown: np.ndarray
    ) -> Iterator[np.ndarray]:
        """What is made of pictures as integers, in chunks."""

        def respond_in_steps(first: int) -> np.ndarray:
            inside = shown[first : first + CHUNK, : recipe.height, : recipe.width]
            return np.rint(work(inside.astype(np.float64)) * RESPONSE_STEPS)

        return map_in_threads(respond_in_steps, range(0, len(shown), CHUNK))

    if recipe.full:

        def respond_to_windows(shown: np.ndarray) -> np.ndarray:
            return respond_by_grids(recipe, exact, shown)[1]

        windows = in_steps(respond_to_windows, pictures[:WINDOWED])
        layer = make_layer(recipe, np.concatenate(list(windows)))
        exact = replace(exact, layer=layer, colours=choose_colours(recipe, pictures))
    total, moments, n = np.zeros(recipe.responses), [np.zeros(2 * (k,)) for k in recipe.parts], 0
    ends = np.cumsum(recipe.parts)
    for turns in range(4 if recipe.full else 1):
        turned = np.rot90(pictures, turns, axes=(1, 2))
        found = np.concatenate(list(in_steps(partial(respond, recipe, exact), turned)))
        for moment, part in zip(moments, np.split(found, ends[:-1], axis=1), strict=True):
            moment += part.T @ part  # sums of integers
        total, n = total + found.sum(axis=0), n + len(found)
    for moment, part in zip(moments, np.split(total, ends[:-1]), strict=True):
        moment[:] = (n * moment - np.outer(part, part)) / (n * RESPONSE_STEPS) ** 2
    centre, axes = total / (n * RESPONSE_STEPS), scale_axes(moments, recipe.axes)
    return as_single(replace(exact, centre=centre, axes=axes))


def scale_axes(moments: list[np.ndarray], count: int) -> np.ndarray:
    """Axes (count, numbers) of parts by their shares, the largest eigenvalues of each first; each
    divided by its eigenvalue to a power and brought to its part's length."""
    numbers = [len(moment) for moment in moments]
    axes = np.zeros((count, sum(numbers)))
    blocks = axis_blocks(numbers, count)
    for (places, inside), moment, share, weight in zip(
        blocks, moments, PARTS, WEIGHTS, strict=False
    ):
        values, vectors = principal_axes(moment)
        values = np.maximum(values, values[0] * 1e-9)
        length = np.sqrt((values ** (1 - 2 * POWER))[: round(share * count)].sum())
        scale = weight / length if len(moments) > 1 else 1.0
        axes[places, inside] = (vectors * values**-POWER * scale).T[: len(places)]
    return axes


def axis_blocks(numbers: Sequence[int], count: int) -> list[tuple[np.ndarray, slice]]:
    """Of each part of the responses, given how many they are: its axes among the first ``count``,
    and its responses, the only ones that count for them."""
    ends = np.cumsum([0, *numbers])
    places = [(np.arange(many) + 0.5) / share for many, share in zip(numbers, PARTS, strict=False)]
    order = np.argsort(np.concatenate(places), kind="stable")[:count]
    return [
        (np.flatnonzero((first <= order) & (order < last)), slice(first, last))
        for first, last in pairwise(ends.tolist())
    ]


def project(recipe: Recipe, axes: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """The product of responses (CHUNK, responses) less their centre with axes, without their zeros.

    **Guarantee:** a row has the same bits at every place.
    """
    blocks = [
        (places, inside, np.ascontiguousarray(axes[places, inside].T))
        for places, inside in axis_blocks(recipe.parts, len(axes))
    ]
    parts = [(*each, find_rows_at_once(*each[2].shape)) for each in blocks]

    def work(responses: np.ndarray) -> np.ndarray:
        found = np.empty((len(responses), len(axes)), dtype=responses.dtype)
        for places, inside, block, many in parts:
            for first in range(0, len(responses), many):
                some = slice(first, first + many)
                found[some, places] = responses[some, inside] @ block
        return found

    return work


@lru_cache(maxsize=64)
def find_rows_at_once(numbers: int, axes: int) -> int:
    """``rows_at_once`` of matrices of this shape, tried once in a process: the order of terms follows
    from shapes and places, and from no number."""
    with one_thread:
        block = np.random.default_rng(1).standard_normal((numbers, axes), dtype=np.float32)
        return rows_at_once(block)


def rows_at_once(block: Any) -> int:
    """The most rows whose products with ``block`` (numbers, axes) have the same bits at every place.

    A matrix product adds a row's terms in an order that may follow from the row's place: with
    OpenBLAS's kernels for AMD Zen and Intel Haswell those of rows 6 to 11 among 12 and more differ.
    """
    rows = np.random.default_rng(0).standard_normal((2, len(block)), dtype=np.float32)
    for many in ROWS_AT_ONCE:
        products = [np.tile(row, (many, 1)) @ block for row in rows]
        if all((each == each[0]).all() for each in products):
            return many
    return 1


def as_single(basis: Basis) -> Basis:
    """The basis in single precision."""

    def arrays(part: Basis | Layer) -> dict[str, np.ndarray]:
        return {
            name: np.ascontiguousarray(array, dtype=np.float32)
            for name, array in vars(part).items()
            if isinstance(array, np.ndarray)
        }

    layer = None if basis.layer is None else Layer(**arrays(basis.layer))
    return Basis(layer=layer, **arrays(basis))
