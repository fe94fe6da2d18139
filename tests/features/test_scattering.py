"""The scattering transform: against Kymatio and against its definition; one image at a time, bit
for bit."""

import tomllib
from pathlib import Path

import numpy as np
import pytest

from lastiterate.errors import InputError
from lastiterate.features import Scattering
from lastiterate.features.column_maps import RowForm
from lastiterate.features.map_registry import to_data
from lastiterate.features.record_fields import Grid, Number
from lastiterate.features.scattering import (
    FREQUENCY,
    WIDTH,
    absolute_fields,
    cell_means,
    orders,
    pool_cells,
    smaller,
    wavelets,
    window_means,
)

GOLDEN = tomllib.loads((Path(__file__).parents[1] / "golden" / "scattering.toml").read_text())
RNG = np.random.default_rng(0)


def made() -> np.ndarray:
    y, x = np.mgrid[:28, :28]
    return np.stack(
        [
            ((7 * x + 13 * y + x * y) % 32) / 31,
            np.exp(-((x - 10) ** 2 + (y - 17) ** 2) / 30),
            ((x - 14) ** 2 + (y - 14) ** 2 < 80) * 1.0,
        ]
    ).astype(np.float32)


def test_coefficients_are_those_of_kymatio():
    padded = np.pad(made(), ((0, 0), (4, 4), (4, 4)), mode="reflect")
    found = []
    for every, fields in absolute_fields(padded, 2, 8):
        pixel = window_means(
            36, 36, every, 2, 36
        ).T  # the window at every pixel of the padded image
        at = pixel[[4 * (1 + place) for place in range(7)]]
        found.append(np.einsum("ah,nchw,bw->ncab", at, fields, at))
    ours = np.concatenate(found, axis=1)
    pairs = np.r_[9:73]
    for image, name in enumerate(("pattern", "spot", "disc")):
        for down, right in GOLDEN["positions"]:
            apart = np.abs(
                ours[image, :, down, right] - GOLDEN["coefficients"][f"{name}_{down}_{right}"]
            )
            assert (
                apart.max() < GOLDEN["tolerance"]
                and apart[pairs].max() < GOLDEN["tolerance_of_pairs"]
            )


@pytest.mark.parametrize(
    ("scale", "first", "near"), [(0, 1, 1e-3), (1, 73, 0.02)]
)  # scale 1: every second pixel
def test_the_means_over_cells_are_those_of_direct_sums(scale, first, near):
    """|x * psi| * phi summed up pixel by pixel over a mirrored image, in double precision."""
    angle, image = 3, made()[0].astype(np.float64)
    mirrored, reach = np.pad(image, 24, mode="reflect"), np.arange(-12, 13)
    x, y = np.meshgrid(reach, reach, indexing="ij")
    u, v = (
        np.cos(angle * np.pi / 8) * x + np.sin(angle * np.pi / 8) * y,
        np.cos(angle * np.pi / 8) * y - np.sin(angle * np.pi / 8) * x,
    )
    width = WIDTH * 2**scale
    gauss = np.exp(-(u**2 + (v / 2) ** 2) / (2 * width**2)) / (4 * np.pi * width**2)
    wave = gauss * np.exp(1j * FREQUENCY / 2**scale * u)
    wave -= wave.sum() / gauss.sum() * gauss
    field = np.abs(directly(mirrored, wave))
    around = np.exp(-(reach**2) / (2 * (2 * WIDTH) ** 2))
    smooth = directly(field, np.outer(around, around) / around.sum() ** 2).real
    expected = cell_means(28, 4) @ smooth @ cell_means(28, 4).T
    found = pool_cells(image[None].astype(np.float32), 2, 8, 4)[0, first + angle]
    inner = np.s_[1:3, 1:3]  # beyond the padding of 4 pixels the sums see more of the mirror
    assert found[inner] == pytest.approx(expected[inner], rel=near)
    assert found == pytest.approx(expected, rel=0.1)


