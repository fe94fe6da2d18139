"""The run that a linear model is trained with, and the public maps of its rows."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, cast, get_args

import numpy as np

from lastiterate.accounting.calibration import calibrate, calibrate_exactly
from lastiterate.accounting.certificate import Certificate
from lastiterate.data.schema import Schema
from lastiterate.errors import BudgetWarning, InputError, TimeWarning, outside
from lastiterate.features.map_table import PLAIN, automatic_maps, maps_named
from lastiterate.features.map_table import described as described_of_map_table
from lastiterate.features.record_fields import Text
from lastiterate.planning.plan_request import Asked
from lastiterate.planning.planner import (
    TIME_BUDGET,
    Choice,
    Plan,
    SharedBudget,
    consider,
    share_words,
)
from lastiterate.planning.presets import ALGORITHMS, described
from lastiterate.planning.reference import predicted_scores
from lastiterate.planning.task import FeatureMap, Task, automatic_delta
from lastiterate.planning.task import budget as worth
from lastiterate.release.noisy_accuracy import count_for, reserved
from lastiterate.release.predictions import Labels, Range, Scores
from lastiterate.run.adjacency import ADJACENCIES, check_same, keeps_places
from lastiterate.run.batching import Batching
from lastiterate.run.penalties import Prox
from lastiterate.run.run import Run
from lastiterate.run.validation import number, whole

# What a linear model is trained with: the planner's run, a named algorithm's, or a given one,
# within a budget.

Answers = Labels | Range | Scores


@dataclass(frozen=True)
class Budget:
    """What a fit may cost. ``delta``: "auto" is a power of ten at most 1/(10 n); ``time_budget``:
    seconds. ``n``: under add-remove the public number of records that everything follows from (see
    ``public_n``)."""

    epsilon: float
    delta: float | Literal["auto"] = "auto"
    adjacency: Any = "zero-out"
    time_budget: float = TIME_BUDGET
    n: int | None = None

    def __post_init__(self) -> None:
        if self.n is not None:
            whole("n", self.n)
        for name, value in (("epsilon", self.epsilon), ("time_budget", self.time_budget)):
            number(name, value)
        if not isinstance(self.delta, str):
            number("delta", self.delta)
        if self.adjacency not in ADJACENCIES:
            raise InputError(
                "adjacency", "must be one of " + ", ".join(ADJACENCIES), self.adjacency
            )

    def public_n(self, records: int) -> int:
        """The number of records that plans and certificates may know: how many there are, or under
        add-remove, where that is private, the number that the user states.

        **Guarantee:** under add-remove the result does not depend on ``records``.
        """
        if keeps_places(self.adjacency):
            if self.n is not None:
                raise InputError(
                    "n",
                    f"is for add-remove: under {self.adjacency} the number of records is public, "
                    f"and "
                    "that of the data",
                    self.n,
                    "leave it out",
                )
            return records
        if self.n is None:
            raise InputError(
                "n",
                "must be stated under add-remove: a public number near that of the records, which "
                "is "
                "private itself; batches, noise and delta follow from it",
                None,
                "state one that you chose without counting the records, such as a round one",
            )
        return self.n

    def delta_for(self, n: int) -> float:
        if self.delta == "auto":
            return automatic_delta(n)
        if isinstance(self.delta, str):
            raise InputError("delta", 'must be a number in (0, 1) or "auto"', self.delta)
        return self.delta

    def asked(self, task: Task) -> Asked:
        """What families of runs are asked."""
        return Asked(task, self.epsilon, self.delta_for(task.n), self.adjacency, self.time_budget)


def parse_delta(text: str) -> float | Literal["auto"]:
    """ "auto" or a number in (0, 1)."""
    if text == "auto":
        return "auto"
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise InputError(
            "delta", "must be auto or a number strictly between 0 and 1", text, "try 1e-6"
        )
    return value


@dataclass(frozen=True)
class Algorithm:
    """The planner's choice, a named way to draw batches with its settings, or a ``run`` that is
    given."""

    name: str = "automatic"
    batching: Batching | None = None
    prox: Prox | None = None
    cap: float | None = None
    run: Run | None = None

    def __post_init__(self) -> None:
        if self.name not in ALGORITHMS:
            raise InputError("algorithm", "must be one of " + ", ".join(ALGORITHMS), self.name)
        for name, value in (("batch", self.batching), ("prox", self.prox), ("cap", self.cap)):
            if self.name == "automatic" and value is not None:
                raise InputError(
                    name,
                    "needs an algorithm: the automatic plan chooses for itself",
                    value,
                    "name one such as permuted-sgd",
                )
        if self.name != "automatic" and self.run is not None:
            raise InputError("algorithm", "must be 'automatic' where a run is given", self.name)

    @property
    def planned(self) -> bool:
        """Whether the planner chooses."""
        return self.name == "automatic" and self.run is None

    def described(self, asked: Asked, *, exact: bool) -> Run | None:
        """The run, but for its noise; ``None`` where the planner chooses. ``exact``: every step is
        charged then, and full batches are what noise counts least in."""
        if self.run is not None or (self.planned and not exact):
            return self.run
        return described(
            asked,
            "noisy-gd" if self.planned else self.name,
            batching=self.batching,
            prox=self.prox,
            cap=self.cap,
            charged=exact,
        )


AUTOMATIC = Algorithm()


@dataclass(frozen=True)
class Planned:
    """What will be executed, the delta of its budget, and the plans it was chosen from (``None``
    for a given run).

    ``places``: of the records that are trained on, and of those that right answers are counted on.
    """

    certificate: Certificate
    delta: float
    choice: Choice | None = None
    places: tuple[np.ndarray, np.ndarray] | None = None

    def warn_of_noise(self) -> None:
        """Warn where the planner, which sees public numbers alone, predicts that noise drowns the
        records."""
        if self.choice is not None and (sentence := self.choice.about_noise):
            warnings.warn(sentence, BudgetWarning, stacklevel=outside())


def planned(
    task: Task,
    budget: Budget,
    algorithm: Algorithm = AUTOMATIC,
    *,
    report_accuracy: float | None = None,
    exact: bool = False,
    stream: bool = False,
    shared: SharedBudget | None = None,
) -> Planned:
    """What an algorithm executes on a task, with the least noise that the budget allows.

    ``report_accuracy``: the part of mu^2 that a noisy count of right answers costs, on a tenth of
    the records that are then not trained on. ``exact``: for exact noise. ``stream``: the data do
    not fit in memory. ``shared``: what a ledger leaves; a given run that does not fit it is
    refused, with the name of the plan that does.
    """
    if report_accuracy is not None and not keeps_places(budget.adjacency):
        raise InputError(
            "report_accuracy",
            "must be left out under add-remove: one record more would move the others "
            "between the part that is trained on and the part that is counted",
            report_accuracy,
        )
    if exact and not keeps_places(budget.adjacency):
        raise InputError(
            "secure_noise",
            "must be left out under add-remove: that the gradients of records which move "
            "to other places are rounded alike is not proved",
            None,
            "use zero-out",
        )
    places = None if report_accuracy is None else reserved(task.n)
    task = task if places is None else replace(task, n=len(places[0]))
    delta = budget.delta_for(task.n)
    run = algorithm.described(budget.asked(task), exact=exact)
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
    if exact and run is not None:
        return Planned(calibrate_exactly(run, epsilon=budget.epsilon, delta=delta), delta)
    plan = (
        _chosen(task, budget, stream, shared)
        if run is None
        else _given(task, budget, run, stream, shared)
    )
    if places is None or report_accuracy is None:
        return plan
    count = count_for(
        report_accuracy, budget.epsilon, delta, len(places[1]), rows_per_unit=task.rows_per_unit
    )
    both = replace(plan.certificate.run, counts=(count,))
    return replace(
        plan, certificate=calibrate(both, epsilon=budget.epsilon, delta=delta), places=places
    )


def candidate(
    task: Task, budget: Budget, algorithm: Algorithm, shared: SharedBudget | None
) -> Callable[[float, float], Certificate]:
    """What is planned for a task within another epsilon and delta."""
    return lambda epsilon, delta: (
        planned(
            task, replace(budget, epsilon=epsilon, delta=delta), algorithm, shared=shared
        ).certificate
    )


def _chosen(task: Task, budget: Budget, stream: bool, shared: SharedBudget | None) -> Planned:
    """The planner's run."""
    delta = budget.delta_for(task.n)
    choice = consider(
        task,
        epsilon=budget.epsilon,
        delta=delta,
        adjacency=budget.adjacency,
        time_budget=budget.time_budget,
        stream=stream,
        shared=shared,
    )
    return Planned(choice.best.certificate, delta, choice)


