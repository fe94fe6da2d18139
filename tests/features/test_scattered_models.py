"""Images from a file to a released model through scattering and patches: trained, hashed, predicted,
streamed, refused in time."""

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits
from typer.testing import CliRunner

import lastiterate as li
from lastiterate.cli import app
from lastiterate.data import Schema, encode, read_table, stream
from lastiterate.estimators import DPLogisticRegression
from lastiterate.features import Scattering, patches
from lastiterate.release.file_training import fit_file
from lastiterate.release.linear_plans import choose_features
from lastiterate.release.prediction import prediction_rows
from lastiterate.release.training_request import Algorithm, Budget, TrainingRequest
from tests.data.test_idx import write

DIGITS = load_digits()
IMAGES, LABELS = (DIGITS.images * 15.9).astype("u1"), DIGITS.target.astype("u1")
TEN = str([str(i) for i in range(10)])
TOML = f'target = "y"\nclasses = {TEN}\n[array]\nlow = 0\nhigh = 255\n'


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    found = tmp_path_factory.mktemp("scattered")
    for name, rows in (("train", slice(1400)), ("t10k", slice(1400, None))):
        write(found / f"{name}-images-idx3-ubyte.gz", IMAGES[rows])
        write(found / f"{name}-labels-idx1-ubyte.gz", LABELS[rows])
    (found / "s.toml").write_text(TOML)
    return found


@pytest.fixture(scope="module")
def trained(folder):
    schema = Schema.read(folder / "s.toml")
    return fit_file(
        TrainingRequest(
            data=str(folder / "train-images-idx3-ubyte.gz"),
            budget=Budget(8.0, 1e-5),
            schema=schema,
            features="scattering",
            algorithm=Algorithm("noisy-gd"),
            test=str(folder / "t10k-images-idx3-ubyte.gz"),
        )
    )


def test_idx_images_are_trained_on_and_predicted(folder, trained, tmp_path):
    assert trained.test_score > 0.9
    assert trained.model.released.weights.shape == (10, 1297)
    place = trained.model.save(tmp_path / "m")
    again = li.load(place)
    assert again.schema.features == (Scattering(),) and li.verify(place).holds
    found = prediction_rows(again, str(folder / "t10k-images-idx3-ubyte.gz"))
    np.savez(tmp_path / "same.npz", images=IMAGES[1400:], X=IMAGES[1400:])
    assert prediction_rows(again, str(tmp_path / "same.npz")) == found
    text = (place / "model.json").read_text()
    (place / "model.json").write_text(text.replace('"cells": 4', '"cells": 3'))
    assert not li.verify(place).holds, "another grid is another model"


def test_streamed_images_have_the_same_bits(folder, tmp_path):
    """Two long pieces of 1400 images, and six short ones of 40: each piece takes the same time."""
    schema = Schema.from_dict(
        Schema.read(folder / "s.toml").to_dict() | {"features": ["scattering"]}
    )
    write(tmp_path / "train-images-idx3-ubyte.gz", IMAGES[:40])
    write(tmp_path / "train-labels-idx1-ubyte.gz", LABELS[:40])
    for place, most, count in ((folder, 1000, 2), (tmp_path, 7, 6)):
        path = place / "train-images-idx3-ubyte.gz"
        whole = encode(read_table(path, schema), schema)
        pieces = list(stream(path, schema).pieces(most))
        assert len(pieces) == count
        assert all(
            np.array_equal(np.concatenate([piece[i] for piece in pieces]), whole[i]) for i in (0, 1)
        )


