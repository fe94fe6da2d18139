"""What the arguments of ``train`` add to the description of its run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from lastiterate.errors import InputError
from lastiterate.release.kinds import Kind
from lastiterate.run.averages import ExponentialAverage, TailAverage
from lastiterate.run.class_weights import relative_weights
from lastiterate.run.losses import HuberRidge
from lastiterate.run.method import Descent
from lastiterate.run.record_draws import RecordDraws
from lastiterate.run.run import Run


def averaging(run: Run, average: TailAverage | ExponentialAverage) -> Run:
    """The run that releases an average."""
    if type(average) not in (TailAverage, ExponentialAverage):
        raise InputError("average", "must be a TailAverage or an ExponentialAverage", type(average).__name__)
    if run.method not in (Descent(), average):
        raise InputError("average", "is of noisy steps whose last iterate would be released otherwise",
                         type(run.method).__name__, "leave it out, or use method=Descent()")
    return replace(run, method=average)


def weighing(run: Run, given: object) -> Run:
    """The run whose classes have these weights."""
    count = run.loss.target_classes
    named = len(cast("Mapping[object, object]", given)) if isinstance(given, Mapping) else 0
    count = max(2, named) if count is None else count
    weights = relative_weights(cast(object, given), range(count))
    if isinstance(run.loss, HuberRidge) or run.loss.class_weights not in (None, weights):
        raise InputError("class_weight", "must be that of the run, or left to it", weights, "leave it out")
    return replace(run, loss=replace(run.loss, class_weights=weights))


def drawing(run: Run, kind: Kind, model: object, loss: object, augment: object, copies: int | None) -> Run:
    """The run that says what its records draw."""
    names = kind.home.draws(model, loss, augment)
    if not names and copies is not None:
        raise InputError("copies", "are of records that draw something", copies, "add augment=, or leave it out")
    if run.record_draws is None and names:
        return replace(run, record_draws=RecordDraws(" and ".join(names), 1 if copies is None else copies))
    if run.record_draws is not None and copies not in (None, run.record_draws.copies):
        raise InputError("copies", f"must be those of the run, {run.record_draws.copies}", copies, "leave it out")
    return run