def _given(
    task: Task, budget: Budget, run: Run, stream: bool, shared: SharedBudget | None
) -> Planned:
    """A run of somebody's own, if it describes these data and the ledger pays for it."""
    check_task(run, task, budget.adjacency)
    delta = budget.delta_for(task.n)
    certificate = calibrate(run, epsilon=budget.epsilon, delta=delta)
    if shared is not None and not shared.fits(certificate):
        choice = _chosen(task, budget, stream, shared).choice
        if choice is not None and (best := choice.best).fits:
            needed = share_words(shared.share(certificate))
            raise InputError(
                "ledger",
                f"refuses this release: it needs {needed} of the budget",
                None,
                f"the algorithm automatic fits: its plan for this ledger, "
                f"{best.name}, needs {share_words(best.share)}; no record was read, nothing was "
                f"charged",
            )
    return Planned(certificate, delta)


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


# Which public maps make rows of records: named by the caller, by the schema, or by its kinds and
# the data's shape.

AUTO, IN_RUN = "auto", get_args(FeatureMap)


@dataclass(frozen=True)
class OtherRows:
    """Rows that a choice stands against: numbers in a row, its largest norm, and which maps make
    it."""

    width: int
    norm: float
    words: str


@dataclass(frozen=True)
class FeatureChoice:
    """A schema with its maps, what the run's preparation does beside them (see ``Task``), and why,
    in one sentence.

    ``other``: plain rows where maps were chosen, and where they were not the rows of maps that
    larger budgets carry.
    """

    schema: Schema
    part: FeatureMap
    why: str
    other: OtherRows | None = None

    def weighed(self, task: Task, best: Plan, budget: Budget, *, stream: bool = False) -> str:
        """What noise and clips are predicted to cost with these rows and with the others; empty
        without others.

        ``task``, ``best``: of these rows. The others are planned for, which takes the time of a
        plan; no value is read.
        """
        if self.other is None:
            return ""
        rows = replace(task, features=self.other.width, row_norm=self.other.norm)
        try:
            rival = consider(
                rows,
                epsilon=budget.epsilon,
                delta=budget.delta_for(task.n),
                adjacency=budget.adjacency,
                time_budget=budget.time_budget,
                stream=stream,
            ).best
        except InputError as error:
            return f"{self.other.words}, {self.other.width} numbers in a row, cannot be planned for: {error}"
        (here, what), (there, _) = _predicted(best), _predicted(rival)
        many = task.features > self.other.width
        more = here - there if many else there - here
        where = (
            f"where they bring the best possible {what} down by more than {more:.2g}"
            if more > 0
            else "in any case"
        )
        wider = "these" if many else "those"
        return (
            f"noise and clips are predicted to cost {here:.2g} of {what} with {task.features} "
            f"numbers in a row, "
            f"and {there:.2g} with {self.other.width} ({self.other.words}): {wider} pay {where}"
        )


