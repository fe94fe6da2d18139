"""A map is part of the released model: trained with, hashed, applied by predict, streamed, shown."""

import json

import numpy as np
import pytest

import lastiterate as li
from lastiterate.data import Array, Schema, encode, encode_features, read_table, stream
from lastiterate.data.table import array_table
from lastiterate.features.map_registry import maps_named
from lastiterate.release.file_training import fit_file
from lastiterate.release.prediction import prediction_rows
from lastiterate.release.training_request import Budget, TrainingRequest
from lastiterate.report.exports import FORMATS
from lastiterate.report.subject import read

TOML = """
target = "label"
classes = ["no", "yes"]
[columns.age]
kind = "number"
low = 0
high = 100
[columns.job]
kind = "category"
values = ["clerk", "cook"]
"""
N = 3000


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mapped")
    rng = np.random.default_rng(1)
    age, job = rng.uniform(0, 100, N), rng.integers(0, 2, N)
    label = np.abs(age - 50) < 25  # no line in age tells them apart
    lines = [
        f"{a:.6f},{('clerk', 'cook')[j]},{('no', 'yes')[int(y)]}"
        for a, j, y in zip(age, job, label, strict=True)
    ]
    (folder / "d.csv").write_text("\n".join(["age,job,label", *lines]) + "\n")
    (folder / "s.toml").write_text(TOML)
    return folder


def fitted(table, features, **more):
    return fit_file(
        TrainingRequest(
            data=str(table / "d.csv"),
            budget=Budget(1.0, 1e-5),
            schema=Schema.read(table / "s.toml"),
            features=features,
            test=str(table / "d.csv"),
            **more,
        )
    )


@pytest.fixture(scope="module")
def trained(table):
    return fitted(table, "curves")


def test_a_curve_learns_what_a_line_cannot(table, trained):
    plain = fitted(table, "plain", calibrated=False)
    assert trained.test_score > 0.85 > 0.6 > plain.test_score
    assert trained.model.released.weights.shape[1] == 12 + 2 + 1
    with pytest.warns(UserWarning, match="the probabilities are not calibrated on records"):
        prediction_rows(plain.model, str(table / "d.csv"), probabilities=True)


def test_the_map_travels_with_the_model(table, trained, tmp_path):
    place = trained.model.save(tmp_path / "m")
    again = li.load(place)
    assert again.schema == trained.model.schema and [one.name for one in again.schema.features] == [
        "curves"
    ]
    assert li.verify(place).holds
    assert prediction_rows(again, str(table / "d.csv"), probabilities=True) == prediction_rows(
        trained.model, str(table / "d.csv")
    ), "calibrated: without a warning, which would be an error here"
    card = FORMATS["model-card"](read(place))["README.md"]
    assert "records become rows by: curves" in card
    listed = FORMATS["sacro"](read(place))["target.yaml"]
    assert 'encoding: "curves"' in listed


def test_another_map_is_another_model(trained, tmp_path):
    place = trained.model.save(tmp_path / "m")
    text = (place / "model.json").read_text()
    (place / "model.json").write_text(text.replace('"knots": 12', '"knots": 11'))
    found = li.verify(place)
    assert not found.holds and any("model.json" in problem for problem in found.problems)


def test_streams_map_as_memory_does(table):
    schema = Schema.from_dict(Schema.read(table / "s.toml").to_dict() | {"features": ["curves"]})
    whole = encode(read_table(table / "d.csv", schema), schema)
    for most in (7, 1000):
        pieces = list(stream(table / "d.csv", schema).pieces(most))
        assert all(
            np.array_equal(np.concatenate([piece[i] for piece in pieces]), whole[i]) for i in (0, 1)
        )


def test_norms_are_the_columns(table):
    schema = Schema.from_dict(Schema.read(table / "s.toml").to_dict() | {"features": "curves"})
    assert schema.form().norm == pytest.approx(np.sqrt(2))
    assert schema.form().names[:2] == ("age~0", "age~1") and schema.form().names[-1] == "job=cook"


def test_schemas_without_maps_are_written_as_before(table):
    assert "features" not in Schema.read(table / "s.toml").to_dict()


def test_a_schema_knows_the_shape_that_its_maps_depend_on():
    schema = Schema(
        array=Array(0.0, 1.0), classes=("0", "1"), features=maps_named("curves")
    ).with_shape((2, 3))
    again = Schema.from_dict(json.loads(json.dumps(schema.to_dict())))
    assert again == schema and again.array.shape == (2, 3)
    rows = np.random.default_rng(0).random((4, 2, 3))
    flat, square = (
        encode_features(array_table(x, None, answers_in="y"), schema)
        for x in (rows.reshape(4, 6), rows)
    )
    assert np.array_equal(flat, square)
    with pytest.raises(li.InputError, match="must have 6 features"):
        encode_features(array_table(np.zeros((4, 5)), None, answers_in="y"), schema)
    assert (
        "shape"
        not in Schema(array=Array(0.0, 1.0), classes=("0", "1"))
        .with_shape((2, 3))
        .to_dict()["array"]
    )
    for wrong in ((), (0, 2), ("a",), 3):
        with pytest.raises(li.InputError, match="shape"):
            Array(0.0, 1.0, shape=wrong)