def directly(field: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    side = kernel.shape[0]
    windows = np.lib.stride_tricks.sliding_window_view(field, (side, side))
    return np.einsum("abij,ij->ab", windows, kernel[::-1, ::-1])


def test_wavelets_have_mean_0_and_do_not_see_the_light():
    assert np.abs(wavelets((36, 36), 0, 8)[:, 0, 0]).max() < 1e-6
    flat = pool_cells(np.full((1, 20, 24), 0.7, np.float32), 2, 8, 4)[0]
    assert flat[0] == pytest.approx(0.7, abs=1e-4) and np.abs(flat[1:]).max() < 1e-5


@pytest.mark.parametrize("shape", [(28, 28), (8, 8), (13, 30), (32, 32, 3), (70, 66, 3)])
def test_an_image_has_the_same_bits_alone_and_among_any_others(shape):
    images = RNG.random((41, *shape), dtype=np.float32)
    scattering = Scattering()
    together = scattering.apply(images)
    assert together.shape == (41, scattering.features(shape)) and together.dtype == np.float32
    assert scattering.features(shape) <= 2000
    order = RNG.permutation(41)
    assert (scattering.apply(images[order]) == together[order]).all()
    alone = np.concatenate([scattering.apply(images[i : i + 1]) for i in range(0, 41, 5)])
    assert (alone == together[::5]).all()
    neighbours = images.copy()
    neighbours[1::2] = np.array([0.0, np.inf, np.nan, -3e38], np.float32)[
        RNG.integers(0, 4, (20, *shape))
    ]
    changed = scattering.apply(neighbours)
    assert (changed[::2] == together[::2]).all() and np.isfinite(changed).all()


def test_rows_have_norm_1_whatever_the_image():
    big = np.float32(3e38)
    images = np.zeros((8, 28, 28), np.float32)
    images[1:] = np.array([1, 1e-3, 1e-30, 1e-45, big, np.inf, -big], np.float32)[:, None, None]
    images[2, ::2] = 0
    images[3, 0, 0] = np.nan
    assert np.linalg.norm(Scattering().apply(images), axis=1) == pytest.approx(1, abs=1e-6)


def test_a_row_is_the_logarithms_less_a_centre_by_their_norm():
    found = pool_cells(made(), 2, 8, 4)
    logs = np.log1p(50 * found.astype(np.float64))
    logs[:, 0] -= 2.9
    logs[:, [*range(1, 9), *range(73, 81)]] -= 0.55
    logs[:, 9:73] -= 0.085
    rows = logs.reshape(3, -1) / np.sqrt((logs**2).sum(axis=(1, 2, 3)))[:, None]
    assert Scattering().apply(made()) == pytest.approx(rows, abs=1e-6)


def test_a_mirror_image_has_the_same_row_where_asked():
    images = RNG.random((3, 12, 17, 2), dtype=np.float32)
    for mirrored in (True, False):
        one = Scattering(mirrored=mirrored)
        apart = np.abs(one.apply(images) - one.apply(images[:, :, ::-1])).max()
        assert (apart < 1e-5) == mirrored
        assert np.linalg.norm(one.apply(images), axis=1) == pytest.approx(1, abs=1e-6)
    assert to_data((Scattering(),)) == [
        {"type": "Scattering", "scales": 2, "angles": 8, "cells": 4, "most": 2000}
    ], "models that are kept are hashed as they were"


def test_orders_of_channels():
    for scales, angles in ((1, 4), (2, 8), (3, 2)):
        found = orders(scales, angles)
        kinds = [
            fields.shape[1]
            for _, fields in absolute_fields(np.ones((1, 16, 16), np.float32), scales, angles)
        ]
        assert len(found) == sum(kinds) == Scattering(scales=scales, angles=angles).channels
        assert found.count(0) == 1 and found.count(1) == scales * angles
    assert orders(3, 2) == [0, 1, 1, *[2] * 8, 1, 1, *[2] * 4, 1, 1]


def test_bytes_are_the_same_as_their_parts_of_1():
    images = RNG.integers(0, 256, (3, 9, 9, 2), dtype=np.uint8)
    assert (Scattering().apply(images) == Scattering().apply(images / np.float32(255))).all()
    with pytest.raises(InputError, match="bytes, or floating-point numbers"):
        Scattering().apply(images.astype(np.int64))


def test_sizes_follow_from_the_shape_alone():
    assert Scattering().channels == 81 and Scattering().features((28, 28)) == 81 * 16
    assert (
        Scattering().cells_of((32, 32, 3)) == 2
        and Scattering(most=4000).features((32, 32, 3)) == 3888
    )
    assert Scattering(scales=3).channels == 1 + 24 + 3 * 64
    for shape in ((7, 28), (28, 7, 1)):
        with pytest.raises(InputError, match="at least 8 x 8 pixels"):
            Scattering().features(shape)
    for shape in ((784,), (28, 28, 5), (5, 28, 28), (2, 28, 28, 3), (0, 28)):
        with pytest.raises(InputError, match="must have shape"):
            Scattering().features(shape)
    with pytest.raises(InputError, match="at least 243"):
        Scattering(most=242).features((28, 28, 3))
    for wrong in (
        dict(scales=0),
        dict(angles=1),
        dict(cells=0),
        dict(scales=6),
        dict(most=2.0),
        dict(cells=True),
    ):
        with pytest.raises(InputError, match=r"scales|angles|cells|most"):
            Scattering(**wrong)


def test_channels_may_stand_before():
    images = RNG.random((5, 10, 12, 3), dtype=np.float32)
    assert (Scattering().apply(np.moveaxis(images, 3, 1)) == Scattering().apply(images)).all()
    assert Scattering().features((3, 32, 32)) == 972


def test_automatic_by_the_shape_and_the_budget_alone():
    for shape in ((28, 28), (8, 9, 3), (3, 32, 32)):
        assert Scattering.pays((Grid("x", shape),), 1e4) and not Scattering.pays(
            (Grid("x", shape),), 10.0
        )
    for shape in ((784,), (7, 28), (28, 28, 5), (3, 32, 7)):
        assert not Scattering.pays((Grid("x", shape),), 1e9)
    assert not Scattering.pays((Number("a"),), 1e9)
    assert [
        Scattering.for_budget((Grid("x", (28, 28)),), resolved).cells for resolved in (249.0, 250.0)
    ] == [2, 4]


def test_large_images_are_averaged_down_over_whole_blocks():
    images = RNG.random((2, 96, 64), dtype=np.float32)
    assert smaller(images) == pytest.approx(
        images.reshape(2, 48, 2, 32, 2).mean(axis=(2, 4)), abs=1e-6
    )
    assert smaller(images[:, :, :63]).shape == (2, 96, 63)
    assert smaller(np.ones((1, 250, 224), np.float32)).shape == (1, 35, 32)
    assert Scattering().features((224, 224)) == 1296


def test_moved_images_change_little_and_others_much():
    """What the transform is for: small shifts and other light count for little beside another
    picture."""
    rows = Scattering().apply(np.stack([made()[2], np.roll(made()[2], 1, axis=1), made()[0]]))
    assert np.linalg.norm(rows[0] - rows[1]) < 0.25 * np.linalg.norm(rows[0] - rows[2])


def test_mean_weights_of_cells_sum_to_1():
    for side, cells in ((28, 4), (30, 4), (9, 4), (5, 5)):
        weights = cell_means(side, cells)
        assert weights.sum(axis=1) == pytest.approx(1) and weights.sum(axis=0) == pytest.approx(
            cells / side
        )


def test_as_a_map_of_records_it_reads_pixels_scaled_to_plus_and_minus_1():
    images = RNG.random((6, 9, 11), dtype=np.float32)
    field = Grid("x", (9, 11))
    rows = RowForm((field,), (Scattering(),)).rows([images.reshape(6, -1) * 2 - 1])
    assert rows == pytest.approx(Scattering().apply(images), abs=1e-5)
    with pytest.raises(InputError, match="must have shape"):
        RowForm((Grid("x", (99,)),), (Scattering(),)).norm  # noqa: B018
