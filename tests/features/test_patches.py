"""Filters that are patches of synthetic pictures: the recipe from a seed, one image at a time, bit
for bit, and what is kept in the cache."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from lastiterate import processor_threads
from lastiterate.errors import InputError
from lastiterate.features import Patches, patch_responses, patches
from lastiterate.features.column_maps import RowForm
from lastiterate.features.dead_leaves import dead_leaves, uniform
from lastiterate.features.map_registry import automatic_maps, maps_from, to_data
from lastiterate.features.patch_responses import (
    Basis,
    extract_patches,
    make_basis,
    make_filters,
    normalise_patches,
)
from lastiterate.features.patches import basis_of, read_basis
from lastiterate.features.record_fields import Grid, Number
from lastiterate.features.scattering import cell_means

SMALL, FULL = Patches(filters=12, axes=40), Patches(filters=12, axes=40, full=True)
RNG = np.random.default_rng(0)
few = pytest.mark.usefixtures("few_pictures")


def made(*shape: int) -> np.ndarray:
    """Public pictures of numbers in [0, 1] that any machine makes alike."""
    count = int(np.prod(shape))
    return ((np.arange(count) * 7919 % 10007) / 10006).reshape(shape).astype(np.float32)


def test_pictures_follow_from_the_seed_alone():
    pictures = dead_leaves(0, 0, 70, 32, 3)
    assert pictures.shape == (70, 32, 32, 3) and pictures.dtype == np.uint8
    assert (dead_leaves(0, 65, 2, 32, 3) == pictures[65:67]).all(), "none depends on its chunk"
    assert (dead_leaves(1, 0, 1, 32, 3) != pictures[0]).mean() > 0.9
    assert uniform(3, 4, 2).tolist() == [0.8983874397838618, 0.45577517933777767]
    assert pictures[0, ::16, ::16].ravel().tolist() == PICTURE
    for side, channels in ((8, 1), (40, 4)):
        assert dead_leaves(0, 0, 2, side, channels).shape == (2, side, side, channels)


def test_pictures_have_edges_like_natural_ones():
    """Differences of neighbours are mostly small and sometimes large: a kurtosis far above 3."""
    light = dead_leaves(0, 0, 128, 32, 3).mean(axis=3)
    steps = np.diff(light, axis=2)
    assert np.mean(steps**4) / np.mean(steps**2) ** 2 > 6
    assert 30 < light.std(axis=(1, 2)).mean() < 60


def test_the_map_is_the_same_on_every_machine():
    rows = SMALL.apply(made(1, 16, 16, 3))
    again = make_basis(SMALL.recipe((16, 16, 3)))
    found = np.array([again.filters[5, 3], again.centre[7], again.axes[2, 4], *rows[0, :5]])
    assert found == pytest.approx(np.array(GOLDEN), abs=2e-5), (
        "another recipe needs another of VERSIONS: models that are kept would predict otherwise"
    )
    full, other = FULL.apply(made(1, 16, 16, 3)), basis_of(FULL.recipe((16, 16, 3)))
    assert other.layer is not None and other.colours is not None
    found = np.array(
        [other.layer.filters[3, 5], other.colours[7, 1], other.centre[100], *full[0, :5]]
    )
    assert found == pytest.approx(np.array(GOLDEN_FULL), abs=2e-5)
    kept = basis_of(SMALL.recipe((16, 16, 3)))
    assert all((again.arrays()[name] == array).all() for name, array in kept.arrays().items())


@few
def test_a_row_is_what_the_recipe_says():
    """Responses by loops over patches and filters, in double precision."""
    image, recipe = made(1, 12, 11, 2), SMALL.recipe((12, 11, 2))
    basis = basis_of(recipe)
    assert recipe.patch == 5 and basis.filters.shape == (50, 24)

    def respond(given: np.ndarray) -> np.ndarray:
        found = np.zeros((2, 2, 2, 12))
        for down in range(8):
            for right in range(7):
                patch = given[down : down + 5, right : right + 5].ravel().astype(float) * 255
                patch = (patch - patch.mean()) / np.sqrt(patch.var() + 10)
                for one in range(12):
                    product = patch @ basis.filters[:, one].astype(float)
                    share = np.outer(cell_means(8, 2)[:, down], cell_means(7, 2)[:, right])
                    found[:, :, 0, one] += share * max(product - 0.5, 0)
                    found[:, :, 1, one] += share * max(-product - 0.5, 0)
        return np.sqrt(found)

    mean = (respond(image[0]) + respond(image[0, :, ::-1])) / 2
    row = basis.axes[:40].astype(float) @ (mean.ravel() - basis.centre)
    assert SMALL.apply(image)[0] == pytest.approx(row / np.linalg.norm(row), abs=1e-5)


@few
def test_a_full_row_is_what_the_recipe_says():
    """The second layer and the colours by loops, from the first layer's roots over windows."""
    image, recipe = made(1, 12, 11, 2), FULL.recipe((12, 11, 2))
    basis = basis_of(recipe)
    assert recipe.parts == (96, 48, 384) and basis.axes.shape == (528, 528)
    layer, colours = basis.layer, basis.colours
    assert layer is not None and colours is not None
    _, (windows,) = patch_responses.respond_by_grids(recipe, basis, image * np.float32(255))
    second = np.zeros((2, 24))
    for window in windows.astype(float):
        kept = (window - layer.centre) @ layer.whiten
        kept /= np.sqrt(np.mean(kept**2))
        for one in range(24):
            product = kept @ layer.filters[:, one]
            second[:, one] += np.maximum([product - 0.5, -product - 0.5], 0) / 9
    shares = np.zeros((2, 2, 96))
    small = 255 * image[0].astype(float)
    small = np.einsum("ai,bj,ijc->abc", cell_means(12, 6), cell_means(11, 5), small)
    for down in range(6):
        for right in range(5):
            pixel, light = small[down, right], small[down, right].mean()
            point = np.array([light / 35, *(pixel - light) / 25])
            near = np.exp(-2 * np.square(point - colours).sum(axis=1))
            share = np.outer(cell_means(6, 2)[:, down], cell_means(5, 2)[:, right])
            shares += share[:, :, None] * near / near.sum()
    mean = (np.sqrt(shares) + np.sqrt(shares[:, ::-1])) / 2
    responses = patch_responses.respond(recipe, basis, image * np.float32(255))[0]
    assert responses[96:] == pytest.approx(
        np.concatenate([np.sqrt(second).ravel(), mean.ravel()]), abs=2e-5
    )
    row = basis.axes[:40].astype(float) @ (responses - basis.centre)
    assert FULL.apply(image)[0] == pytest.approx(row / np.linalg.norm(row), abs=1e-5)


