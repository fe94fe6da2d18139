"""Linear models: what is refused, and how a run is executed."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np

from lastiterate.engine import Model, execute, fresh_key, seeded_keys
from lastiterate.engine.gaussian_noise import COUNT, Key
from lastiterate.engine.methods import solver_of
from lastiterate.engine.streaming.devices import Arrays, Devices
from lastiterate.engine.streaming.streamed_linear import execute_streaming
from lastiterate.engine.unit_gradients import execute_units
from lastiterate.errors import InputError
from lastiterate.release.answers import Labels, Scores, as_json
from lastiterate.release.fitted_linear import FittedLinear as FittedLinear
from lastiterate.release.fitted_linear import read as read
from lastiterate.release.linear_plans import Answers
from lastiterate.release.order import Order, Unread, is_source
from lastiterate.release.protected_units import unit_records
from lastiterate.release.scored import noisy_numbers
from lastiterate.run.run import Run


def knows(model: object) -> bool:
    """A linear model needs no first parameters: they are 0."""
    return model is None


def named(optimizer: object, model: object) -> str:
    """Linear models take no optimizer of a caller."""
    raise InputError("optimizer", "is for losses given as functions", None, "use update=Adam(), or another rule")


def draws(model: object, loss: object, augment: object) -> list[str]:
    """Nothing: a linear model's loss is the run's own."""
    if augment is not None:
        raise InputError("augment", "is for losses given as functions, and for modules", None, "leave it out")
    return []


def check(order: Order) -> Order:
    """Refuse what linear models have no use for; rows and targets as arrays, of which only the form is looked at."""
    run = order.certificate.run
    if run.loss.outputs is None:
        raise InputError("loss of the run", "must be a linear one where neither model nor loss is given", "Abstract",
                         "use Logistic, Softmax or HuberRidge, or pass first parameters as model= and a loss=")
    if order.microbatch is not None:
        raise InputError("microbatch", "is for losses given as functions", order.microbatch, "leave it out")
    if order.optimizer is not None:
        raise InputError("optimizer", "is for losses given as functions", None, "use update=Adam(), or another rule")
    if run.release != "last":
        raise InputError("release", "must be 'last' where a model is released", run.release,
                         "use lastiterate.engine.execute for all iterates")
    if solver_of(run) is not None:
        order.charging.without_checkpoint("of a run without steps")
    if order.exact:
        from lastiterate.engine.exact_sums import grid_of

        grid_of(run)
    elif len(run.counts) != (0 if order.places is None else 1) or any(count.numbers > 1 for count in run.counts):
        raise InputError("counts", "must be one, with the records that it is about", len(run.counts),
                         "use report_accuracy, or private_score of the model")
    return order if isinstance(order.data, Unread) or is_source(order.data) else replace(order, data=_arrays(order))


def _arrays(order: Order) -> tuple[np.ndarray, np.ndarray]:
    """Rows and targets; their form is checked, their values are not looked at."""
    run, data = order.certificate.run, order.data
    if len(data) != 2:
        raise InputError("data", "must be (x, y) for a linear model", f"{len(data)} parts")
    rows, target = np.asarray(data[0]), np.asarray(data[1])
    if rows.ndim != 2 or rows.dtype.kind not in "biuf":
        raise InputError("x", "must be a table of numbers, shape (n, d)", f"{rows.dtype} of shape {rows.shape}")
    trained = len(rows) if order.places is None else len(order.places[0])
    if run.rows_per_record == 1 and not run.admits(trained):
        raise InputError("x", "must have a row" if run.nominal else f"must have the run's n = {run.n} rows", len(rows))
    if target.ndim != 1 or target.dtype.kind not in "biufO":
        raise InputError("target", "must be numbers, or class indices, of shape (n,)", f"{target.dtype} of shape "
                         f"{target.shape}", "encode labels first")
    return rows, target


def fit(order: Order, key: Key | None) -> FittedLinear:
    """Execute the run on rows (n, d) and targets (n,), or on a source of them, and release its last iterate."""
    run = order.certificate.run
    model = FittedLinear(proof=order.certificate, delta=order.delta, schema=order.schema, exact=order.exact, run=run,
                         released=_executed(order, key), answers=_indices_of(run) if order.answers is None
                         else order.answers)
    return model if order.places is None or order.exact else replace(model, counted=_counted(model, order))


def _executed(order: Order, key: Key | None) -> Model:
    """By the arithmetic that was asked for, on records as they come."""
    run, checkpoint = order.certificate.run, order.charging.checkpoint
    if is_source(order.data):
        return execute_streaming(run, order.data, key, order.progress, checkpoint, order.scratch, order.devices)
    rows, target = order.data
    if order.places is not None:
        if checkpoint is not None and order.answers is not None:
            checkpoint.beside = (rows[order.places[1]], target[order.places[1]])
            checkpoint.read_as = f", counted as {json.dumps(as_json(order.answers))}"
        rows, target = rows[order.places[0]], target[order.places[0]]
    if order.exact:
        from lastiterate.engine.exact_sums import execute_exactly

        return execute_exactly(run, rows, target, key, order.progress, checkpoint)
    if run.rows_per_record > 1:
        records = unit_records((rows, target), order.units, run.rows_per_record)
        return execute_units(run, records, key, order.progress, checkpoint)
    if order.devices > 1:
        source = Arrays((rows, target))
        return execute_streaming(run, source, key, order.progress, checkpoint, order.scratch, order.devices)
    return execute(run, rows, target, key, order.progress, checkpoint)


def _counted(model: FittedLinear, order: Order) -> tuple[float, ...]:
    """The noisy count of right answers on the records that are kept for it.

    **Guarantee:** a run that goes on from a checkpoint gives the number that it gave before: it was charged for one.
    """
    assert order.places is not None and isinstance(model.answers, Labels)
    rows, target = (part[order.places[1]] for part in order.data)
    right = model.predict(rows) == np.asarray(model.answers.values)[target]
    # several processes release one number
    return noisy_numbers(right, None, model.run.counts[0], Devices(order.devices).same_key(_count_key(order)))


def _count_key(order: Order) -> Key:
    """What the noise of the count is drawn under: of a seed, of the run's own key where a checkpoint has it, or new."""
    if order.seed is not None:
        return seeded_keys(order.seed, 2)[1]
    checkpoint = order.charging.checkpoint
    return fresh_key() if checkpoint is None else checkpoint.drawn(COUNT)


def _indices_of(run: Run) -> Answers:
    """What scores mean where classes are known by their indices."""
    return Labels(tuple(range(run.loss.target_classes))) if run.loss.target_classes else Scores()
