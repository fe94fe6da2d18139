"""From a data file to a model folder and back: what the command line does, for Python."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lastiterate.data import (
    BUNDLED,
    Schema,
    Table,
    encode,
    encode_features,
    load_bundled,
    read_table,
    split,
)
from lastiterate.data.schema import public_row_norm
from lastiterate.errors import InputError
from lastiterate.estimators import DPHuberRidge, DPLogisticRegression
from lastiterate.models import folder as artefact
from lastiterate.planning.planner import Task
from lastiterate.planning.presets import ALGORITHMS, described
from lastiterate.run.batching import Batching
from lastiterate.run.penalties import Prox
from lastiterate.run.run import Run

FORMAT = 1


@dataclass(frozen=True, eq=False)
class Trained:
    """A fitted estimator, its schema, and scores on data that is public (``None`` where there is none)."""

    estimator: Any
    schema: Schema
    test_score: float | None = None
    plain_score: float | None = None


def template(algorithm: str, batching: Batching | None, prox: Prox | None) -> Callable[[Task], Run] | None:
    """What describes the run of a named algorithm for a task; ``None`` where the planner chooses."""
    if algorithm not in ALGORITHMS:
        raise InputError("--algorithm", "must be one of " + ", ".join(ALGORITHMS), algorithm)
    if algorithm != "automatic":
        return lambda task: described(task, algorithm, batching=batching, prox=prox)
    for name, value in (("--batch", batching), ("--prox", prox)):
        if value is not None:
            raise InputError(name, "needs an --algorithm: the automatic plan chooses for itself", value,
                             "add --algorithm permuted-sgd, for example")
    return None


def fit_file(data: str, *, schema: Schema | None = None, test: str | None = None, row_norm: float | None = None,
          progress: Any = None, template: Callable[[Task], Run] | None = None, **budget: Any) -> Trained:
    """Fit on a file (with its schema) or on a bundled public set, of which a fifth is kept for testing."""
    bundled = data in BUNDLED
    if bundled and test is not None:
        raise InputError("--test", "cannot be combined with a bundled set, a fifth of which is kept for testing", test)
    table, own = load_bundled(data) if bundled else (read_table(data), schema)
    if own is None:
        raise InputError("--schema", f"is needed: the public ranges, categories and classes of {Path(data).name}", None,
                         f"write one to fill in with: lastiterate schema {data}")
    features, target = encode(table, own)
    if len(features) < 2:
        raise InputError("data file", "must hold at least two records", len(features))
    public = None if test is None else _public_test(test, own, features.shape[1])  # read before training
    norm = public_row_norm(own, features.shape[1]) if row_norm is None else row_norm
    kept = split(len(features), seed=0) if bundled else (np.arange(len(features)), np.arange(0))
    if template is not None:
        task = Task(len(kept[0]), features.shape[1], 0 if own.regression else len(own.classes), norm)
        budget["run"] = replace(template(task), adjacency=budget.get("adjacency", "zero-out"))
    if own.regression:
        estimator: Any = DPHuberRidge(row_norm=norm, **budget)
    else:
        estimator = DPLogisticRegression(row_norm=norm, classes=np.arange(len(own.classes)), **budget)
    estimator.fit(features[kept[0]], target[kept[0]], progress=progress)
    if bundled:
        held = features[kept[1]], target[kept[1]]
        plain = _plain_score(own, features[kept[0]], target[kept[0]], *held)
        return Trained(estimator, own, float(estimator.score(*held)), plain)
    return Trained(estimator, own, None if public is None else float(estimator.score(*public)))


def _public_test(path: str, schema: Schema, width: int) -> tuple[np.ndarray, np.ndarray]:
    features, target = encode(read_table(path), schema)
    if features.shape[1] != width:
        raise InputError("--test", f"must have {width} features like the data file", features.shape[1])
    return features, target


def _plain_score(schema: Schema, features: Any, target: Any, test_features: Any, test_target: Any) -> float:
    """Score of the same kind of model without privacy; for bundled public sets only."""
    from sklearn.linear_model import LogisticRegression, Ridge

    model = Ridge() if schema.regression else LogisticRegression(max_iter=2000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(model.fit(features, target).score(test_features, test_target))


def save(trained: Trained, folder: Path) -> None:
    """Write weights, what is needed to predict, and the certificate."""
    from safetensors.numpy import save as pack

    found = trained.estimator
    tensors = {"weights": found.model_.weights} | {f"centre_{i}": c for i, c in enumerate(found.model_.released)}
    model = {"format": FORMAT, "kind": "huber-ridge" if trained.schema.regression else "logistic",
             "schema": trained.schema.to_dict(), "run": found.run_.to_dict(), "row_norm": found.row_norm}
    artefact.save(folder, pack(tensors), model, found.certificate_, found.delta_)


def predict(folder: Path, data: str) -> tuple[list[str], np.ndarray]:
    """Predictions for every record of a file (labels, or numbers as text) and class probabilities (empty if none)."""
    from safetensors import SafetensorError
    from safetensors.numpy import load as unpack

    from lastiterate.engine import Model, scores

    model, packed = artefact.load(folder)
    try:
        schema, run = Schema.from_dict(model["schema"]), Run.from_dict(model["run"])
        tensors = unpack(packed)
        centres = tuple(tensors[f"centre_{i}"] for i in range(len(run.prelude)))
        released = Model(tensors["weights"], centres)
    except (KeyError, SafetensorError) as error:
        raise InputError("model", "must be complete", str(error), "check it with lastiterate verify") from None
    table: Table = read_table(data)
    features = encode_features(table, schema)
    if features.shape[1] != released.weights.shape[1] - 1:
        raise InputError("data file", f"must have {released.weights.shape[1] - 1} features like the model",
                         features.shape[1])
    found = scores(run, released, features)
    if schema.target_range is not None:
        low, high = schema.target_range
        values = low + (np.clip(found[:, 0], -1, 1) + 1) * (high - low) / 2
        return [f"{value:.6g}" for value in values], np.empty((len(values), 0))
    logits = found if found.shape[1] > 1 else np.column_stack((np.zeros(len(found)), found[:, 0]))
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    chances = weights / weights.sum(axis=1, keepdims=True)
    return [schema.classes[i] for i in chances.argmax(axis=1)], chances


def prediction_rows(folder: Path, data: str) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the CSV that ``predict`` writes."""
    labels, chances = predict(folder, data)
    schema = Schema.from_dict(artefact.load(folder)[0]["schema"])
    header = ["prediction", *(f"probability_{name}" for name in schema.classes)]
    return header, [[label, *(f"{chance:.6g}" for chance in row)] for label, row in zip(labels, chances, strict=True)]