@few
def test_windows_are_halves_that_overlap():
    image, recipe = made(1, 12, 11, 2), FULL.recipe((12, 11, 2))
    basis = basis_of(recipe)
    patches = normalise_patches(extract_patches(image.astype(float), 5)[0])
    products = (patches @ basis.filters.astype(float)).reshape(8, 7, 2, 12)
    field = np.maximum(np.stack([products, -products], axis=2) - 0.5, 0)
    found = np.sqrt(np.einsum("ad,br,drsmf->absmf", *map(window_weights, (8, 7)), field))
    mean = (found[..., 0, :] + found[:, ::-1, :, 1]) / 2
    _, windows = patch_responses.respond_by_grids(recipe, basis, image)
    assert windows.ravel() == pytest.approx(mean.ravel(), abs=1e-5)


def window_weights(side: int) -> np.ndarray:
    """Weights (3, side) of means over halves that begin at 0, a quarter and a half."""
    fine = np.arange(4 * side) // 4
    weights = np.zeros((3, side))
    for window in range(3):
        np.add.at(weights[window], fine[window * side : (window + 2) * side], 1 / (2 * side))
    return weights


def test_models_of_before_keep_their_map():
    """Their folders say nothing of what came later, and their bases keep their files."""
    stored = {"type": "Patches", "filters": 12, "axes": 40, "patch": 6, "cells": 2}
    stored |= {"mirrored": True, "seed": 0}
    assert maps_from([stored]) == (SMALL,) and to_data((SMALL,)) == [stored]
    assert to_data((FULL,)) == [stored | {"full": True}]
    assert SMALL.recipe((16, 16, 3)).text() == (
        '{"axes": 96, "cells": 2, "channels": 3, "filters": 12, "height": 16, "mirrored": true, '
        '"patch": 6, "seed": 0, "version": 1, "width": 16}'
    )
    assert FULL.recipe((16, 16, 3)).text() != replace(FULL, full=False).recipe((16, 16, 3)).text()


