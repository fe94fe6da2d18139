"""Linear models: what is refused, how a run is executed, and counts that are added to its result."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from lastiterate.accounting.certificate import account, caveats_of_one
from lastiterate.data.data_frames import frame_table
from lastiterate.data.encoding import encode_features, form_of, keep_schema
from lastiterate.data.table import Table
from lastiterate.engine import TrainedWeights, execute, fresh_key, keys_from_seed
from lastiterate.engine.linear_model import execute_units
from lastiterate.engine.methods import solver_of
from lastiterate.engine.random import COUNT, Key
from lastiterate.engine.streaming.buffers import Arrays, Devices
from lastiterate.engine.streaming.execution import execute_streaming
from lastiterate.engine.streaming.source import Source
from lastiterate.errors import InputError
from lastiterate.planning.task import budget as worth
from lastiterate.release.fitted_linear import FittedLinear, read
from lastiterate.release.ledger_charge import make_charging
from lastiterate.release.noisy_accuracy import CountCharge, check_width, count_of, noisy_numbers
from lastiterate.release.score_meaning import Answers, Labels, Scores, as_json
from lastiterate.release.training_request import LazyRecords, TrainingRequest, is_source
from lastiterate.release.units import check_rows, unit_records
from lastiterate.run.run import Run
from lastiterate.run.validation import check_kept

__all__ = ["FittedLinear", "add_count", "check", "draws", "fit", "knows", "name_optimizer", "read"]

# A count that is added to a released model.


def add_count(
    model: FittedLinear,
    x: Any,
    y: Any,
    epsilon: float,
    by: Any,
    groups: Sequence[str],
    unit: Any,
    ledger: Any,
    dataset: str | None,
) -> FittedLinear:
    """The model with one more noisy count, charged before a record is looked at; see
    ``FittedLinear.private_score``."""
    if type(model) is not FittedLinear or model.exact:
        raise InputError(
            "model", "must be one whose certificate a count can be added to", model.form
        )
    if not isinstance(model.answers, Labels):
        raise InputError(
            "model",
            "must be one of classes: private_score counts right labels",
            model.answers.words(1),
            "predict public records and compare their numbers, which costs nothing",
        )
    if model.run.nominal:
        raise InputError(
            "model",
            "must not be trained under add-remove: the certificate would state how many "
            "records are counted",
            model.run.adjacency,
            "train with zero-out, where n is public",
        )
    if model.run.rows_per_record > 1:
        raise InputError(
            "model",
            "must be one whose records are rows: a count would count the rows of a person as a "
            "group",
            f"records of up to {model.run.rows_per_record} rows",
            "score public records by predict, which costs nothing, or train with one row of "
            "each person, or with report_accuracy=, which counts rows",
        )
    if unit is None and model.certificate.unit:
        raise InputError(
            "unit",
            f"is needed: the certificate is about each {model.certificate.unit} with at most "
            f"{model.run.rows_per_unit} of these rows",
            None,
            f"say whose every row is: unit=table[{model.certificate.unit!r}]",
        )
    check_kept("data", (x, y) if by is None else (x, y, by))
    mu = worth(epsilon, model.delta)
    if not 0 < mu < math.inf:
        raise InputError("epsilon", "must be a positive number", epsilon)
    rows = _find_rows(model, x)
    wanted = check_width(
        "epsilon",
        epsilon,
        lambda value: count_of(model.run, worth(value, model.delta), len(rows), by, tuple(groups)),
        20.0,
        "score on public records by predict, which costs nothing; nothing was charged",
    )
    labels = _labels_alike(model, y, wanted.records)
    run, old = replace(model.run, counts=(*model.run.counts, wanted)), model.certificate
    said = (
        *check_rows(unit, wanted.records, run.rows_per_unit),
        *caveats_of_one(mu, model.delta),
    )
    unseen = tuple(text for text in said if text not in old.caveats)
    proof = replace(
        account(run, min_evidence=old.min_evidence),
        caveats=(*old.caveats, *unseen),
        unit=old.unit,
    )
    charging = make_charging(ledger=ledger, dataset=dataset, purpose="private_score")
    charging.of_units = unit is not None
    charging.charge(CountCharge(run, wanted, run.adjacency), delta=model.delta)
    with charging.use_records():
        if isinstance(rows, Table):
            assert model.schema is not None
            try:
                rows = encode_features(rows, model.schema)
            except InputError as error:
                raise keep_schema(error, "x") from None
        right = model.predict(rows) == labels
    numbers = noisy_numbers(right, by, wanted, fresh_key())
    counted = replace(model, proof=proof, run=run, counted=(*model.counted, *numbers))
    charging.finish(counted)
    return counted


def _find_rows(model: FittedLinear, x: Any) -> np.ndarray | Table:
    """The rows (n, d), or the table of which the model's schema makes them; their form alone is
    looked at.

    Errors: other columns than those of the schema, rows of another width than the model's, and what
    holds no numbers.
    """
    given: object = x
    by_name = isinstance(given, Mapping)
    names = x if by_name else getattr(x, "column_names", getattr(x, "columns", ()))
    named = {str(name) for name in cast("Iterable[object]", names)}
    if model.schema is not None and (by_name or named & model.schema.described):
        table = frame_table(x, model.schema)
        try:
            form_of(table, model.schema)
        except InputError as error:
            raise keep_schema(error, "x") from None
        if not len(table):
            raise InputError("x", "must hold at least one record", 0, "give the records to count")
        return table
    if by_name:
        raise InputError(
            "x",
            "must be rows of numbers (n, d), since the model has no schema",
            type(cast(object, x)).__name__,
            "give columns in the order of the training rows, one row for each record",
        )
    try:
        rows = np.asarray(x)
    except ValueError:  # rows of several lengths
        rows = np.empty(0, dtype=object)
    model.check_rows(rows)
    if rows.dtype.kind not in "biuf" or not len(rows):
        raise InputError(
            "x",
            "must be rows of numbers, at least one",
            f"{rows.dtype} of shape {rows.shape}",
            "give rows as the model was trained on",
        )
    return rows


def _labels_alike(model: FittedLinear, y: object, records: int) -> np.ndarray:
    """The labels (n,), refused where they are of another kind than those of the model: none
    would be right."""
    assert isinstance(model.answers, Labels)
    labels = np.asarray(y)
    if labels.shape != (records,):
        raise InputError("y", f"must be one label for each of {records} records", labels.shape)
    held, given = (
        np.asarray(list(values)).dtype.kind for values in (model.answers.values, labels.tolist())
    )
    if (held == "U") != (given == "U"):
        words = ("texts", "numbers") if held == "U" else ("numbers", "texts")
        raise InputError(
            "y",
            f"must hold labels of the model, which are {words[0]}",
            words[1],
            "give labels as predict does",
        )
    return labels


# Execution of a run, and what is refused before it.


def knows(model: object) -> bool:
    """A linear model needs no first parameters: they are 0."""
    return model is None


def name_optimizer(optimizer: object, model: object) -> str:
    """Linear models take no optimizer of a caller."""
    raise InputError(
        "optimizer",
        "is for losses given as functions",
        None,
        "use optimizer=Adam(), or another rule",
    )


def draws(model: object, loss: object, augment: object) -> list[str]:
    """Nothing: a linear model's loss is the run's own."""
    if augment is not None:
        raise InputError(
            "augment", "is for losses given as functions, and for modules", None, "leave it out"
        )
    return []


def check(order: TrainingRequest) -> TrainingRequest:
    """Refuse what linear models have no use for; rows and targets as arrays, of which only the form
    is looked at."""
    run = order.certificate.run
    if run.loss.outputs is None:
        raise InputError(
            "loss of the run",
            "must be a linear one where neither model nor loss is given",
            "KnownConstants",
            "use Logistic, Softmax or HuberRidge, or pass first parameters as model= and a loss=",
        )
    if order.microbatch is not None:
        raise InputError(
            "microbatch", "is for losses given as functions", order.microbatch, "leave it out"
        )
    if order.optimizer is not None:
        raise InputError(
            "optimizer",
            "is for losses given as functions",
            None,
            "use optimizer=Adam(), or another rule",
        )
    if run.release != "last":
        raise InputError(
            "release",
            "must be 'last' where a model is released",
            run.release,
            "use lastiterate.engine.execute for all iterates",
        )
    if solver_of(run) is not None:
        order.charging.without_checkpoint("of a run without steps")
    if order.exact:
        from lastiterate.engine.exact_linear import grid_of

        grid_of(run)
    elif len(run.counts) != (0 if order.places is None else 1) or any(
        count.numbers > 1 for count in run.counts
    ):
        raise InputError(
            "counts",
            "must be one, with the records that it is about",
            len(run.counts),
            "use report_accuracy, or private_score of the model",
        )
    return (
        order
        if isinstance(order.data, LazyRecords) or is_source(order.data)
        else replace(order, data=_arrays(order))
    )


def _arrays(order: TrainingRequest) -> tuple[np.ndarray, np.ndarray]:
    """Rows and targets; their form is checked, their values are not looked at."""
    run, data = order.certificate.run, order.data
    if len(data) != 2:
        raise InputError("data", "must be (x, y) for a linear model", f"{len(data)} parts")
    rows, target = np.asarray(data[0]), np.asarray(data[1])
    if rows.ndim != 2 or rows.dtype.kind not in "biuf":
        raise InputError(
            "x", "must be a table of numbers, shape (n, d)", f"{rows.dtype} of shape {rows.shape}"
        )
    trained = len(rows) if order.places is None else len(order.places[0])
    if run.rows_per_record == 1 and not run.admits(trained):
        raise InputError(
            "x",
            "must have a row" if run.nominal else f"must have the run's n = {run.n} rows",
            len(rows),
        )
    if target.ndim != 1 or target.dtype.kind not in "biufO":
        raise InputError(
            "target",
            "must be numbers, or class indices, of shape (n,)",
            f"{target.dtype} of shape {target.shape}",
            "encode labels first",
        )
    return rows, target


def fit(order: TrainingRequest, key: Key | None) -> FittedLinear:
    """Execute the run on rows (n, d) and targets (n,), or on a source of them, and release its last
    iterate."""
    run = order.certificate.run
    model = FittedLinear(
        proof=order.certificate,
        delta=order.delta,
        schema=order.schema,
        exact=order.exact,
        run=run,
        released=_execute_order(order, key),
        answers=_indices_of(run) if order.answers is None else order.answers,
    )
    return (
        model
        if order.places is None or order.exact
        else replace(model, counted=_count_correct(model, order))
    )


def _execute_order(order: TrainingRequest, key: Key | None) -> TrainedWeights:
    """By the arithmetic that was asked for, on records as they come."""
    run, checkpoint = order.certificate.run, order.charging.checkpoint
    if is_source(order.data):
        return _execute_in_pieces(order, order.data, key)
    rows, target = order.data
    if order.places is not None:
        if checkpoint is not None and order.answers is not None:
            checkpoint.held_out = (rows[order.places[1]], target[order.places[1]])
            checkpoint.read_as = f", counted as {json.dumps(as_json(order.answers))}"
        rows, target = rows[order.places[0]], target[order.places[0]]
    if order.exact and order.devices == 1:
        from lastiterate.engine.exact_linear import execute_exactly

        return execute_exactly(run, rows, target, key, order.progress, checkpoint)
    if run.rows_per_record > 1:
        records = unit_records((rows, target), order.trained_units, run.rows_per_record)
        return execute_units(run, records, key, order.progress, checkpoint)
    if order.devices > 1:
        return _execute_in_pieces(order, Arrays((rows, target)), key)
    return execute(run, rows, target, key, order.progress, checkpoint)


def _execute_in_pieces(order: TrainingRequest, source: Source, key: Key | None) -> TrainedWeights:
    return execute_streaming(
        order.certificate.run,
        source,
        key,
        order.progress,
        order.charging.checkpoint,
        order.scratch,
        order.devices,
        exact=order.exact,
    )


def _count_correct(model: FittedLinear, order: TrainingRequest) -> tuple[float, ...]:
    """The noisy count of right answers on the records that are kept for it.

    **Guarantee:** a run that resumes from a checkpoint gives the same number as before: it was
    charged for one.
    """
    assert order.places is not None and isinstance(model.answers, Labels)
    rows, target = (part[order.places[1]] for part in order.data)
    right = model.predict(rows) == np.asarray(model.answers.values)[target]
    # several processes release one number
    return noisy_numbers(
        right, None, model.run.counts[0], Devices(order.devices).same_key(_count_key(order))
    )


def _count_key(order: TrainingRequest) -> Key:
    """What the noise of the count is drawn under: of a seed, of the run's own key where a
    checkpoint has it, or new."""
    if order.seed is not None:
        return keys_from_seed(order.seed, 2)[1]
    checkpoint = order.charging.checkpoint
    return fresh_key() if checkpoint is None else checkpoint.derive_stream(COUNT)


def _indices_of(run: Run) -> Answers:
    """What scores mean where classes are known by their indices."""
    return Labels(tuple(range(run.loss.target_classes))) if run.loss.target_classes else Scores()
