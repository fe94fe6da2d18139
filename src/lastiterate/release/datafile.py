"""From a data file to a released model and back to predictions: what the command line does, for
Python."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from lastiterate.accounting.calibration import check_range
from lastiterate.accounting.certificate import Certificate
from lastiterate.accounting.subjects import UNNAMED, as_unit_name
from lastiterate.atomic_files import is_taken
from lastiterate.curves.selection import Runs
from lastiterate.data import Schema, encode_features, read_table
from lastiterate.data.columns import Id
from lastiterate.data.table import Table
from lastiterate.errors import InputError
from lastiterate.planning.planner import Choice
from lastiterate.release import posterior, tuning
from lastiterate.release.dataset import SAMPLE, Opened, open_file
from lastiterate.release.ledger_charge import Charging
from lastiterate.release.linear_model import FittedLinear
from lastiterate.release.linear_plans import (
    AUTO,
    AUTOMATIC,
    Algorithm,
    Budget,
    FeatureChoice,
    candidate,
    check_planned,
    chosen,
    planned,
)
from lastiterate.release.model_kinds import LINEAR, SAMPLED, SELECTED, Kind
from lastiterate.release.pipeline import Released, executed
from lastiterate.release.predictions import Labels, threshold_of
from lastiterate.release.released_model import Fitted
from lastiterate.release.training_request import Order, Progress
from lastiterate.release.units import Units
from lastiterate.run.adjacency import keeps_places
from lastiterate.run.probability_calibration import Calibration
from lastiterate.run.validation import relative_weights


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A model of a file (with its schema), or of a bundled public set, of which a fifth is kept for
    testing.

    ``model``: one of ``MODELS``; by default the linear model that fits the target. ``units``: the
    column that says who a row belongs to, and the most rows of each that are used. ``features``:
    "auto", names of public maps of records in the place of the schema's own, or of a part of the
    planner's runs (see ``Task``). ``stream``: read the file piece by piece, with scratch files in
    the folder ``scratch`` (see ``too_large``). ``devices``: how many share every batch.
    ``report_accuracy``: the part of mu^2 that a noisy count of right answers costs, on a tenth of
    the records that are then not trained on. ``calibrated``: whether a classifier pays for
    calibrated probabilities. ``class_weight``: what records of every label count. ``threshold``: of
    two labels, see ``Labels``; or the costs of both mistakes.
    """

    data: str
    budget: Budget
    model: str | None = None
    algorithm: Algorithm = AUTOMATIC
    schema: Schema | None = None
    test: str | None = None
    row_norm: float | None = None
    units: Units | None = None
    features: str = AUTO
    secure_noise: bool = False
    stream: bool = False
    scratch: Path | None = None
    devices: int = 1
    report_accuracy: float | None = None
    calibrated: bool = True
    class_weight: dict[str, float] | None = None
    threshold: float | tuple[float, float] | None = None

    def __post_init__(self) -> None:
        sample, planned = self.model == SAMPLE, self.algorithm.planned
        if (self.stream or self.devices != 1) and (sample or self.secure_noise):
            raise InputError(
                "stream" if self.stream else "devices",
                "cannot be combined with " + ("secure_noise" if self.secure_noise else SAMPLE),
                None,
                "these need the whole data in one memory",
            )
        if self.report_accuracy is not None and (sample or self.secure_noise or self.stream):
            raise InputError(
                "report_accuracy",
                "is for the linear models of plans and algorithms",
                self.report_accuracy,
                "leave it out",
            )
        if sample and not planned:
            raise InputError(
                "algorithm",
                f"cannot be combined with {SAMPLE}, which draws one posterior sample",
                None,
            )
        if sample and self.units is not None:
            raise InputError(
                "unit",
                f"cannot be combined with {SAMPLE}, whose bound is for one row",
                self.units.column,
            )
        for name, value in (("class_weight", self.class_weight), ("threshold", self.threshold)):
            if sample and value is not None:
                raise InputError(
                    name, f"is for classes, and {SAMPLE} learns a number", value, "leave it out"
                )
        check_planned(self.features, planned=planned and not sample)
        if sample and self.test is not None:
            raise InputError("test", f"is not scored for {SAMPLE}", self.test, "leave it out")

    @property
    def nominal(self) -> int | None:
        """The public number of records that the user states, where how many there are is private."""
        if keeps_places(self.budget.adjacency):
            self.budget.public_n(1)
            return None
        if self.stream or self.devices != 1:
            raise InputError(
                "stream" if self.stream else "devices",
                "must be left out under add-remove: what is read "
                "in pieces is cut by the number of records, which nothing may follow from",
                None,
            )
        return self.budget.public_n(1)

    def chosen(self, schema: Schema, shape: tuple[int, ...], n: int) -> FeatureChoice:
        """What makes rows of records of this shape."""
        plain = self.model == SAMPLE and self.features == AUTO and not schema.features
        return chosen(schema, "plain" if plain else self.features, shape, n, self.budget)


