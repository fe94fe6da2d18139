"""MLflow models: the answers of ``predict`` where MLflow serves them, and a release that verifies."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import onnx
import pandas
import pytest
import yaml
from fastapi.testclient import TestClient
from mlflow.exceptions import MlflowException
from mlflow.pyfunc import load_model, scoring_server
from safetensors import safe_open
from typer.testing import CliRunner

import lastiterate as li
from lastiterate.cli import app
from lastiterate.errors import InputError
from lastiterate.estimators import DPHuberRidge, DPLogisticRegression
from lastiterate.release.verification import to_safetensors

RNG = np.random.default_rng(0)
ROWS = 300
TABLE = pandas.DataFrame(
    {
        "age": np.where(RNG.random(ROWS) < 0.2, np.nan, RNG.uniform(18, 90, ROWS)),
        "job": RNG.choice(["cook", "nurse", None], ROWS),
        "seen": RNG.choice(["2024-02-29", "2025-12-31"], ROWS),
        "note": RNG.choice(["much pain", "none"], ROWS),
        "who": ["canary-who", *(f"p{i}" for i in range(ROWS - 1))],
    }
)
FACTS: dict[str, Any] = {
    "target": "ill",
    "columns": {
        "age": {"kind": "number", "low": 0, "high": 100, "missing": "indicator"},
        "job": {"kind": "category", "values": ["cook", "nurse"], "missing": "indicator"},
        "seen": {"kind": "date", "first": "2020-01-01", "last": "2026-12-31"},
        "note": {"kind": "text"},
        "who": {"kind": "id"},
    },
}
AGES = TABLE["age"].fillna(0.0).to_numpy()


@pytest.fixture(scope="module")
def classifier() -> Any:
    estimator = DPLogisticRegression(schema=FACTS | {"classes": ["no", "yes"]}, features="words")
    return estimator.fit(TABLE, np.where(AGES > 50, "yes", "no"))


@pytest.fixture(scope="module")
def written(classifier: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return classifier.fitted_.to_mlflow(tmp_path_factory.mktemp("flow") / "made")


def test_mlflow_answers_as_predict_does(classifier: Any, written: Path) -> None:
    found = load_model(str(written)).predict(TABLE.drop(columns="who"))
    assert found["prediction"].tolist() == classifier.predict(TABLE).tolist()
    chances = found[["probability_no", "probability_yes"]].to_numpy()
    assert (chances == classifier.predict_proba(TABLE)).all()


def test_a_scoring_server_answers(classifier: Any, written: Path) -> None:
    """As ``mlflow models serve`` does, whose application this is."""
    served = TestClient(scoring_server.init(load_model(str(written))))
    rows = TABLE.drop(columns="who").head(5)
    body = {"dataframe_split": json.loads(rows.to_json(orient="split", index=False))}
    answer = served.post("/invocations", json=body)
    assert answer.status_code == 200, answer.text
    labels = [row["prediction"] for row in answer.json()["predictions"]]
    assert labels == classifier.predict(TABLE.head(5)).tolist()
    del body["dataframe_split"]["columns"][0]
    body["dataframe_split"]["data"] = [row[1:] for row in body["dataframe_split"]["data"]]
    assert served.post("/invocations", json=body).status_code == 400


DAYS = pandas.to_datetime(TABLE["seen"])
YEARS = TABLE["age"].round()
FRAMES = {
    "integers": {"age": YEARS.fillna(40).astype("int64")},
    "integers with missing ones": {"age": YEARS.astype("Int64")},
    "single precision": {"age": YEARS.astype("float32")},
    "days": {"seen": DAYS},
    "dates": {"seen": DAYS.dt.date},
    "categories": {
        "job": TABLE["job"].astype("category"),
        "seen": TABLE["seen"].astype("category"),
    },
    "strings": {"job": TABLE["job"].astype("string")},
    "all missing": {"age": np.nan, "job": None},
}


@pytest.mark.parametrize("name", FRAMES)
def test_ordinary_frames_are_accepted(name: str, classifier: Any, written: Path) -> None:
    frame = TABLE.assign(**FRAMES[name])
    found = load_model(str(written)).predict(frame.drop(columns="who"))
    chances = found[["probability_no", "probability_yes"]].to_numpy()
    assert (chances == classifier.predict_proba(frame)).all()


@pytest.mark.parametrize("name", ["age", "job", "seen", "note"])
def test_the_signature_requires_what_the_model_does(
    name: str, classifier: Any, written: Path
) -> None:
    """A cell may be missing where the schema says so, and no column may."""
    served, rest = load_model(str(written)), TABLE.drop(columns=["who", name])
    assert name in served.metadata.signature.inputs.required_input_names()
    with pytest.raises(MlflowException, match=f"missing inputs \\['{name}'\\]"):
        served.predict(rest)
    with pytest.raises(InputError, match="misses the column"):
        classifier.predict(rest)


def test_arrays_are_cast_as_the_guide_says(tmp_path: Path) -> None:
    rows = RNG.integers(-2, 3, (ROWS, 4))
    model = DPLogisticRegression(row_norm=2.0, classes=[0, 1]).fit(rows, rows[:, 0] > 0)
    served = load_model(str(model.fitted_.to_mlflow(tmp_path / "rows")))
    for given in (rows, rows.astype("float32"), pandas.DataFrame(rows)):
        with pytest.raises(MlflowException, match="float64"):
            served.predict(given)
        found = served.predict(given.astype("float64"))
        assert (found["prediction"] == model.predict(rows)).all()


def test_its_metadata_state_the_privacy(classifier: Any, written: Path) -> None:
    stated = yaml.safe_load((written / "MLmodel").read_text())["metadata"]
    assert float(stated["privacy.epsilon"]) == classifier.certificate_.epsilon(classifier.delta_)
    assert float(stated["privacy.delta"]) == classifier.delta_
    assert stated["privacy.adjacency"] == "zero-out"
    assert stated["privacy.unit"] == "one row"


def test_metadata_of_a_model_of_persons_name_them(tmp_path: Path) -> None:
    """In every form that states a unit, and in a notebook."""
    rows, persons = RNG.normal(size=(ROWS, 3)), np.repeat(np.arange(ROWS // 3), 3)
    estimator = DPLogisticRegression(row_norm=2.0, classes=[0, 1], rows_per_unit=2, epsilon=4.0)
    units = pandas.Series(persons, name="patient")
    estimator.fit(rows, (rows[:, 0] > 0).astype(int), units=units)
    model, whose = estimator.fitted_, "one patient with at most 2 rows"
    flow = yaml.safe_load((model.to_mlflow(tmp_path / "flow") / "MLmodel").read_text())
    assert flow["metadata"]["privacy.unit"] == whose
    made = onnx.load(model.to_onnx(tmp_path / "m.onnx"))
    texts = {one.key: one.value for one in made.metadata_props}
    assert texts["lastiterate.unit"] == whose
    (tmp_path / "m.safetensors").write_bytes(to_safetensors(model.files()))
    with safe_open(tmp_path / "m.safetensors", "np") as file:
        assert file.metadata()["unit"] == whose
    assert whose in estimator._repr_mimebundle_()["text/html"]


def test_its_example_and_signature_are_public(written: Path) -> None:
    model = load_model(str(written))
    names = [column.name for column in model.metadata.signature.inputs]
    assert names == ["age", "job", "seen", "note"]
    example = json.loads((written / "input_example.json").read_text())
    assert example["data"] == [[50.0, "cook", "2020-01-01", "some words"]]
    for file in written.rglob("*"):
        assert file.is_dir() or b"canary" not in file.read_bytes()


def test_arrays_and_regressions(tmp_path: Path) -> None:
    rows = RNG.normal(size=(ROWS, 4))
    labels = DPLogisticRegression(row_norm=2.0, classes=[0, 1]).fit(rows, rows[:, 0] > 0)
    served = load_model(str(labels.fitted_.to_mlflow(tmp_path / "rows")))
    assert (served.predict(rows)["prediction"] == labels.predict(rows)).all()
    numbers = DPHuberRidge(schema=FACTS | {"target_range": [0, 100]}, features="plain")
    with warnings.catch_warnings(action="ignore"):  # of a text that plain features do not use
        table = TABLE.drop(columns="note")
        facts = FACTS | {"target_range": [0, 100]}
        facts["columns"] = {k: v for k, v in FACTS["columns"].items() if k != "note"}
        numbers = DPHuberRidge(schema=facts, features="plain").fit(table, AGES)
    where = numbers.fitted_.to_mlflow(tmp_path / "numbers")
    found = load_model(str(where)).predict(table.drop(columns="who"))
    assert list(found) == ["prediction"]
    assert (found["prediction"] == numbers.predict(table)).all()
    assert li.verify(where).holds


def test_it_verifies(written: Path) -> None:
    checked = li.verify(written)
    assert checked.holds and checked.epsilon is not None and checked.epsilon <= 1.0
    assert set(checked.uncovered) == {
        "conda.yaml",
        "input_example.json",
        "python_env.yaml",
        "requirements.txt",
        "serving_input_example.json",
    }


def rewrite(place: Path, **changes: Any) -> None:
    body = yaml.safe_load((place / "MLmodel").read_text())
    for path, value in changes.items():
        inner = body
        *names, last = path.split("__")
        for name in names:
            inner = inner[name]
        inner[last.replace("_dot_", ".")] = value
    (place / "MLmodel").write_text(yaml.safe_dump(body))


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "epsilon": ({"metadata__privacy_dot_epsilon": "0.1"}, "privacy.epsilon"),
    "unit": ({"metadata__privacy_dot_unit": "one person"}, "privacy.unit"),
    "signature": (
        {"signature__inputs": json.dumps([{"type": "double", "name": "age", "required": True}])},
        "signature",
    ),
    "code": ({"flavors__python_function__code": "code"}, "other code"),
    "another flavour": ({"flavors__sklearn": {"pickled_model": "model.pkl"}}, "other code"),
}


@pytest.mark.parametrize(("change", "said"), CHANGES.values(), ids=CHANGES)
def test_changes_are_found(
    change: dict[str, Any], said: str, written: Path, tmp_path: Path
) -> None:
    place = tmp_path / "changed"
    shutil.copytree(written, place)
    rewrite(place, **change)
    checked = li.verify(place)
    assert not checked.holds
    assert said in " ".join(checked.problems)
    done = CliRunner().invoke(app, ["verify", str(place)])
    assert done.exit_code == 1


def test_a_changed_weight_is_found(written: Path, tmp_path: Path) -> None:
    place = tmp_path / "changed"
    shutil.copytree(written, place)
    weights = place / "data/model/weights.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert not li.verify(place).holds
    with pytest.raises((MlflowException, InputError), match="does not fit its certificate"):
        load_model(str(place))


def test_another_loader_is_no_model_of_ours(written: Path, tmp_path: Path) -> None:
    for path, value in (("loader_module", "evil"), ("data", "../../elsewhere")):
        place = tmp_path / path
        shutil.copytree(written, place)
        rewrite(place, **{f"flavors__python_function__{path}": value})
        with pytest.raises(InputError, match="MLflow model that lastiterate wrote"):
            li.verify(place)


def test_the_command_line_writes_and_verifies(classifier: Any, tmp_path: Path) -> None:
    folder, out = classifier.fitted_.save(tmp_path / "model"), tmp_path / "flow"
    run = CliRunner().invoke
    done = run(app, ["export", str(folder), "--to", "mlflow", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert run(app, ["verify", str(out)]).exit_code == 0
    again = run(app, ["export", str(folder), "--to", "mlflow", "--out", str(out)])
    assert again.exit_code == 2 and "must not exist yet" in again.output
    with pytest.raises(InputError, match="name the one within"):
        li.verify(out, key=tmp_path / "key.pem")


def test_a_logged_model_carries_tags(
    classifier: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # the small MLflow has no database
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(f"file://{tmp_path}/runs")
    try:
        mlflow.set_experiment("releases")
        with mlflow.start_run() as run:
            made = classifier.fitted_.log_to_mlflow("model", tags={"team": "a"})
        tags = mlflow.get_run(run.info.run_id).data.tags
        assert float(tags["privacy.epsilon"]) <= 1.0 and tags["team"] == "a"
        found = load_model(made.model_uri).predict(TABLE.drop(columns="who"))
        assert found["prediction"].tolist() == classifier.predict(TABLE).tolist()
        assert li.verify(mlflow.artifacts.download_artifacts(made.model_uri)).holds
    finally:
        mlflow.set_tracking_uri(before)