def _predicted(plan: Plan) -> tuple[float, str]:
    """What a plan loses by its noise, on the planner's public reference problem."""
    scores = predicted_scores(plan.certificate.run, plan.risk)
    return (plan.risk, "loss") if scores is None else (scores.log_loss, "log loss")


def chosen(
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
            type(one).sized(fields, resolved) if one.name in schema.unsized else one
            for one in schema.features
        )
        if by_schema
        else automatic_maps(fields, resolved)
        if features == AUTO
        else maps_named(features, fields, resolved)
    )
    mapped = replace(schema, features=maps, unsized=()).shaped(shape)
    other = _other(mapped, shape, resolved)
    if by_schema:
        return FeatureChoice(
            mapped, PLAIN, f"the schema says {described_of_map_table(maps)}", other
        )
    if features != AUTO:
        return FeatureChoice(mapped, PLAIN, f"{described_of_map_table(maps)}: asked for", other)
    wide, many = mapped.form(shape).width, len(fields)
    why = f"{n} records and this budget (records times mu {resolved:.3g}) " + (
        f"carry {wide} numbers of {many} fields"
        if maps
        else f"do not carry more than {wide} numbers in a row"
    )
    return FeatureChoice(mapped, PLAIN, f"{described_of_map_table(maps)}: {why}", other)


def _other(schema: Schema, shape: tuple[int, ...], resolved: float) -> OtherRows | None:
    """The rows without the schema's maps, but for those that text needs; where it has no others,
    the rows of the maps that ``auto`` takes for any budget."""
    fields = replace(schema, features=()).form(shape).fields
    maps = tuple(one for one in schema.features if Text in one.takes)
    if maps == schema.features:
        maps = tuple(type(one).sized(fields, resolved) for one in automatic_maps(fields, math.inf))
    if maps == schema.features:
        return None
    form = replace(schema, features=maps).form(shape)
    return OtherRows(form.width, form.norm, ", ".join(one.name for one in maps) or PLAIN)


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
