"""The run that a linear model is trained with, and the public maps of its rows."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast, get_args

import numpy as np

from lastiterate.accounting.certificate import Certificate
from lastiterate.accounting.noise_calibration import (
    calibrate,
    calibrate_exactly,
    warn_of_stated_noise,
)
from lastiterate.data.schema import Schema
from lastiterate.errors import BudgetWarning, InputError, NotCertified, TimeWarning, outside
from lastiterate.features.map_registry import PLAIN, automatic_maps, maps_named
from lastiterate.features.map_registry import describe_maps as named_maps
from lastiterate.features.record_fields import Text
from lastiterate.planning.planner import Choice, Plan, SharedBudget, consider, share_words
from lastiterate.planning.predicted_risk import predict_scores
from lastiterate.planning.presets import FORGETTING
from lastiterate.planning.task import FeatureMap, Task
from lastiterate.planning.task import budget as worth
from lastiterate.release.noisy_accuracy import check_width, count_for, half_width, split_held_out
from lastiterate.release.score_meaning import check_costs
from lastiterate.release.training_request import Algorithm, Budget, TrainingRequest
from lastiterate.run.adjacency import check_same, has_fixed_size
from lastiterate.run.noisy_counts import Count
from lastiterate.run.run import Run

WIDE = 0.2
"""Half width of an interval of accuracy from which on it says next to nothing."""

# The run of a linear model: planned, of a named algorithm, or given, within a budget.


def plan_run(
    order: TrainingRequest, task: Task, shared: SharedBudget | None = None
) -> TrainingRequest:
    """The order with what its algorithm executes on a task, with the least noise that its budget
    allows.

    ``shared``: what a ledger leaves; a given run that does not fit it is refused, with the name of
    the plan that does.
    """
    budget, algorithm, reported = order.budget, order.algorithm, order.report_accuracy
    assert budget is not None
    if reported is not None and not has_fixed_size(budget.adjacency):
        raise InputError(
            "report_accuracy",
            "must be left out under add-remove: one record more would move the others "
            "between the part that is trained on and the part that is counted",
            reported,
        )
    if reported is not None and not task.classes:
        raise InputError(
            "report_accuracy",
            "is for classes, and this target is a number",
            reported,
            "leave it out",
        )
    if order.exact and not has_fixed_size(budget.adjacency):
        raise InputError(
            "secure_noise",
            "must be left out under add-remove: that the gradients of records which move "
            "to other places are rounded alike is not proved",
            None,
            "use zero-out",
        )
    places = None if reported is None else split_held_out(task.n)
    task = task if places is None else replace(task, n=len(places[0]))
    delta = budget.delta_for(task.n)
    count = None
    if places is not None and reported is not None and not order.exact:
        count = _count_held_out(reported, budget.epsilon, delta, len(places[1]), task.rows_per_unit)
    order = replace(order, task=task, delta=delta, places=places)
    run = algorithm.describe_run(budget.make_request(task), exact=order.exact)
    if (
        run is not None
        and algorithm.run is None
        and (seconds := task.seconds(run)) > budget.time_budget
    ):
        warnings.warn(
            f"{algorithm.name} makes {run.steps} steps here, about {seconds:.0f} s on two cores, "
            f"and "
            f"time_budget is {budget.time_budget:g} s: larger batches take less",
            TimeWarning,
            stacklevel=outside(),
        )
    choice = None
    if run is None:
        choice = _consider(task, budget, order.stream, shared)
        proof = choice.best.certificate
    elif order.exact:
        proof = calibrate_exactly(run, epsilon=budget.epsilon, delta=delta)
    else:
        check_task(run, task, budget.adjacency)
        proof = calibrate(run, epsilon=budget.epsilon, delta=delta)
        _check_shared(proof, task, budget, order.stream, shared)
    if run is not None and algorithm.run is not None:
        warn_of_stated_noise(run, proof, budget.epsilon, delta)
    if count is not None:
        both = replace(proof.run, counts=(count,))
        proof = calibrate(both, epsilon=budget.epsilon, delta=delta)
    return replace(order, proof=proof, choice=choice)


def draw_units(task: Task, order: TrainingRequest) -> Task:
    """The task with units as its records, where the engine draws units; elsewhere a unit pays for
    its rows by group privacy.

    ``task``: with a row as its record. ``order``: with the unit of every row that is used, if any.
    """
    assert order.budget is not None
    given = order.algorithm.run
    by_rows = (
        order.exact
        or order.stream
        or order.report_accuracy is not None
        or order.devices != 1
        or task.feature_map == "fourier"
        or not has_fixed_size(order.budget.adjacency)
        or (given is not None and given.rows_per_record == 1)
    )
    if order.unit is None or task.rows_per_unit == 1 or by_rows:
        return task
    persons = len(np.unique(np.asarray(order.unit)))
    return replace(task, n=persons, rows_per_unit=1, rows_per_record=task.rows_per_unit)


def plan_for_units(
    order: TrainingRequest, task: Task, shared: SharedBudget | None = None
) -> TrainingRequest:
    """``plan_run`` with units as records where the engine draws them; warns where nothing but a
    noisy count makes rows the records, which plans once more. No record is read."""
    planned = plan_run(order, draw_units(task, order), shared)
    check_costs(
        order.threshold, planned.certificate.run, _advise_calibration(order.algorithm, task)
    )
    if order.algorithm.name == FORGETTING and order.units is not None and order.units.rows > 1:
        warnings.warn(
            f"a model that uses several rows of each {order.unit_name} cannot forget, whatever "
            "its algorithm: rows_per_unit=1 trains one that can",
            UserWarning,
            stacklevel=outside(),
        )
    _warn_of_counted_rows(planned)
    if order.report_accuracy is None:
        return planned
    alone = replace(order, report_accuracy=None)
    drawn = draw_units(task, alone)
    if drawn == task:
        return planned
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            other = _describe_noise(plan_run(alone, drawn, shared).certificate.run)
    except (InputError, NotCertified):
        other = ""
    run = planned.certificate.run
    warnings.warn(
        f"report_accuracy={order.report_accuracy:g} makes each row a record: {run.n} rows are "
        f"trained on, charged as groups of {run.rows_per_unit}{_describe_noise(run)}. Without "
        f"it the records are the {drawn.n} units, each with all of its rows{other}. Leave it out "
        f"and score on a public file, or use rows_per_unit=1",
        BudgetWarning,
        stacklevel=outside(),
    )
    return planned


def _warn_of_counted_rows(planned: TrainingRequest) -> None:
    """Warn where rows are the records of units of several: their number is released."""
    run, whose = planned.certificate.run, planned.unit_name
    if run.rows_per_unit == 1 or run.nominal:
        return
    warnings.warn(
        f"rows are the records here, and their number is public: whoever knows every other {whose} "
        f"learns how many rows one {whose} has. rows_per_unit=1 hides it, and so do runs that draw "
        f"each {whose} as one record",
        BudgetWarning,
        stacklevel=outside(),
    )


def _advise_calibration(algorithm: Algorithm, task: Task) -> str:
    """What makes probabilities of a classifier's scores, as the beginning of a remedy."""
    if algorithm.run is not None:
        return "give the run a probability_calibration=Calibration(Z), or "
    return f"use {'algorithm=automatic' if task.calibrated else 'calibrated=True'}, or "