def fit_file(
    wanted: Wanted, *, progress: Progress | None = None, charging: Charging | None = None
) -> Released:
    """Fit on a file. ``charging``: is charged as soon as the public numbers of records and features
    are known, before a value is looked at; the caller finishes it. Otherwise nothing is written."""
    file = open_file(
        wanted.data,
        schema=wanted.schema,
        test=wanted.test,
        row_norm=wanted.row_norm,
        units=wanted.units,
        stream=wanted.stream,
        choose=wanted.chosen,
        nominal=wanted.nominal,
    )
    plan = _sampled if wanted.model == SAMPLE else _linear
    kind, order, choice = plan(wanted, file, Charging() if charging is None else charging)
    released = _scored(executed(kind, replace(order, progress=progress)), file, choice)
    if choice is None or file.choice is None:
        return released
    task = file.task_of_units if choice.best.certificate.run.rows_per_record > 1 else file.task
    task = replace(task, n=choice.best.certificate.run.n, calibrated=wanted.calibrated)
    return replace(
        released,
        weigh=partial(file.choice.weighed, task, choice.best, wanted.budget, stream=wanted.stream),
    )


Plan = tuple[Kind, Order, Choice | None]
"""What is ordered, and the plans it was chosen from."""


def _linear(wanted: Wanted, file: Opened, charging: Charging) -> Plan:
    part = "plain" if file.choice is None else file.choice.part
    # where the engine draws units; elsewhere a unit pays for its rows by group privacy
    by_rows = (
        wanted.secure_noise
        or wanted.stream
        or wanted.report_accuracy is not None
        or part == "fourier"
        or wanted.devices != 1
        or file.nominal is not None
    )
    task = file.task_of_units if file.rows_per_unit > 1 and not by_rows else file.task
    weights = relative_weights(wanted.class_weight, file.schema.classes)
    charging.of_units = file.who is not None
    task = replace(task, feature_map=part, calibrated=wanted.calibrated, class_weights=weights)
    plan = planned(
        task,
        wanted.budget,
        wanted.algorithm,
        report_accuracy=wanted.report_accuracy,
        exact=wanted.secure_noise,
        stream=wanted.stream,
        shared=charging.allowance,
    )
    plan.warn_of_noise()
    order = _ordered(
        file, charging, plan.certificate, wanted.budget, plan.delta, file.size(plan.certificate.run)
    )
    threshold = threshold_of(wanted.threshold, task.classes)
    answers = (
        replace(file.answers, threshold=threshold)
        if isinstance(file.answers, Labels)
        else file.answers
    )
    return (
        LINEAR,
        replace(
            order,
            answers=answers,
            exact=wanted.secure_noise,
            scratch=wanted.scratch,
            devices=wanted.devices,
            unit=file.who,
            unit_name=UNNAMED if wanted.units is None else as_unit_name(wanted.units.column),
            places=plan.places,
        ),
        plan.choice,
    )


