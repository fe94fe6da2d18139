"""From a data file to a released model and back to predictions: what the command line does, for Python."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lastiterate.accounting.certificate import Certificate
from lastiterate.curves.number_of_runs import Runs
from lastiterate.data import Schema, encode_features, read_table
from lastiterate.data.table import Table
from lastiterate.engine.streaming.passes import check_streams
from lastiterate.errors import InputError
from lastiterate.planning.families.asked import Asked
from lastiterate.planning.planner import Choice
from lastiterate.planning.presets import ALGORITHMS, described
from lastiterate.planning.task import Task
from lastiterate.release import linear, posterior
from lastiterate.release.answers import Labels, Range
from lastiterate.release.charging import Custody
from lastiterate.release.feature_choice import AUTO, IN_RUN, chosen
from lastiterate.release.fitted import Fitted
from lastiterate.release.linear import Budget
from lastiterate.release.open_dataset import SAMPLE, Opened, Records, open_file
from lastiterate.release.protected_units import Units
from lastiterate.release.scored import count_for, reserved
from lastiterate.run.batching import Batching
from lastiterate.run.penalties import Prox
from lastiterate.run.run import Run

Template = Callable[[Asked, bool], Run]
"""The run for what is asked; for exact noise, where every step is charged, or not."""


@dataclass(frozen=True, eq=False)
class Trained:
    """A released model, the plans it was chosen from, and scores on data that is public (``None`` where there is none).
    """

    model: Fitted
    choice: Choice | None = None
    test_score: float | None = None
    plain_score: float | None = None
    features: str = ""  #: why records become rows as they do


def template(algorithm: str, batching: Batching | None, prox: Prox | None, cap: float | None = None
             ) -> Template | None:
    """What describes the run of a named algorithm for a task; ``None`` where the planner chooses."""
    if algorithm not in ALGORITHMS:
        raise InputError("algorithm", "must be one of " + ", ".join(ALGORITHMS), algorithm)
    if algorithm != "automatic":
        return lambda asked, charged: described(asked, algorithm, batching=batching, prox=prox, cap=cap,
                                                charged=charged)
    for name, value in (("batch", batching), ("prox", prox), ("cap", cap)):
        if value is not None:
            raise InputError(name, "needs an algorithm: the automatic plan chooses for itself", value,
                             "name one such as permuted-sgd")
    return None


def fit_file(data: str, budget: Budget, *, schema: Schema | None = None, test: str | None = None,
             row_norm: float | None = None, model: str | None = None, template: Template | None = None,
             progress: Callable[[int, int, float], None] | None = None, custody: Custody | None = None,
             secure_noise: bool = False, units: Units | None = None, features: str = AUTO,
             stream: bool = False, scratch: Path | None = None, devices: int = 1,
             report_accuracy: float | None = None, calibrated: bool = True) -> Trained:
    """Fit on a file (with its schema) or on a bundled public set, of which a fifth is kept for testing.

    ``model``: one of ``MODELS``; by default the linear model that fits the target. ``custody``: pays as soon as the
    public numbers of records and features are known, before a value is looked at; the caller finishes it. Otherwise
    nothing is written. ``units``: the column that says who a row belongs to, and the most rows of each that are used.
    ``features``: "auto", names of public maps of records in the place of the schema's own, or of a part of the
    planner's runs (see ``Task``). ``stream``: read the file piece by piece, with scratch files in the folder
    ``scratch`` (see ``too_large``). ``devices``: how many share every batch.
    ``report_accuracy``: the part of mu^2 that a noisy count of right answers costs, on a tenth of the records that are
    then not trained on. ``calibrated``: whether a classifier pays for calibrated probabilities.
    """
    if (stream or devices != 1) and (model == SAMPLE or secure_noise):
        raise InputError("stream" if stream else "devices", "cannot be combined with "
                         + ("secure_noise" if secure_noise else SAMPLE), None,
                         "these need the whole data in one memory")
    if report_accuracy is not None and (model == SAMPLE or secure_noise or stream):
        raise InputError("report_accuracy", "is for the linear models of plans and algorithms", report_accuracy,
                         "leave it out")
    if model == SAMPLE and template is not None:
        raise InputError("algorithm", f"cannot be combined with {SAMPLE}, which draws one posterior sample", None)
    if model == SAMPLE and units is not None:
        raise InputError("unit", f"cannot be combined with {SAMPLE}, whose bound is for one row", units.column)
    if features in IN_RUN and features != "plain" and (model == SAMPLE or template is not None):
        raise InputError("features", "is for the automatic plan", features, "leave it out, or name no algorithm")
    if model == SAMPLE and test is not None:
        raise InputError("test", f"is not scored for {SAMPLE}", test, "leave it out")
    asked_for = "plain" if model == SAMPLE and features == AUTO and not (schema and schema.features) else features
    file = open_file(data, schema=schema, test=test, row_norm=row_norm, units=units, stream=stream,
                     choose=lambda found, shape, n: chosen(found, asked_for, shape, n, budget))
    part = "plain" if file.choice is None else file.choice.part
    if model == SAMPLE:
        return _sample(file, budget, custody)
    # where the engine draws units; elsewhere a unit pays for its rows by group privacy
    by_rows = file.bundled or secure_noise or stream or report_accuracy is not None or part == "fourier"
    drawn = file.rows_per_unit > 1 and not by_rows and devices == 1
    task = replace(file.task_of_units if drawn else file.task, feature_map=part, calibrated=calibrated)
    places = None if report_accuracy is None else reserved(task.n)
    task = task if places is None else replace(task, n=len(places[0]))
    if secure_noise:  # without an algorithm full batches: each record is charged at every step, and noise counts least
        asked = budget.asked(task)
        run = described(asked, "noisy-gd", charged=True) if template is None else template(asked, True)
        return _exactly(file, budget, run, custody, progress)
    run = None if template is None else template(budget.asked(task), False)
    count = None if places is None or report_accuracy is None else count_for(
        report_accuracy, budget.epsilon, budget.delta_for(task.n), len(places[1]), rows_per_unit=task.rows_per_unit)
    shared = None if custody is None else custody.allowance
    plan = linear.planned(task, budget, run, count, stream=stream, shared=shared)
    if file.streamed or devices != 1:
        check_streams(plan.certificate.run)
    if custody is not None:
        custody.pay(plan.certificate, file.size(plan.certificate.run), delta=plan.delta)
    records = file.records()
    rows, target, held = records.features, records.target, None
    if places is not None:
        rows, target, held = rows[places[0]], target[places[0]], (rows[places[1]], target[places[1]])
    found = linear.fit(plan.certificate, rows, target, delta=plan.delta, answers=records.answers,
                       schema=records.schema, progress=progress, custody=custody, scratch=scratch, held=held,
                       devices=devices, unit=file.who if drawn else None)
    plain = _plain_score(records) if records.bundled else None
    return Trained(found, plan.choice, None if records.held is None else _score(found, records), plain,
                   "" if file.choice is None else file.choice.why)


def _exactly(file: Opened, budget: Budget, run: Run, custody: Custody | None,
             progress: Callable[[int, int, float], None] | None) -> Trained:
    from lastiterate.accounting.exact_calibration import calibrate_exactly
    from lastiterate.release import exact_linear

    delta = budget.delta_for(file.task.n)
    certificate = calibrate_exactly(run, epsilon=budget.epsilon, delta=delta)
    guard = Custody() if custody is None else custody
    exact_linear.grid_of(certificate.run)
    guard.pay(certificate, file.size(certificate.run), delta=delta)
    records = file.records()
    found = exact_linear.fit(certificate, records.features, records.target, delta=delta, answers=records.answers,
                      schema=records.schema, custody=guard, progress=progress)
    plain = _plain_score(records) if records.bundled else None
    return Trained(found, None, None if records.held is None else _score(found, records), plain)


def tune_file(data: str, budget: Budget, *, schema: Schema | None = None, row_norms: tuple[float, ...] = (),
              templates: tuple[Template | None, ...] = (None,), law: Runs, custody: Custody) -> Trained:
    """Select one of ``templates`` times ``row_norms`` privately on a file, or on a bundled public set.

    A bundled set's own held-out fifth scores the released model. The other records are split once more, in public
    places, into those that candidates are trained on and those that they are scored on.
    """
    from lastiterate.release import tuning

    file = open_file(data, schema=schema, test=None, row_norm=None)
    task = file.task
    train, held = tuning.parts(task.n)
    delta, shared = budget.delta_for(task.n), custody.allowance

    def candidate(norm: float, made: Template | None) -> tuning.Candidate:
        asked = Task(len(train), task.features, task.classes, norm, calibrated=True)

        def certificate(epsilon: float, delta: float) -> Certificate:
            part = replace(budget, epsilon=epsilon, delta=delta)
            run = None if made is None else made(part.asked(asked), False)
            return linear.planned(asked, part, run, shared=shared).certificate

        return certificate

    listed = [candidate(norm, made) for norm in row_norms or (file.row_norm,) for made in templates]
    certificate = tuning.planned(listed, epsilon=budget.epsilon, delta=delta, law=law, held_out=len(held),
                                 regression=task.classes == 0)
    custody.pay(certificate, file.size(), delta=delta)
    records = file.records()
    found = tuning.select(certificate, records.features, records.target, delta=delta, answers=records.answers,
                          schema=records.schema, custody=custody)
    plain = _plain_score(records) if records.bundled else None
    return Trained(found, None, None if records.held is None else _score(found, records), plain)


def _sample(file: Opened, budget: Budget, custody: Custody | None) -> Trained:
    if not file.schema.regression:
        raise InputError("model", "needs a target that is a range of numbers", SAMPLE, "use logistic for classes")
    task = file.task
    delta = budget.delta_for(task.n)
    if custody is not None:
        custody.pay(posterior.certified(task.n, task.features, row_norm=file.row_norm, epsilon=budget.epsilon,
                                        delta=delta, adjacency=budget.adjacency), file.size(), delta=delta)
    records = file.records()
    answers = records.answers
    assert isinstance(answers, Range)
    found = posterior.fit(records.features, records.target, row_norm=records.row_norm, answers=answers,
                          epsilon=budget.epsilon, delta=delta, adjacency=budget.adjacency, schema=records.schema,
                          custody=custody)
    return Trained(found, test_score=None if records.held is None else _score(found, records))


def _score(model: Fitted, records: Records) -> float:
    """Accuracy or R^2 on records that are public."""
    assert records.held is not None
    features, target = records.held
    found, answers = model.predict(features), records.answers
    if isinstance(answers, Labels):
        return float((found == np.asarray(answers.values)[target]).mean())
    truth = answers.of(np.asarray(target, dtype=np.float64)[:, None])
    return float(1 - ((truth - found) ** 2).sum() / ((truth - truth.mean()) ** 2).sum())


def _plain_score(records: Records) -> float:
    """Score of the same kind of model without privacy; for bundled public sets only."""
    from sklearn.linear_model import LogisticRegression, Ridge

    assert records.held is not None
    model = Ridge() if records.schema.regression else LogisticRegression(max_iter=2000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(model.fit(records.features, records.target).score(*records.held))


def prediction_rows(model: Fitted, data: str, *, ids: str | None = None,
                    threshold: float | None = None) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the CSV that ``predict`` writes: the answer, and the probability of every class.

    ``ids``: a column of the file that is written in front of them. ``threshold``: of two classes, the probability from
    which on the second is the answer.
    """
    if model.schema is None:
        raise InputError("model", "does not say how the records of a file become rows", model.kind,
                         "load it in Python with lastiterate.load and predict from arrays")
    named = isinstance(model, linear.FittedLinear) and isinstance(model.answers, Labels)
    if threshold is not None and not named:
        raise InputError("threshold", "is for two classes", threshold, "leave it out")
    table = read_table(data, model.schema)
    features = encode_features(table, model.schema)
    try:
        found = model.predict(features)
    except InputError as error:
        raise InputError("data file", error.rule.removesuffix(".")) if error.argument == "x" else error from None
    if not isinstance(model, linear.FittedLinear) or not isinstance(model.answers, Labels):
        return _beside(table, ids, ["prediction"], [[f"{value:.6g}"] for value in found])
    if threshold is not None:
        found = model.answers.of(model.scores(features), threshold)
    header = ["prediction", *(f"probability_{name}" for name in model.answers.values)]
    chances = model.probabilities(features)
    pairs = zip(found, chances, strict=True)
    return _beside(table, ids, header, [[str(label), *(f"{chance:.6g}" for chance in row)] for label, row in pairs])


def _beside(table: Table, ids: str | None, header: list[str],
            rows: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """The rows with a column of the file in front of them."""
    if ids is None:
        return header, rows
    if table.cells is None or ids not in table.cells or ids in header:
        raise InputError("ids", "must be a column of the file, and named otherwise than those of predictions", ids,
                         "name one, or leave it out")
    return [ids, *header], [[str(one), *row] for one, row in zip(table.cells[ids], rows, strict=True)]


def parse_delta(text: str) -> float | Any:
    """"auto" or a number in (0, 1)."""
    if text == "auto":
        return text
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise InputError("delta", "must be auto or a number strictly between 0 and 1", text, "try 1e-6")
    return value


def unused_folder(data: str) -> Path:
    """models/NAME-K with the first free K."""
    stem, k = Path(data).absolute().stem, 1
    while (folder := Path("models") / f"{stem}-{k}").exists():
        k += 1
    return folder
