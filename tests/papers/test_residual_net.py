"""The residual net of Table 3: one image at a time, no batch normalisation, and what is said
without Equinox."""

import json
import sys
from dataclasses import replace

import equinox as eqx
import jax
import numpy as np
import pytest
from typer.testing import CliRunner

import lastiterate as li
from lastiterate.cli import app
from lastiterate.errors import InputError
from lastiterate_papers import ITEMS, Panel, Result, Row, ryffel_table3
from lastiterate_papers.item import Item, by_name
from lastiterate_papers.residual_net import first_net, mapped, parted

train = li.train

IMAGES = np.random.default_rng(0).random((5, 12, 12)).astype(np.float32)
TABLE_3 = by_name(ITEMS, "ryffel-table3")


def test_images_are_treated_one_by_one_and_normalised_within_each():
    net = first_net(0, classes=3, width=4)
    net = eqx.tree_at(
        lambda net: net.tail.head.weight, net, np.arange(12, dtype=np.float32).reshape(3, 4)
    )
    together, alone = mapped(net, IMAGES), mapped(net, IMAGES[2:3])
    assert (
        together[2] == pytest.approx(alone[0], abs=1e-5)
        and together.shape == (5, 3)
        and together.std() > 0.1
    )
    bright = np.asarray(net.tail.block.first_norm(np.stack([10 * IMAGES[0] + 7] * 4)))
    assert bright.mean() == pytest.approx(0, abs=1e-5) and bright.std() == pytest.approx(
        1, abs=1e-2
    )
    assert [jax.eval_shape(net.stem, np.zeros((side, side))).shape for side in (8, 12, 28)] == [
        (4, 4, 4),
        (4, 6, 6),
        (4, 7, 7),
    ]
    with pytest.raises(InputError, match="multiple of 4"):
        first_net(0, classes=3, width=6)


def test_the_arrays_are_what_is_trained_and_combine_to_the_same_net():
    net = first_net(0, classes=3, width=4)
    arrays, loss = parted(net)
    assert (
        len(jax.tree.leaves(arrays)) == 1 + 2 * 6 + 2
    )  # filters, two blocks of two layers, the head
    assert float(loss(arrays, IMAGES[0], 1)) == pytest.approx(
        np.log(3), abs=1e-5
    )  # the head is 0 at first


def test_batch_normalisation_is_found_in_the_net_before_anything_is_paid():
    net = first_net(
        0,
        classes=2,
        width=4,
        norm=lambda width: eqx.nn.BatchNorm(width, axis_name="records", mode="ema"),
    )
    images = np.zeros((100, 8, 8), np.float32)
    part = ryffel_table3.Part(net, images, np.zeros(100, int), images, np.zeros(100, int))
    run = li.Run(n=100, steps=1, step_size=0.3, clip=1.0, noise=li.NoiseMultiplier(50.0))
    with pytest.raises(
        InputError,
        match=r"batch normalisation mixes them, got 'BatchNorm at .stem.block.first_norm'",
    ):
        part.accuracy(run, 0)


def test_without_equinox_the_item_says_what_to_install_and_others_are_made(monkeypatch, tmp_path):
    good = Item(
        "ryffel-good",
        "paper",
        "title",
        "matches",
        lambda work: Result((Row("a", 1.0, 1.0),), (Panel("title", "x", "y", ()),)),
    )
    monkeypatch.setattr("lastiterate_papers.ITEMS", (TABLE_3, good))
    monkeypatch.setitem(sys.modules, "equinox", None)
    monkeypatch.delitem(sys.modules, "lastiterate_papers.residual_net")
    monkeypatch.delattr("lastiterate_papers.residual_net")
    done = CliRunner().invoke(app, ["papers", "--all", "--quick", "--out", str(tmp_path)])
    said = done.stderr.splitlines()[0]
    assert (
        said.startswith("error: ryffel-table3: papers needs equinox")
        and "pip install 'lastiterate[papers]'" in said
    )
    assert (
        done.exit_code == 2
        and json.loads((tmp_path / "ryffel-good.json").read_text())["status"] == "matches"
    )


def test_a_private_cell_is_one_call_of_train_and_the_one_without_noise_is_none(monkeypatch):
    models = []
    monkeypatch.setattr(
        ryffel_table3.li,
        "train",
        lambda *given, **how: models.append(train(*given, **how)) or models[-1],
    )
    x = np.random.default_rng(1).normal(size=(200, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(int)
    part = ryffel_table3.Part(first_net(0, classes=2, width=4).tail.head, x, y, x, y)
    quiet = li.Run(
        n=200,
        steps=4,
        step_size=0.3,
        clip=1e6,
        batching=li.Cyclic(100),
        noise=li.GradientNoise(0.0),
    )
    assert part.accuracy(quiet, 0) > 80 and not models
    assert part.accuracy(replace(quiet, clip=1.0, noise=li.NoiseMultiplier(50.0)), 0) < 80
    (model,) = models
    assert (
        model.certificate.epsilon(ryffel_table3.DELTA) < 1 and type(model.params) is eqx.nn.Linear
    )