def _sampled(wanted: Wanted, file: Opened, charging: Charging) -> Plan:
    task, budget = file.task, wanted.budget
    delta = budget.delta_for(task.n)
    certificate = posterior.certified(
        task.n,
        task.features,
        row_norm=file.row_norm,
        epsilon=budget.epsilon,
        delta=delta,
        adjacency=budget.adjacency,
    )
    return (
        SAMPLED,
        replace(
            _ordered(file, charging, certificate, budget, delta, file.size()), model=file.row_norm
        ),
        None,
    )


def _ordered(
    file: Opened,
    charging: Charging,
    certificate: Certificate,
    budget: Budget,
    delta: float,
    size: int,
) -> Order:
    return Order(
        certificate=certificate,
        data=file.data,
        epsilon=budget.epsilon,
        delta=delta,
        charging=charging,
        answers=file.answers,
        schema=file.schema,
        size=size,
    )


def tune_file(
    data: str,
    budget: Budget,
    *,
    schema: Schema | None = None,
    row_norms: tuple[float, ...] = (),
    algorithms: tuple[Algorithm, ...] = (AUTOMATIC,),
    law: Runs,
    charging: Charging,
    class_weight: dict[str, float] | None = None,
    features: str = AUTO,
) -> Released:
    """Select one of ``algorithms`` times ``row_norms`` privately on a file, or on a bundled public
    set.

    A bundled set's own held-out fifth scores the released model. The other records are split once
    more, in public places, into those that candidates are trained on and those that they are scored
    on. ``class_weight``: what a record of each class counts in training; scores are counts of right
    answers, whatever their class. ``features``: as in ``Wanted``; "auto" looks at what one
    candidate may cost.
    """
    check_planned(features, planned=all(one.planned for one in algorithms))
    check_range(budget.epsilon, budget.delta_for(2))
    if not keeps_places(budget.adjacency):
        raise InputError(
            "adjacency",
            "must be zero-out or replace-one for tune: candidates are scored on records of "
            "public places, which one record more moves",
            budget.adjacency,
            "use zero-out",
        )
    budget.public_n(1)  # refuses a number that nothing would follow from

    def choose(schema: Schema, shape: tuple[int, ...], n: int) -> FeatureChoice:
        each = tuning.first_share(budget.epsilon, budget.delta_for(n), law)
        return chosen(
            schema,
            features,
            shape,
            len(tuning.parts(n)[0]),
            replace(budget, epsilon=each[0], delta=each[1]),
        )

    file = open_file(data, schema=schema, test=None, row_norm=None, choose=choose)
    assert file.choice is not None
    task, shared = file.task, charging.allowance
    train, held = tuning.parts(task.n)
    delta = budget.delta_for(task.n)
    weights = relative_weights(class_weight, file.schema.classes)
    listed = [
        candidate(
            replace(
                task,
                n=len(train),
                row_norm=norm,
                calibrated=True,
                class_weights=weights,
                feature_map=file.choice.part,
            ),
            budget,
            algorithm,
            shared,
        )
        for norm in row_norms or (file.row_norm,)
        for algorithm in algorithms
    ]
    certificate = tuning.planned(
        listed,
        epsilon=budget.epsilon,
        delta=delta,
        law=law,
        held_out=len(held),
        regression=task.classes == 0,
    )
    return _scored(
        executed(SELECTED, _ordered(file, charging, certificate, budget, delta, file.size())), file
    )


def _scored(model: Fitted, file: Opened, choice: Choice | None = None) -> Released:
    """A released model with what it, and the same model without privacy, score on data that are
    public."""
    score = None if file.tested is None else _score(model, file)
    plain = _plain_score(file) if file.bundled and model.kind != SAMPLED.name else None
    return Released(model, choice, score, plain, "" if file.choice is None else file.choice.why)


def _score(model: Fitted, file: Opened) -> float:
    """Accuracy or R^2 on records that are public."""
    assert file.tested is not None
    features, target = file.tested
    predicted, answers = model.predict(features), file.answers
    if isinstance(answers, Labels):
        return float((predicted == np.asarray(answers.values)[target]).mean())
    truth = answers.of(np.asarray(target, dtype=np.float64)[:, None])
    return float(1 - ((truth - predicted) ** 2).sum() / ((truth - truth.mean()) ** 2).sum())


