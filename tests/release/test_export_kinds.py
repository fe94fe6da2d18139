"""Every kind of model in every form: the answers of ``predict`` in the form's own runtime, or a
refusal that says why; and no cell of a private table in any byte."""

import io
import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import joblib
import mlflow.pyfunc
import numpy as np
import onnxruntime
import pandas
import pytest
import safetensors.numpy
import skops.io
from huggingface_hub import ModelCard
from lastiterate_check.__main__ import main
from lastiterate_check.exports import read_release

import lastiterate as li
from lastiterate.bayes.linear import ClippedRows, LinearModel
from lastiterate.bayes.posterior_subject import RidgePosterior, sample_posterior
from lastiterate.data.schema import Schema
from lastiterate.errors import InputError
from lastiterate.estimators import DPLogisticRegression, DPSearchCV, list_trusted_types
from lastiterate.features import SchemaTransformer
from lastiterate.release.mlflow_model import Scorer
from lastiterate.release.posterior import FittedSample, with_constant
from lastiterate.release.score_meaning import Labels
from lastiterate.report.exports import MODEL_FORMATS, export_files
from lastiterate.report.subject import read
from release.test_onnx_model import make_model

RNG = np.random.default_rng(3)
ROWS = 40
CANARY = 73.0912345
SECRETS = [b"canary", repr(CANARY).encode()]
SECRETS += [np.asarray(CANARY, kind).tobytes() for kind in (np.float64, np.float32)]
TABLE: dict[str, list[Any]] = {
    "age": [CANARY, *RNG.uniform(0, 100, ROWS - 1)],
    "town": [*RNG.choice(["Rom", "Oslo"], ROWS)],
    "note": ["canary-note", *RNG.choice(["much pain", "none"], ROWS - 1)],
    "who": ["canary-who", *(f"p{i}" for i in range(ROWS - 1))],
}
COLUMNS = {
    "age": {"kind": "number", "low": 0, "high": 100},
    "town": {"kind": "category", "values": ["Rom", "Oslo"]},
    "who": {"kind": "id"},
}
ARRAY = RNG.uniform(0, 255, (ROWS, 96)).astype(np.float32)
ARRAY[0, 0] = CANARY
RAW = ARRAY[:, :5] / 255
HALVES = np.arange(ROWS) % 2


@dataclass(frozen=True)
class Case:
    """A model, and records in the form that its exports take them."""

    model: Any
    records: Any
    rows: np.ndarray


def of_table(features: Any = (), /, *, words: bool = False, **more: Any) -> Case:
    columns = COLUMNS | ({"note": {"kind": "text"}} if words else {})
    facts = {"target": "ill", "columns": columns, "features": list(features)}
    target = more.pop("target", {"classes": ["no", "yes"]})
    schema = Schema.from_dict(facts | target)
    table = {name: cells for name, cells in TABLE.items() if name != "note" or words}
    rows = SchemaTransformer(schema).fit_transform(table)
    answers = HALVES if "classes" in target else RNG.uniform(-1, 1, ROWS)
    return Case(make_model(rows, answers, schema, **more), table, rows)


def of_images(features: Any) -> Case:
    array = {"low": 0.0, "high": 255.0, "shape": [8, 12]}
    facts = {"target": "y", "classes": ["a", "b"], "array": array, "features": [features]}
    schema = Schema.from_dict(facts)
    rows = SchemaTransformer(schema).fit_transform(ARRAY)
    return Case(make_model(rows, HALVES, schema), ARRAY, rows)


def of_threshold() -> Case:
    case = of_table()
    answers = Labels(("no", "yes"), float(np.median(case.model.probabilities(case.rows)[:, 1])))
    return Case(replace(case.model, answers=answers), case.records, case.rows)


def of_rows(classes: int = 2, **more: Any) -> Case:
    return Case(make_model(RAW, np.arange(ROWS) % classes, None, **more), RAW, RAW)


