"""Estimators in files of other libraries: pickle, joblib, skops and skl2onnx."""

import io
import pickle
import warnings
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import onnxruntime
import pandas
import pytest
import skl2onnx
import skops.io
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import Normalizer

import lastiterate as li
from lastiterate.errors import InputError
from lastiterate.estimators import (
    DPHuberRidge,
    DPLogisticRegression,
    DPSearchCV,
    list_trusted_types,
    register_onnx_converters,
)
from lastiterate.features import SchemaTransformer

RNG = np.random.default_rng(0)
ROWS = 400
X = RNG.normal(size=(ROWS, 4))
LABELS = (X[:, 0] > 0).astype(int)
CANARY = 73.0912345
TABLE = pandas.DataFrame(
    {
        "age": [CANARY, *RNG.uniform(18, 90, ROWS - 1)],
        "job": ["canary-job", *RNG.choice(["cook", "nurse"], ROWS - 1)],
        "note": ["canary-note", *RNG.choice(["much pain", "none"], ROWS - 1)],
        "who": ["canary-who", *(f"p{i}" for i in range(ROWS - 1))],
    }
)
ANSWERS = np.where(TABLE["age"] > 50, "yes", "no")
SCHEMA = {
    "target": "ill",
    "classes": ["no", "yes"],
    "columns": {
        "age": {"kind": "number", "low": 0, "high": 100},
        "job": {"kind": "category", "values": ["cook", "nurse"], "outside": "zero"},
        "note": {"kind": "text"},
        "who": {"kind": "id"},
    },
}
TYPES = set(list_trusted_types())


def fit(kind: str) -> tuple[Any, Any]:
    """A fitted estimator, and what it was fitted on."""
    with warnings.catch_warnings(action="ignore"):
        match kind:
            case "table":
                return DPLogisticRegression(schema=SCHEMA, features="words").fit(
                    TABLE, ANSWERS
                ), TABLE
            case "read schema":
                schema = li.data.Schema.from_dict(SCHEMA)
                return DPLogisticRegression(schema=schema, features="words").fit(
                    TABLE, ANSWERS
                ), TABLE
            case "numbers":
                return DPHuberRidge(row_norm=2.0, target_range=(-3, 3)).fit(X, X[:, 0]), X
            case "search":
                inner = DPLogisticRegression(row_norm=2.0, classes=[0, 1])
                search = DPSearchCV(inner, {"row_norm": [1.0, 2.0]}, epsilon=1.0)
                return search.fit(X, LABELS), X
            case _:
                inner = DPLogisticRegression(row_norm=1.0, classes=[0, 1], random_state=0)
                return make_pipeline(Normalizer(), inner).fit(X, LABELS), X


def joblib_bytes(estimator: Any) -> bytes:
    file = io.BytesIO()
    joblib.dump(estimator, file)
    return file.getvalue()


def dump_and_load(estimator: Any, form: str) -> tuple[bytes, Any]:
    if form == "skops":
        content = skops.io.dumps(estimator)
        unknown = skops.io.get_untrusted_types(data=content)
        assert set(unknown) <= TYPES
        return content, skops.io.loads(content, trusted=unknown)
    if form == "joblib":
        content = joblib_bytes(estimator)
        return content, joblib.load(io.BytesIO(content))
    content = pickle.dumps(estimator)
    return content, pickle.loads(content)


@pytest.mark.parametrize("kind", ["table", "read schema", "numbers", "search", "pipeline"])
def test_estimators_survive_with_their_certificate(kind: str) -> None:
    estimator, data = fit(kind)
    last = estimator[-1] if kind == "pipeline" else estimator
    for form in ("pickle", "joblib", "skops"):
        content, loaded = dump_and_load(estimator, form)
        again = loaded[-1] if kind == "pipeline" else loaded
        assert (loaded.predict(data) == estimator.predict(data)).all(), form
        assert again.certificate_.epsilon(1e-5) == last.certificate_.epsilon(1e-5) <= 1.0
        assert again.certificate_.all_caveats() == last.certificate_.all_caveats()
        assert again.get_params().keys() == last.get_params().keys()
        assert len(content) < 200_000  # no search tables of theorems
        for secret in (b"canary", np.float64(CANARY).tobytes(), np.float32(CANARY).tobytes()):
            assert secret not in content, form
        assert repr(CANARY).encode() not in content


def test_notebooks_show_the_privacy() -> None:
    estimator, _ = fit("numbers")
    said = f"epsilon {estimator.certificate_.epsilon(estimator.delta_):.4g} at delta"
    assert said in estimator._repr_mimebundle_()["text/html"]
    assert "at delta" not in DPHuberRidge(row_norm=2.0)._repr_mimebundle_()["text/html"]


def test_a_pickled_model_is_its_folder(tmp_path: Path) -> None:
    model = fit("numbers")[0].fitted_
    loaded = pickle.loads(pickle.dumps(model))
    one, two = model.save(tmp_path / "one"), loaded.save(tmp_path / "two")
    for name in ("weights.safetensors", "model.json"):
        assert (one / name).read_bytes() == (two / name).read_bytes()
    assert li.verify(two).holds