def test_lengths_of_the_parts_of_a_row_are_those_of_the_recipe():
    recipe = FULL.recipe((16, 16, 3))
    pictures = dead_leaves(0, 0, 400, 32, 3)[:, :16, :16].astype(np.float32)
    basis = basis_of(recipe)
    along = (patch_responses.respond(recipe, basis, pictures) - basis.centre) @ basis.axes.T
    squares, ends = np.square(along).mean(axis=0), np.cumsum((0, *recipe.parts))
    for first, last, share, length in zip(
        ends[:-1], ends[1:], patch_responses.PARTS, patch_responses.WEIGHTS, strict=True
    ):
        mine = np.abs(basis.axes[:, first:last]).max(axis=1) > 0
        assert mine[:60].sum() == round(60 * share), "a row's first axes have the same shares"
        counted = squares[mine][: round(share * recipe.axes)].sum()
        assert np.sqrt(counted) == pytest.approx(length, rel=0.1)


def test_filters_are_whitened_and_come_from_structured_patches():
    recipe = SMALL.recipe((32, 32, 3))
    pictures = dead_leaves(0, 0, 400, 32, 3)
    filters = make_filters(recipe, pictures)
    given = normalise_patches(extract_patches(pictures[:200].astype(float), 6)).reshape(-1, 108)
    assert np.square(given @ filters).mean() == pytest.approx(1, abs=0.3)


def test_axes_are_those_of_the_responses_to_synthetic_pictures():
    one = Patches(filters=12, axes=96, mirrored=False)
    basis, pictures = basis_of(one.recipe((32, 32, 3))), dead_leaves(0, 0, 400, 32, 3)
    plain = Basis(basis.filters, basis.centre * 0, np.eye(96, dtype=np.float32))
    recipe = one.recipe((32, 32, 3))
    found = patch_responses.respond(recipe, plain, pictures.astype(np.float32))
    along = (found - basis.centre).astype(float) @ basis.axes.T
    values = np.linalg.eigvalsh(np.cov(found.T, bias=True))[::-1]
    assert np.abs(along.mean(axis=0)).max() < 2e-3
    assert np.cov(along.T, bias=True) == pytest.approx(
        np.diag(values ** (1 - 2 * patch_responses.POWER)), abs=2e-3 * values[0] ** 0.3
    )


@few
@pytest.mark.parametrize("one", [SMALL, FULL])
@pytest.mark.parametrize("shape", [(28, 28), (8, 8), (13, 30), (32, 32, 3), (70, 66, 3)])
def test_an_image_has_the_same_bits_alone_and_among_any_others(shape, one):
    images = RNG.random((41, *shape), dtype=np.float32)
    together = one.apply(images)
    assert together.shape == (41, 40) and together.dtype == np.float32
    order = RNG.permutation(41)
    assert (one.apply(images[order]) == together[order]).all()
    alone = np.concatenate([one.apply(images[i : i + 1]) for i in range(0, 41, 5)])
    assert (alone == together[::5]).all()
    neighbours = images.copy()
    neighbours[1::2] = np.array([0.0, np.inf, np.nan, -3e38], np.float32)[
        RNG.integers(0, 4, (20, *shape))
    ]
    changed = one.apply(neighbours)
    assert (changed[::2] == together[::2]).all() and np.isfinite(changed).all()


class RowsDiffer:
    """A matrix whose product adds up in another order for row 6 where there are more than ``clean``
    rows, as OpenBLAS does on some processors."""

    __array_ufunc__ = None

    def __init__(self, clean):
        self.clean = clean

    def __len__(self):
        return 64

    def __rmatmul__(self, rows):
        found = rows.sum(axis=1, keepdims=True)
        if len(rows) > self.clean:
            found[min(6, len(rows) - 1)] *= np.float32(1 + 2**-23)
        return found


@pytest.mark.parametrize("clean, many", [(32, 32), (31, 8), (8, 8), (7, 4), (3, 1)])
def test_as_many_rows_are_multiplied_as_have_the_same_bits_at_every_place(clean, many):
    assert patch_responses.rows_at_once(RowsDiffer(clean)) == many


def test_rows_have_norm_1_whatever_the_image():
    big = np.float32(3e38)
    images = np.zeros((8, 16, 16, 3), np.float32)
    images[1:] = np.array([1, 1e-3, 1e-30, 1e-45, big, np.inf, -big], np.float32)[
        :, None, None, None
    ]
    images[2, ::2] = 0
    images[3, 0, 0] = np.nan
    for one in (SMALL, FULL):
        assert np.linalg.norm(one.apply(images), axis=1) == pytest.approx(1, abs=1e-6)