def schema_for(data: str, path: Path | None, *, target: str | None, classes: str | None,
               model: str | None) -> Schema | None:
    """The schema of a data file with what the flags change in it; ``None`` for bundled sets."""
    if model not in (None, "logistic", "huber-ridge"):
        raise InputError("--model", "must be logistic or huber-ridge", model)
    if data in BUNDLED:
        if path is not None or target is not None or classes is not None:
            raise InputError("--schema", "cannot be combined with a bundled set, which has its own", data)
        regression = load_bundled(data)[1].regression
        found = None
    else:
        if path is None:
            read_table(data)  # a bad file is told first
            raise InputError("--schema", f"is needed: the public ranges, categories and classes of {Path(data).name}",
                             None, f"write one to fill in with: lastiterate schema {data}")
        found = Schema.read(path)
        changes: dict[str, Any] = {} if target is None else {"target": target}
        if classes is not None:
            changes |= {"classes": tuple(name.strip() for name in classes.split(",")), "target_range": None}
        found = replace(found, **changes) if changes else found
        regression = found.regression
    if model is not None and regression != (model == "huber-ridge"):
        raise InputError("--model", "does not fit the target: the schema says "
                         + ("a range of numbers" if regression else "classes"), model,
                         "use huber-ridge" if regression else "use logistic")
    return found


def parse_delta(text: str) -> float | str:
    """"auto" or a number in (0, 1)."""
    if text == "auto":
        return text
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise InputError("--delta", "must be auto or a number strictly between 0 and 1", text, "try 1e-6")
    return value


def free_folder(data: str) -> Path:
    """models/NAME-K with the first free K."""
    stem, k = Path(data).absolute().stem, 1
    while (folder := Path("models") / f"{stem}-{k}").exists():
        k += 1
    return folder