def test_changed_weights_in_a_pickle_are_refused() -> None:
    model = fit("numbers")[0].fitted_
    state = model.__getstate__()
    weights = bytearray(state["files"]["weights.safetensors"])
    weights[-1] ^= 1
    changed = object.__new__(type(model))
    with pytest.raises(InputError, match="does not fit its certificate"):
        changed.__setstate__({"files": state["files"] | {"weights.safetensors": bytes(weights)}})


# Pipelines in ONNX, by skl2onnx.

OPSET = {"": 20, "ai.onnx.ml": 3}


@pytest.fixture(autouse=True)
def _registered() -> None:
    register_onnx_converters()


def run(content: Any, rows: np.ndarray) -> list[Any]:
    session = onnxruntime.InferenceSession(content.SerializeToString())
    return session.run(None, {session.get_inputs()[0].name: rows})


@pytest.mark.parametrize(
    "labels", [[0, 1], ["no", "yes"], ["yes", "no"], [False, True], [1.0, 2.0], [7, 3]]
)
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_pipelines_convert(labels: list[Any], kind: Any) -> None:
    y = np.asarray(labels)[LABELS]
    inner = DPLogisticRegression(row_norm=1.0, classes=labels, random_state=0)
    pipeline: Any = make_pipeline(Normalizer(), inner).fit(X, y)
    rows = X.astype(kind)
    for zipmap in (False, True):
        options = {"zipmap": zipmap}
        made = skl2onnx.to_onnx(pipeline, rows[:1], options=options, target_opset=OPSET)
        label, chances = run(made, rows)
        if zipmap:
            chances = np.array([list(one.values()) for one in chances])
        assert (label == pipeline.predict(rows)).all()
        assert np.abs(chances - pipeline.predict_proba(rows)).max() < 1e-5


def test_regressions_and_searches_convert() -> None:
    for kind in ("numbers", "search"):
        estimator, data = fit(kind)
        estimator = getattr(estimator, "best_estimator_", estimator)
        made = skl2onnx.to_onnx(estimator, data[:1], target_opset=OPSET)
        found = run(made, data)[0]
        assert np.abs(found.ravel() - estimator.predict(data)).max() < 1e-5
        assert found.shape == ((ROWS, 1) if kind == "numbers" else (ROWS,))


def test_what_does_not_convert_says_what_to_do() -> None:
    table = fit("table")[0]
    with pytest.raises(InputError, match=r"write it with fitted_.to_onnx"):
        skl2onnx.to_onnx(table, X[:1], target_opset=OPSET)
    pipeline = fit("pipeline")[0]
    with pytest.raises(InputError, match="must be at least 20"):
        skl2onnx.to_onnx(pipeline, X[:1], target_opset={"": 17, "ai.onnx.ml": 3})


PLACES = {
    "a step": lambda one: one,
    "in a pipeline": make_pipeline,
    "in a union": lambda one: FeatureUnion([("rows", one)]),
    "of columns": lambda one: ColumnTransformer([("rows", one, ["age", "job"])]),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_schema_s_step_names_two_ways_to_a_file(tmp_path: Path, place: str) -> None:
    """The last estimator's file for the rows of the steps before it, or the file of a schema's
    estimator."""
    schema = {
        "target": "ill",
        "classes": ["no", "yes"],
        "columns": {
            "age": {"kind": "number", "low": 18, "high": 90},
            "job": {"kind": "category", "values": ["cook", "nurse"]},
        },
    }
    table, y = TABLE.iloc[1:][["age", "job"]], np.where(TABLE["age"][1:] > 50, "yes", "no")
    last = DPLogisticRegression(row_norm=1.5, classes=["no", "yes"])
    pipeline: Any = make_pipeline(PLACES[place](SchemaTransformer(schema)), last).fit(table, y)
    with pytest.raises(InputError, match="must have no SchemaTransformer") as refused:
        skl2onnx.to_onnx(pipeline, table[:1], target_opset=OPSET)
    said = str(refused.value)
    assert (
        "; pipeline[-1].fitted_.to_onnx(FILE) reads the rows that pipeline[:-1].transform" in said
    )
    assert "trained with schema= writes a file that reads the table's columns by fitted_" in said
    file = pipeline[-1].fitted_.to_onnx(tmp_path / "rows.onnx")
    session = onnxruntime.InferenceSession(str(file))
    label = session.run(None, {"x": pipeline[:-1].transform(table)})[0]
    assert (label == pipeline.predict(table)).all()
    alone = DPLogisticRegression(schema=schema, features="plain").fit(table, y)
    session = onnxruntime.InferenceSession(str(alone.fitted_.to_onnx(tmp_path / "table.onnx")))
    cells = {name: table[[name]].to_numpy() for name in table}
    assert (session.run(None, cells)[0] == alone.predict(table)).all()