def test_images_that_do_not_fit_are_refused_before_anything_is_charged(folder, tmp_path):
    def call(*words):
        done = CliRunner().invoke(app, [str(word) for word in words])
        return done.exit_code, done.stdout, " ".join(done.stderr.split())

    ledger = tmp_path / "l.db"
    assert (
        call(
            "ledger",
            "make",
            ledger,
            "--dataset",
            "d",
            "--unit",
            "row",
            "--epsilon",
            5,
            "--delta",
            1e-4,
        )[0]
        == 0
    )
    for name, array, said in (
        ("small", IMAGES[:, :7], "at least 8 x 8 pixels"),
        ("flat", IMAGES.reshape(-1, 64), "must have shape"),
        ("many", np.repeat(IMAGES[..., None], 5, axis=3), "must have shape"),
    ):
        np.savez(tmp_path / f"{name}.npz", X=array, y=LABELS)
        code, out, err = call(
            "train",
            tmp_path / f"{name}.npz",
            "--schema",
            folder / "s.toml",
            "--epsilon",
            1,
            "--features",
            "scattering",
            "--ledger",
            ledger,
            "--dataset",
            "d",
            "--out",
            tmp_path / "m",
        )
        assert code == 2 and not out and said in err and not (tmp_path / "m").exists()
    charged = json.loads(call("ledger", "show", ledger, "--json")[1])["datasets"][0]["releases"]
    assert charged == []


def test_cifar_batches_are_images(tmp_path):
    rng = np.random.default_rng(0)
    records = np.concatenate(
        [rng.integers(0, 10, (20, 1)), rng.integers(0, 256, (20, 3072))], axis=1
    ).astype("u1")
    records.tofile(tmp_path / "data_batch_1.bin")
    schema = Schema.from_dict(
        {
            "target": "y",
            "classes": [str(i) for i in range(10)],
            "features": ["scattering"],
            "array": {"low": 0, "high": 255},
        }
    )
    rows, _ = encode(read_table(tmp_path / "data_batch_1.bin"), schema)
    images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    assert rows == pytest.approx(Scattering().apply(np.ascontiguousarray(images)), abs=1e-5)


def test_a_model_of_patches_needs_nothing_but_its_folder(tmp_path, monkeypatch):
    """Filters and axes follow from the folder's numbers, on a machine that has no cache."""
    rng = np.random.default_rng(1)
    labels = np.arange(120) % 2
    images = rng.integers(0, 90, (120, 12, 10, 3), dtype=np.uint8)
    images[labels == 1, ::3] += 120
    np.savez(tmp_path / "data.npz", X=images, y=labels)
    facts = {
        "target": "y",
        "classes": ["0", "1"],
        "features": [{"type": "Patches", "filters": 12, "axes": 40}],
        "array": {"low": 0, "high": 255},
    }
    fit = fit_file(
        TrainingRequest(
            data=str(tmp_path / "data.npz"),
            budget=Budget(8.0, 1e-5),
            schema=Schema.from_dict(facts),
            algorithm=Algorithm("noisy-gd"),
        )
    )
    place = fit.model.save(tmp_path / "m")
    before = prediction_rows(fit.model, str(tmp_path / "data.npz"))
    patches.basis_of.cache_clear()
    monkeypatch.setattr(patches, "cache_folder", lambda: tmp_path / "empty")
    again = li.load(place)
    assert li.verify(place).holds and again.released.weights.shape == (1, 41)
    assert prediction_rows(again, str(tmp_path / "data.npz")) == before
    estimator = DPLogisticRegression(
        epsilon=8.0, delta=1e-5, schema=Schema.from_dict(facts), random_state=0
    )
    flat = images.reshape(120, -1)
    shaped = facts | {"array": {"low": 0, "high": 255, "shape": [12, 10, 3]}}
    estimator.set_params(schema=Schema.from_dict(shaped)).fit(flat, labels.astype(str))
    assert estimator.score(flat, labels.astype(str)) > 0.8
    text = (place / "model.json").read_text()
    (place / "model.json").write_text(text.replace('"seed": 0', '"seed": 1'))
    assert not li.verify(place).holds, "other filters are another model"


def test_colour_images_get_patches_by_public_numbers(tmp_path):
    schema = Schema.from_dict(
        {"target": "y", "classes": ["0", "1"], "array": {"low": 0, "high": 255}}
    )
    for shape, n, name in (
        ((32, 32, 3), 30_000, "patches"),
        ((28, 28), 30_000, "scattering"),
        ((32, 32, 3), 300, None),
    ):
        maps = choose_features(schema, "auto", shape, n, Budget(1.0, 1e-5)).schema.features
        assert [one.name for one in maps] == ([] if name is None else [name])