def test_the_norm_is_enforced_also_for_a_basis_or_rows_that_are_wrong(monkeypatch):
    """The privacy of a run needs the bound, whatever lies in a cache and whatever the map does."""
    basis = basis_of(SMALL.recipe((16, 16, 3)))
    wrong = replace(basis, axes=basis.axes * np.float32(1e30))
    long = np.full((5, 40), 1e9, np.float32)
    form = RowForm((Grid("x", (16, 16, 3)),), (SMALL,))
    for where, name, other in (
        (patches, "basis_of", lambda recipe: wrong),
        (Patches, "apply", lambda self, images: long),
    ):
        monkeypatch.setattr(where, name, other)
        rows = form.rows([made(5, 768) * 2 - 1])
        assert np.isfinite(rows).all()
        assert np.linalg.norm(rows.astype(float), axis=1).max() <= form.norm * (1 + 2e-6)


@few
def test_a_mirror_image_has_the_same_row_where_asked():
    images = RNG.random((5, 20, 17, 3), dtype=np.float32)
    for mirrored, full, near in ((True, False, True), (False, True, False), (True, True, True)):
        one = Patches(filters=12, axes=40, mirrored=mirrored, full=full)
        apart = np.abs(one.apply(images) - one.apply(images[:, :, ::-1])).max()
        assert (apart < 2e-5) == near
    upside_down = SMALL.apply(images[:, ::-1])
    assert np.abs(SMALL.apply(images) - upside_down).max() > 1e-2


def test_other_light_changes_little():
    images = RNG.random((4, 16, 16, 3), dtype=np.float32) * 0.5
    assert SMALL.apply(images + 0.3) == pytest.approx(SMALL.apply(images), abs=1e-4)


@few
def test_bytes_are_the_same_as_their_parts_of_1():
    images = RNG.integers(0, 256, (3, 9, 9, 2), dtype=np.uint8)
    assert (SMALL.apply(images) == SMALL.apply(images / np.float32(255))).all()
    with pytest.raises(InputError, match="bytes, or floating-point numbers"):
        SMALL.apply(images.astype(np.int64))


def test_sizes_follow_from_the_shape_alone():
    assert Patches().columns((32, 32, 3)) == 1000 and SMALL.recipe((3, 32, 32)).channels == 3
    assert Patches(filters=10).columns((32, 32)) == 80
    large, small = SMALL.recipe((96, 70, 1)), SMALL.recipe((8, 8))
    assert (large.height, large.width, small.patch) == (48, 35, 4)
    for shape in ((7, 28), (28, 7, 1), (40, 97), (28, 97, 1)):
        with pytest.raises(InputError, match=r"sides of 8 to 96 pixels.*features=\"plain\""):
            SMALL.recipe(shape)
    for shape in ((784,), (28, 28, 5), (5, 28, 28), (2, 28, 28, 3), (0, 28)):
        with pytest.raises(InputError, match="must have shape"):
            SMALL.recipe(shape)
    for wrong in (
        dict(filters=0),
        dict(axes=0),
        dict(patch=1),
        dict(cells=0),
        dict(filters=2.0),
        dict(mirrored=1),
        dict(seed=-1),
    ):
        with pytest.raises(InputError, match=r"filters|axes|patch|cells|mirrored|seed"):
            Patches(**wrong)


def test_automatic_for_colour_by_the_shape_and_the_budget_alone():
    for shape in ((32, 32, 3), (8, 9, 4), (3, 32, 32)):
        fields = (Grid("x", shape),)
        (one,) = automatic_maps(fields, 1e4)
        assert type(one) is Patches and one.mirrored and one.full
        assert not Patches.pays(fields, 10.0)
    for shape in ((28, 28), (28, 28, 1), (32, 32, 2), (784,), (32, 7, 3), (300, 40, 3)):
        assert not Patches.pays((Grid("x", shape),), 1e9)
    assert [one.name for one in automatic_maps((Grid("x", (28, 28)),), 1e4)] == ["scattering"]
    assert not Patches.for_budget((Grid("x", (28, 28)),), 1e4).mirrored
    assert not Patches.pays((Number("a"),), 1e9)
    few, many = (Patches.for_budget((Grid("x", (32, 32, 3)),), r).axes for r in (600, 1e5))
    assert few < many


@few
def test_as_a_map_of_records_it_reads_pixels_scaled_to_plus_and_minus_1():
    images = RNG.random((6, 9, 11), dtype=np.float32)
    field = Grid("x", (9, 11))
    rows = RowForm((field,), (SMALL,)).rows([images.reshape(6, -1) * 2 - 1])
    assert rows == pytest.approx(SMALL.apply(images), abs=1e-4)
    with pytest.raises(InputError, match="must have shape"):
        RowForm((Grid("x", (99,)),), (SMALL,)).norm  # noqa: B018