def _describe_noise(run: Run) -> str:
    """The noise of a run as the end of a clause; empty where its words say nothing."""
    said = "" if run.noise is None else run.noise.words
    return f", with {said}" if said else ""


def warn_of_noise(choice: Choice | None) -> None:
    """Warn where the planner, which sees public numbers alone, predicts that noise drowns the
    records."""
    if choice is not None and (sentence := choice.about_noise):
        warnings.warn(sentence, BudgetWarning, stacklevel=outside())


def _count_held_out(share: float, epsilon: float, delta: float, records: int, rows: int) -> Count:
    """The count that a part of the budget pays for; refused, or warned of, where its interval would
    say next to nothing. No record is read."""
    count = check_width(
        "report_accuracy",
        share,
        lambda part: count_for(part, epsilon, delta, records, rows_per_unit=rows),
        0.99 if rows == 1 else 0.5,
        "leave it out and score on a public file; nothing was charged",
    )
    if (half := half_width(count)) > WIDE:
        warnings.warn(
            f"the noisy accuracy will be known to within about {half:.2f} only: its count of "
            f"{count.records} records has noise of standard deviation {count.noise_multiplier:.3g}. "
            f"Give it a larger part of mu^2, a larger epsilon or fewer rows per unit, or leave it "
            f"out and score on a public file",
            BudgetWarning,
            stacklevel=outside(),
        )
    return count


