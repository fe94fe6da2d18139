"""Which public maps make rows of records: named by the caller, by the schema, or by its kinds and the data's shape."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import cast, get_args

from lastiterate.data.schema import Schema
from lastiterate.errors import InputError
from lastiterate.features.map_table import PLAIN, automatic_maps, described, maps_named
from lastiterate.features.record_fields import Text
from lastiterate.planning.planner import Plan, consider
from lastiterate.planning.predicted_scores import predicted_scores
from lastiterate.planning.task import FeatureMap, Task
from lastiterate.planning.task import budget as worth
from lastiterate.release.linear_plans import Budget

AUTO, IN_RUN = "auto", get_args(FeatureMap)


@dataclass(frozen=True)
class OtherRows:
    """Rows that a choice stands against: numbers in a row, its largest norm, and which maps make it."""

    width: int
    norm: float
    words: str


@dataclass(frozen=True)
class FeatureChoice:
    """A schema with its maps, what the run's preparation does beside them (see ``Task``), and why, in one sentence.

    ``other``: plain rows where maps were chosen, and where they were not the rows of maps that larger budgets carry.
    """

    schema: Schema
    part: FeatureMap
    why: str
    other: OtherRows | None = None

    def weighed(self, task: Task, best: Plan, budget: Budget, *, stream: bool = False) -> str:
        """What noise and clips are predicted to cost with these rows and with the others; empty without others.

        ``task``, ``best``: of these rows. The others are planned for, which takes the time of a plan; no value is read.
        """
        if self.other is None:
            return ""
        rows = replace(task, features=self.other.width, row_norm=self.other.norm)
        try:
            rival = consider(rows, epsilon=budget.epsilon, delta=budget.delta_for(task.n), adjacency=budget.adjacency,
                             time_budget=budget.time_budget, stream=stream).best
        except InputError as error:
            return f"{self.other.words}, {self.other.width} numbers in a row, cannot be planned for: {error}"
        (here, what), (there, _) = _predicted(best), _predicted(rival)
        many = task.features > self.other.width
        more = here - there if many else there - here
        where = f"where they bring the best possible {what} down by more than {more:.2g}" if more > 0 else "in any case"
        wider = "these" if many else "those"
        return (f"noise and clips are predicted to cost {here:.2g} of {what} with {task.features} numbers in a row, "
                f"and {there:.2g} with {self.other.width} ({self.other.words}): {wider} pay {where}")


def _predicted(plan: Plan) -> tuple[float, str]:
    """What a plan loses by its noise, on the planner's public reference problem."""
    scores = predicted_scores(plan.certificate.run, plan.risk)
    return (plan.risk, "loss") if scores is None else (scores.log_loss, "log loss")


def chosen(schema: Schema, features: str, shape: tuple[int, ...], n: int, budget: Budget) -> FeatureChoice:
    """What ``features`` means for data of this shape and a budget; ``auto`` leaves the maps that a schema has.

    ``shape``: of one record of an array. Only public numbers and kinds of columns are looked at. Errors: an unknown
    name, a map that has nothing to map.
    """
    check_names(features)
    if features in IN_RUN and features != PLAIN:
        return FeatureChoice(replace(schema, features=()), cast(FeatureMap, features), f"{features} was asked for")
    fields = replace(schema, features=()).form(shape).fields
    resolved = n * worth(budget.epsilon, budget.delta_for(n))
    by_schema = features == AUTO and bool(schema.features)
    maps = tuple(type(one).sized(fields, resolved) if one.name in schema.unsized else one for one in schema.features) \
        if by_schema else automatic_maps(fields, resolved) if features == AUTO else maps_named(
        features, fields, resolved)
    mapped = replace(schema, features=maps, unsized=()).shaped(shape)
    other = _other(mapped, shape, resolved)
    if by_schema:
        return FeatureChoice(mapped, PLAIN, f"the schema says {described(maps)}", other)
    if features != AUTO:
        return FeatureChoice(mapped, PLAIN, f"{described(maps)}: asked for", other)
    wide, many = mapped.form(shape).width, len(fields)
    why = f"{n} records and this budget (records times mu {resolved:.3g}) " + (
        f"carry {wide} numbers of {many} fields" if maps else f"do not carry more than {wide} numbers in a row")
    return FeatureChoice(mapped, PLAIN, f"{described(maps)}: {why}", other)


def _other(schema: Schema, shape: tuple[int, ...], resolved: float) -> OtherRows | None:
    """The rows without the schema's maps, but for those that text needs; where it has no others, the rows of the maps
    that ``auto`` takes for any budget."""
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
        raise InputError("features", "is for the automatic plan", features, "leave it out, or name no algorithm")


def check_names(features: object) -> None:
    """Refuse what is no text."""
    if not isinstance(features, str):
        raise InputError("features", "must be a text: auto, or names of maps with commas between them", features)


def part_of(features: str) -> FeatureMap:
    """What the run's preparation does, where there is no schema. Errors: maps, which need one."""
    check_names(features)
    if features == AUTO:
        return "plain"
    if features in IN_RUN:
        return cast(FeatureMap, features)
    maps_named(features)
    raise InputError("features", "needs a schema: the public facts that a map of records follows", features,
                     "give schema=, or one of auto, " + ", ".join(IN_RUN))