def _plain_score(file: Opened) -> float:
    """Score of the same kind of model without privacy; for bundled public sets only."""
    from sklearn.linear_model import LogisticRegression, Ridge  # pyright: ignore

    assert file.tested is not None
    model = Ridge() if file.schema.regression else LogisticRegression(max_iter=2000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(model.fit(*file.rows).score(*file.tested))  # pyright: ignore


def prediction_rows(
    model: Fitted,
    data: str,
    *,
    ids: str | None = None,
    threshold: float | tuple[float, float] | None = None,
    probabilities: bool = False,
    header: bool | None = None,
) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the CSV that ``predict`` writes: the answer, and the probability of every
    class.

    ``header``: whether the file's first row is a header, where the model's schema does not decide.

    ``ids``: a column of the file that is written in front of them; by default the one that the
    schema calls an id, where the file has it. ``threshold``: in the place of the model's own.
    ``probabilities``: they are relied on, so that a model without any is refused, and a warning
    says where nothing made frequencies of them.
    """
    if model.schema is None:
        raise InputError(
            "model",
            "does not say how the records of a file become rows",
            model.kind,
            "load it in Python with lastiterate.load and predict from arrays",
        )
    named = isinstance(model, FittedLinear) and isinstance(model.answers, Labels)
    if threshold is not None and not named:
        raise InputError(
            "threshold",
            "is for two classes, and this model gives numbers",
            threshold,
            "leave it out",
        )
    if probabilities and not named:
        raise InputError(
            "probabilities",
            "are those of classes, and this model gives numbers",
            None,
            "leave it out",
        )
    if (
        probabilities
        and isinstance(model, FittedLinear)
        and not isinstance(model.run.calibration, Calibration)
    ):
        warnings.warn(
            "the probabilities are not calibrated on records: their order means something, and "
            "frequencies "
            "they are not",
            UserWarning,
            stacklevel=2,
        )
    table = read_table(data, model.schema.stating(header))
    if ids is None and table.cells is not None:
        ids = next(
            (c.name for c in model.schema.columns if isinstance(c, Id) and c.name in table.cells),
            None,
        )
    features = encode_features(table, model.schema)
    try:
        predicted = model.predict(features)
    except InputError as error:
        raise (
            InputError("data file", error.rule.removesuffix("."))
            if error.argument == "x"
            else error
        ) from None
    if not isinstance(model, FittedLinear) or not isinstance(model.answers, Labels):
        return _beside(table, ids, ["prediction"], [[f"{value:.6g}"] for value in predicted])
    if threshold is not None:
        other = replace(model.answers, threshold=threshold_of(threshold, len(model.answers.values)))
        predicted = other.of(model.scores(features))
    titles = ["prediction", *(f"probability_{name}" for name in model.answers.values)]
    chances = model.probabilities(features)
    pairs = zip(predicted, chances, strict=True)
    return _beside(
        table,
        ids,
        titles,
        [[str(label), *(f"{chance:.6g}" for chance in row)] for label, row in pairs],
    )


def _beside(
    table: Table, ids: str | None, header: list[str], rows: list[list[str]]
) -> tuple[list[str], list[list[str]]]:
    """The rows with a column of the file in front of them."""
    if ids is None:
        return header, rows
    if table.cells is None or ids not in table.cells or ids in header:
        raise InputError(
            "ids",
            "must be a column of the file, and named otherwise than those of predictions",
            ids,
            "name one, or leave it out",
        )
    return [ids, *header], [
        [str(one), *row] for one, row in zip(table.cells[ids], rows, strict=True)
    ]


def unused_folder(data: str) -> tuple[Path, Path | None]:
    """models/NAME-K with the first free K, and the one before it, if any."""
    stem, k, before = Path(data).absolute().stem, 1, None
    while is_taken(folder := Path("models") / f"{stem}-{k}"):
        k, before = k + 1, folder
    return folder, before