def candidate(
    task: Task, budget: Budget, algorithm: Algorithm, shared: SharedBudget | None
) -> Callable[[float, float], Certificate]:
    """What is planned for a task within another epsilon and delta."""
    asked = TrainingRequest(data=None, algorithm=algorithm)
    return lambda epsilon, delta: (
        plan_run(
            replace(asked, budget=replace(budget, epsilon=epsilon, delta=delta)), task, shared
        ).certificate
    )


def _consider(task: Task, budget: Budget, stream: bool, shared: SharedBudget | None) -> Choice:
    """The planner's runs."""
    return consider(
        task,
        epsilon=budget.epsilon,
        delta=budget.delta_for(task.n),
        adjacency=budget.adjacency,
        time_budget=budget.time_budget,
        stream=stream,
        shared=shared,
    )


def _check_shared(
    proof: Certificate, task: Task, budget: Budget, stream: bool, shared: SharedBudget | None
) -> None:
    """Refuse a run of somebody's own that the ledger does not pay for, where a plan fits."""
    if shared is None or shared.fits(proof):
        return
    best = _consider(task, budget, stream, shared).best
    if best.fits:
        raise InputError(
            "ledger",
            f"refuses this release: it needs {share_words(shared.share(proof))} of the budget",
            None,
            f"the algorithm automatic fits: its plan for this ledger, "
            f"{best.name}, needs {share_words(best.share)}; nothing was trained, and nothing was "
            f"charged",
        )


def check_task(run: Run, task: Task, adjacency: str) -> None:
    """Refuse a run that describes other data than these."""
    if run.n != task.n:
        raise InputError("run", f"must describe these n = {task.n} records", run.n)
    if (run.loss.outputs, run.loss.target_classes) != (task.outputs, task.classes):
        raise InputError(
            "run",
            f"must have a loss of {task.classes or 'no'} classes and {task.outputs} outputs",
            type(run.loss).__name__,
        )
    check_same(run.adjacency, adjacency)


# The public maps that make rows of records: named by the caller, by the schema, or chosen by the
# kinds of columns and the shape of the data.

AUTO, IN_RUN = "auto", get_args(FeatureMap)


@dataclass(frozen=True)
class RowAlternative:
    """Rows that a choice stands against: numbers in a row, its largest norm, and which maps make
    it."""

    width: int
    norm: float
    words: str


@dataclass(frozen=True)
class FeatureChoice:
    """A schema with its maps, the run's preparation in addition to them (see ``Task``), and the
    reason for both, in one sentence.

    ``other``: plain rows where maps were chosen, and where they were not the rows of maps that
    larger budgets carry.
    """

    schema: Schema
    part: FeatureMap
    why: str
    other: RowAlternative | None = None

    def compare_costs(
        self,
        task: Task,
        best: Plan,
        budget: Budget,
        *,
        stream: bool = False,
        shared: SharedBudget | None = None,
    ) -> str:
        """What noise and clips are predicted to cost with these rows and with the others; empty
        without others.

        ``task``, ``best``: of these rows. ``shared``: what a ledger left when ``best`` was chosen.
        The others are planned for, which takes the time of a plan; no value is read.
        """
        if self.other is None:
            return ""
        rows = replace(task, features=self.other.width, row_norm=self.other.norm)
        try:
            rival = _consider(rows, budget, stream, shared).best
        except InputError as error:
            return f"{self.other.words}, {self.other.width} numbers in a row, cannot be planned for: {error}"
        (here, what), (there, _) = _predict_loss(best), _predict_loss(rival)
        many = task.features > self.other.width
        more = here - there if many else there - here
        where = (
            f"if they lower the {what} of the best model without noise by more than {more:.2g}"
            if more > 0
            else "in any case"
        )
        return (
            f"noise and clips are predicted to add {here:.2g} to the {what} with {task.features} "
            f"numbers in a row, and {there:.2g} with {self.other.width} ({self.other.words}): "
            f"{max(task.features, self.other.width)} numbers are worth it {where}"
        )


