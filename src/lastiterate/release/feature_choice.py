"""Which public maps make rows of records: named by the caller, by the schema, or by its kinds and the data's shape."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast, get_args

from lastiterate.data.schema import Schema
from lastiterate.errors import InputError
from lastiterate.features.map_table import automatic_maps, described, maps_named
from lastiterate.planning.task import FeatureMap
from lastiterate.planning.task import budget as worth
from lastiterate.release.linear_plans import Budget

AUTO, IN_RUN = "auto", get_args(FeatureMap)


@dataclass(frozen=True)
class FeatureChoice:
    """A schema with its maps, what the run's preparation does beside them (see ``Task``), and why, in one sentence."""

    schema: Schema
    part: FeatureMap
    why: str


def chosen(schema: Schema, features: str, shape: tuple[int, ...], n: int, budget: Budget) -> FeatureChoice:
    """What ``features`` means for data of this shape and a budget; ``auto`` leaves the maps that a schema has.

    ``shape``: of one record of an array. Only public numbers and kinds of columns are looked at. Errors: an unknown
    name, a map that has nothing to map.
    """
    if features == AUTO and schema.features:
        return FeatureChoice(schema.shaped(shape), "plain", f"the schema says {described(schema.features)}")
    if features in IN_RUN:
        return FeatureChoice(replace(schema, features=()), cast(FeatureMap, features), f"{features} was asked for")
    plain = replace(schema, features=()).form(shape)
    resolved = n * worth(budget.epsilon, budget.delta_for(n))
    if features != AUTO:
        found = replace(schema, features=maps_named(features, plain.fields, resolved)).shaped(shape)
        return FeatureChoice(found, "plain", f"{described(found.features)}: asked for")
    maps = automatic_maps(plain.fields, resolved)
    found = replace(schema, features=maps).shaped(shape)
    wide, many = found.form(shape).width, len(plain.fields)
    why = f"{n} records and this budget (records times mu {resolved:.3g}) " + (
        f"carry {wide} numbers of {many} fields" if maps else f"do not carry more than {wide} numbers in a row")
    return FeatureChoice(found, "plain", f"{described(maps)}: {why}")


def part_of(features: str) -> FeatureMap:
    """What the run's preparation does, where there is no schema. Errors: maps, which need one."""
    if features == AUTO:
        return "plain"
    if features in IN_RUN:
        return cast(FeatureMap, features)
    maps_named(features)
    raise InputError("features", "needs a schema: the public facts that a map of records follows", features,
                     "give schema=, or one of auto, " + ", ".join(IN_RUN))