def test_memory_does_not_grow_with_the_images(monkeypatch):
    """One thread has one chunk at a time, so that no peak follows from who waits for whom."""
    monkeypatch.setattr(processor_threads, "processors", lambda: 1)
    images = np.zeros((64, 16, 16, 3), np.uint8)
    SMALL.apply(images)
    peaks = []
    for count in (64, 640):
        given = np.resize(images, (count, 16, 16, 3))
        tracemalloc.start()
        out = SMALL.apply(given)
        peaks.append(tracemalloc.get_traced_memory()[1] - out.nbytes)
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0] + 1e5


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setattr(patches, "cache_folder", lambda: tmp_path / "a" / "cache")
    basis_of.cache_clear()
    yield tmp_path / "a" / "cache"
    basis_of.cache_clear()


@few
def test_a_basis_is_made_once_and_again_where_its_file_is_damaged(cache, monkeypatch):
    recipe, asked = SMALL.recipe((8, 8)), []

    def counted(recipe, make=make_basis):
        asked.append(recipe)
        return make(recipe)

    monkeypatch.setattr(patches, "make_basis", counted)
    first = basis_of(recipe)
    (path,) = cache.iterdir()
    whole = path.read_bytes()
    basis_of.cache_clear()
    again = basis_of(recipe)
    assert len(asked) == 1
    assert all((again.arrays()[name] == array).all() for name, array in first.arrays().items())
    other = SMALL.recipe((8, 9))
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 1
    full = FULL.recipe((8, 8))
    kept = basis_of(full)
    (new,) = (one for one in cache.iterdir() if one != path)
    again = read_basis(new, full)
    assert again is not None
    assert all((again.arrays()[name] == array).all() for name, array in kept.arrays().items())
    assert again.arrays().keys() == kept.arrays().keys()
    for content in (b"", b"no archive", whole[:-100], bytes(damaged)):
        path.write_bytes(content)
        assert read_basis(path, recipe) is None
    path.write_bytes(whole)
    assert read_basis(path, other) is None and read_basis(path, recipe) is not None


def test_a_basis_that_takes_long_says_so_once_and_no_more_than_sizes(cache, monkeypatch, capfd):
    """On standard error; neither a small one nor one that lies in the cache says anything."""
    made = []
    monkeypatch.setattr(patches, "make_basis", lambda recipe: made.append(recipe) or KEPT)
    monkeypatch.setattr(patches, "read_basis", lambda path, recipe: KEPT if made else None)
    basis_of(Patches().recipe((32, 32, 3)))
    out, said = capfd.readouterr()
    assert out == "" and said == (
        "patches: making filters and axes for images of 32 x 32 x 3, once for all runs; this takes up "
        "to a few minutes\n"
    )
    basis_of(Patches().recipe((32, 32, 1)))
    assert len(made) == 1 and capfd.readouterr() == ("", "")
    made.clear()
    basis_of(SMALL.recipe((32, 32, 3)))
    assert len(made) == 1 and capfd.readouterr() == ("", "")


def test_a_basis_without_a_home_says_so_too(monkeypatch, capfd):
    def nowhere() -> None:
        raise RuntimeError

    monkeypatch.setattr(patches, "cache_folder", nowhere)
    monkeypatch.setattr(patches, "make_basis", lambda recipe: KEPT)
    patches.basis_of.__wrapped__(Patches().recipe((32, 32, 3)))
    assert "32 x 32 x 3" in capfd.readouterr().err


@few
def test_a_cache_that_cannot_be_written_costs_time_only(cache):
    cache.parent.write_text("a file where the folder would be")
    assert basis_of(SMALL.recipe((8, 8))).axes.shape == (96, 96)


def test_the_cache_lies_where_the_system_says(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(patches.sys, "platform", "linux")
    assert patches.cache_folder() == tmp_path / "lastiterate"
    monkeypatch.setattr(patches.sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert patches.cache_folder() == tmp_path / "local" / "lastiterate"


KEPT = Basis(*(np.zeros(1, np.float32) for _ in range(3)))
PICTURE: list[int] = [100, 162, 143, 83, 103, 143, 24, 64, 0, 183, 180, 158]
GOLDEN_FULL: list[float] = [
    0.044489,
    -0.076667,
    0.307992,
    0.517894,
    0.035899,
    -0.023548,
    -0.012573,
    -0.042933,
]
GOLDEN: list[float] = [
    0.045762,
    0.308147,
    -0.001311,
    -0.022228,
    0.437523,
    0.07847,
    -0.026113,
    -0.160073,
]