def _predict_loss(plan: Plan) -> tuple[float, str]:
    """What a plan loses by its noise, on the planner's public reference problem."""
    scores = predict_scores(plan.certificate.run, plan.risk)
    return (plan.risk, "loss") if scores is None else (scores.log_loss, "log loss")


def choose_features(
    schema: Schema, features: str, shape: tuple[int, ...], n: int, budget: Budget
) -> FeatureChoice:
    """What ``features`` means for data of this shape and a budget; ``auto`` leaves the maps that a
    schema has.

    ``shape``: of one record of an array. Only public numbers and kinds of columns are looked at.
    Errors: an unknown name, a map that has nothing to map.
    """
    check_names(features)
    if features in IN_RUN and features != PLAIN:
        return FeatureChoice(
            replace(schema, features=()), cast(FeatureMap, features), f"{features} was asked for"
        )
    fields = replace(schema, features=()).form(shape).fields
    resolved = n * worth(budget.epsilon, budget.delta_for(n))
    by_schema = features == AUTO and bool(schema.features)
    maps = (
        tuple(
            type(one).for_budget(fields, resolved) if one.name in schema.unsized else one
            for one in schema.features
        )
        if by_schema
        else automatic_maps(fields, resolved)
        if features == AUTO
        else maps_named(features, fields, resolved)
    )
    mapped = replace(schema, features=maps, unsized=()).with_shape(shape)
    other = _other(mapped, shape, resolved)
    if by_schema:
        return FeatureChoice(mapped, PLAIN, f"the schema says {named_maps(maps)}", other)
    if features != AUTO:
        return FeatureChoice(mapped, PLAIN, f"{named_maps(maps)}: asked for", other)
    wide, many = mapped.form(shape).width, len(fields)
    why = f"{n} records and this budget (records times mu {resolved:.3g}) " + (
        f"are enough for {wide} columns from {many} fields"
        if maps
        else f"are not enough for more than {wide} columns"
    )
    return FeatureChoice(mapped, PLAIN, f"{named_maps(maps)}: {why}", other)


def _other(schema: Schema, shape: tuple[int, ...], resolved: float) -> RowAlternative | None:
    """The rows without the schema's maps, but for those that text needs; where it has no others,
    the rows of the maps that ``auto`` takes for any budget."""
    fields = replace(schema, features=()).form(shape).fields
    maps = tuple(one for one in schema.features if Text in one.takes)
    if maps == schema.features:
        maps = tuple(
            type(one).for_budget(fields, resolved) for one in automatic_maps(fields, math.inf)
        )
    if maps == schema.features:
        return None
    form = replace(schema, features=maps).form(shape)
    return RowAlternative(form.width, form.norm, ", ".join(one.name for one in maps) or PLAIN)


def check_planned(features: str, *, planned: bool) -> None:
    """Refuse parts of the planner's runs where the planner does not choose."""
    if features in IN_RUN and features != PLAIN and not planned:
        raise InputError(
            "features", "is for the automatic plan", features, "leave it out, or name no algorithm"
        )


def check_names(features: object) -> None:
    """Refuse what is no text."""
    if not isinstance(features, str):
        raise InputError(
            "features", "must be a text: auto, or names of maps with commas between them", features
        )


def part_of(features: str) -> FeatureMap:
    """What the run's preparation does, where there is no schema. Errors: maps, which need one."""
    check_names(features)
    if features == AUTO:
        return "plain"
    if features in IN_RUN:
        return cast(FeatureMap, features)
    maps_named(features)
    raise InputError(
        "features",
        "needs a schema: the public facts that a map of records follows",
        features,
        "give schema=, or one of auto, " + ", ".join(IN_RUN),
    )