def of_units() -> Case:
    run = li.Run(n=ROWS // 2, steps=2, step_size=0.1, loss=li.Logistic(), rows_per_record=2)
    who = np.arange(ROWS) // 2
    with warnings.catch_warnings(action="ignore"):
        return Case(li.train(run, (RAW, HALVES), unit=who, epsilon=15.0, delta=1e-5), RAW, RAW)


def of_exact_noise() -> Case:
    run = li.Run(n=ROWS, steps=2, step_size=0.1, loss=li.Logistic())
    with warnings.catch_warnings(action="ignore"):
        made = li.train(run, (RAW, HALVES), epsilon=15.0, delta=1e-5, secure_noise=True)
    return Case(made, RAW, RAW)


def of_search() -> Case:
    inner = DPLogisticRegression(row_norm=1.0, classes=[0, 1])
    with warnings.catch_warnings(action="ignore"):
        search = DPSearchCV(inner, {"row_norm": [1.0, 2.0]}, epsilon=8.0).fit(RAW, HALVES)
    return Case(search.best_estimator_.fitted_, RAW, RAW)


def of_sample() -> Case:
    problem = RidgePosterior(
        LinearModel(prior_precision=40.0), ClippedRows(n=ROWS, features=5, row_norm=1.0)
    )
    drawn = sample_posterior(problem, RAW, RAW[:, 0])
    model = FittedSample(proof=drawn.certificate, delta=1e-5, problem=problem, value=drawn.value)
    return Case(model, RAW, RAW)


def of_sampled_table() -> Case:
    """Rows are clipped to less than their norms, and get a constant column."""
    case = of_table(target={"target_range": [0.0, 30.0]})
    domain = ClippedRows(n=ROWS, features=case.rows.shape[1] + 1, row_norm=2.0)
    problem = RidgePosterior(LinearModel(prior_precision=40.0), domain)
    drawn = sample_posterior(problem, with_constant(case.rows, 0.7), case.rows[:, 0])
    model = FittedSample(
        proof=drawn.certificate,
        delta=1e-5,
        problem=problem,
        value=drawn.value,
        column=0.7,
        schema=case.model.schema,
        answers=case.model.answers,
    )
    return Case(model, case.records, case.rows)


RUN = li.Run(n=ROWS, steps=2, step_size=0.1, clip=1.0, noise=li.NoiseMultiplier(9.0))


def forward(params: Any, x: Any) -> Any:
    return jnp.tanh(x @ params["w"]).sum()


def of_network() -> Case:
    def loss(params: Any, x: Any, y: Any) -> Any:
        return (forward(params, x) - y) ** 2

    first = {"w": RNG.normal(size=(5, 3)).astype(np.float32)}
    return Case(li.train(RUN, (RAW, HALVES), model=first, loss=loss), RAW, RAW)


def of_module() -> Case:
    torch = pytest.importorskip("torch")
    data = torch.from_numpy(RAW), torch.from_numpy(HALVES)
    loss = torch.nn.functional.cross_entropy
    return Case(li.train(RUN, data, model=torch.nn.Linear(5, 2), loss=loss), RAW, RAW)


KINDS: dict[str, Callable[[], Case]] = {
    "rows": of_rows,
    "three classes": lambda: of_rows(3),
    "table": of_table,
    "curves": lambda: of_table(["curves"]),
    "bins": lambda: of_table(["bins"]),
    "gated": lambda: of_table(["gated"]),
    "words": lambda: of_table(["words"], words=True),
    "scattering": lambda: of_images({"type": "Scattering"}),
    "patches": lambda: of_images({"type": "Patches", "filters": 8, "axes": 20}),
    "fourier": lambda: of_rows(preprocessing=(li.CosineFeatures(5.0, count=8),)),
    "regression": lambda: of_table(target={"target_range": [0.0, 30.0]}),
    "threshold": of_threshold,
    "units": of_units,
    "exact noise": of_exact_noise,
    "search": of_search,
    "posterior sample": of_sample,
    "posterior sample of a table": of_sampled_table,
    "JAX network": of_network,
    "PyTorch module": of_module,
}
REFUSED = {
    ("words", "onnx"): "",
    **{(kind, "onnx"): "in Python a PyTorch module" for kind in ("JAX network", "PyTorch module")},
    **{(kind, "mlflow"): "own flavour" for kind in ("JAX network", "PyTorch module")},
    **{
        (kind, form): "the forward pass of networks and modules is your code"
        for kind in ("JAX network", "PyTorch module")
        for form in ("skops", "sklearn")
    },
}
"""Kinds of models and forms that there are not, and a part of the reason."""


@cache
def case_of(kind: str) -> Case:
    return KINDS[kind]()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    place = tmp_path_factory.mktemp("kinds")

    def folder_of(kind: str) -> Path:
        folder = place / kind.replace(" ", "-")
        return folder if folder.exists() else case_of(kind).model.save(folder)

    return folder_of


def expected(case: Case) -> np.ndarray:
    """Probabilities, or predictions of numbers."""
    if isinstance(getattr(case.model, "answers", None), Labels):
        return case.model.probabilities(case.rows)
    if isinstance(case.records, np.ndarray) and case.model.kind == "network":
        return case.model.predict(case.rows, forward)
    return case.model.predict(case.rows)


def answer_onnx(case: Case, content: bytes) -> np.ndarray:
    session = onnxruntime.InferenceSession(content)
    if isinstance(case.records, np.ndarray):
        double = session.get_inputs()[0].type == "tensor(double)"
        given = {"x": case.records.astype(np.float64 if double else np.float32)}
    else:
        names = [one.name for one in session.get_inputs()]
        given = {
            name: np.array(case.records[name], np.float64 if name == "age" else object)[:, None]
            for name in names
        }
    found = session.run(None, given)
    assert found[-1].shape == (ROWS,) and not found[-1].any()
    if len(found) == 3:
        assert found[0].tolist() == case.model.predict(case.rows).tolist()
    return found[-2]


def answer_estimator(case: Case, estimator: Any) -> np.ndarray:
    labels = estimator.predict(case.records)
    assert labels.tolist() == case.model.predict(case.rows).tolist()
    return estimator.predict_proba(case.records) if hasattr(estimator, "classes_") else labels


def answer_skops(case: Case, content: bytes) -> np.ndarray:
    found = skops.io.loads(content, trusted=list_trusted_types())
    return answer_estimator(case, found)


def answer_joblib(case: Case, content: bytes) -> np.ndarray:
    return answer_estimator(case, joblib.load(io.BytesIO(content)))


def answer_weights(case: Case, content: bytes) -> np.ndarray:
    """Of a network and a module by the caller's code; of the others the certified weights."""
    arrays = safetensors.numpy.load(content)
    if case.model.kind == "network":
        return np.array([forward({"w": arrays["0"]}, x) for x in case.rows])
    if case.model.kind == "torch":
        return case.rows @ arrays["weight"].T + arrays["bias"]
    _, own = case.model.contents()
    assert arrays.keys() == own.keys()
    assert all((arrays[name] == own[name]).all() for name in own)
    return expected(case)


RUNTIMES: dict[str, Callable[[Case, bytes], np.ndarray]] = {
    "onnx": answer_onnx,
    "skops": answer_skops,
    "sklearn": answer_joblib,
    "safetensors": answer_weights,
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_form(kind: str, folders: Any, tmp_path: Path) -> None:
    case, folder = case_of(kind), folders(kind)
    subject, right = read(folder), expected(case)
    assert set(MODEL_FORMATS) == {*RUNTIMES, "mlflow", "huggingface"}
    for form, answer in RUNTIMES.items():
        if (kind, form) in REFUSED:
            with pytest.raises(InputError) as refusal:
                export_files(subject, form, folder)
            assert REFUSED[kind, form] in str(refusal.value)
            continue
        ((name, content),) = export_files(subject, form, folder).items()
        np.testing.assert_allclose(answer(case, content), right, atol=1e-5)
        (tmp_path / name).write_bytes(content)
        assert li.verify(tmp_path / name).holds, form
        assert read_release(tmp_path / name)[0]["content_sha256"] == subject.body["content_sha256"]
        assert not [secret for secret in SECRETS if secret in content], form
    hub = case.model.to_huggingface(tmp_path / "hub")
    for file in hub.iterdir():
        assert not [secret for secret in SECRETS if secret in file.read_bytes()], file.name
    checked = li.verify(hub)
    assert checked.holds and not checked.uncovered and main([str(hub)]) in (0, 3)
    card = ModelCard.load(hub / "README.md")
    assert card.data.library_name == "lastiterate"
    assert card.data.differential_privacy["epsilon"] == checked.epsilon
    found = answer_weights(case, (hub / "weights.safetensors").read_bytes())
    np.testing.assert_allclose(found, right, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_mlflow(kind: str, folders: Any, tmp_path: Path) -> None:
    """What MLflow calls; ``test_mlflow_model`` has its own loader and server."""
    case, folder = case_of(kind), folders(kind)
    if (kind, "mlflow") in REFUSED:
        with pytest.raises(InputError, match=REFUSED[kind, "mlflow"]):
            export_files(read(folder), "mlflow", folder)
        return
    if kind == "posterior sample of a table":  # MLflow's own loader
        served = case.model.to_mlflow(tmp_path / "served")
        assert li.verify(served).holds
        for file in served.rglob("*"):
            assert file.is_dir() or not [one for one in SECRETS if one in file.read_bytes()]
        table = pandas.DataFrame(case.records).drop(columns="who")
        found = mlflow.pyfunc.load_model(str(served)).predict(table)
    else:
        found = Scorer(li.load(folder)).predict(case.records)
    assert found["prediction"].tolist() == case.model.predict(case.rows).tolist()
    if found.shape[1] > 1:
        np.testing.assert_allclose(found.to_numpy()[:, 1:].astype(float), expected(case))


def test_rows_of_a_sample_are_clipped_however_long(tmp_path: Path) -> None:
    case = case_of("posterior sample")
    rows = np.vstack([np.zeros(5), np.full(5, 1e200), np.full(5, 1e-200), 10.0 * RAW[0]])
    session = onnxruntime.InferenceSession(case.model.to_onnx(tmp_path / "m.onnx").read_bytes())
    found, refused = session.run(None, {"x": rows})
    np.testing.assert_allclose(found, case.model.predict(rows), rtol=1e-12)
    assert not refused.any() and session.run(None, {"x": np.full((2, 5), np.inf)})[1].all()


ALONE = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in {*sys.stdlib_module_names, "numpy", "onnxruntime"}:
            raise ImportError(name)

sys.meta_path.insert(0, Absent())
import json
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession(sys.argv[1])
given = {
    name: np.array(cells, np.float64 if isinstance(cells[0], float) else object)[:, None]
    for name, cells in json.loads(sys.argv[2]).items()
}
label, chances, refused = session.run(None, given)
print(json.dumps([label.tolist(), chances.tolist(), refused.any().tolist()]))
"""


def test_a_server_needs_onnxruntime_and_numpy_alone(tmp_path: Path) -> None:
    """Everything else is absent, as where a fresh environment has ``onnxruntime`` alone."""
    case = case_of("table")
    file = case.model.to_onnx(tmp_path / "m.onnx")
    table = {name: case.records[name] for name in ("age", "town")}
    done = subprocess.run(
        [sys.executable, "-I", "-c", ALONE, str(file), json.dumps(table)],
        check=True,
        capture_output=True,
        text=True,
    )
    label, chances, refused = json.loads(done.stdout)
    assert label == case.model.predict(case.rows).tolist() and not refused
    np.testing.assert_allclose(chances, expected(case), atol=1e-7)
