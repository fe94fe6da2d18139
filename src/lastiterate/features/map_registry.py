"""The table of maps, by the names that ``features=`` takes; a new map is a file and a line here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast, get_args

from lastiterate.errors import InputError
from lastiterate.features.columns import Bins, Curves, Gated, HashedWords, RecordMap
from lastiterate.features.record_fields import Field
from lastiterate.features.scattering import Scattering
from lastiterate.run import serialization

Maps = Curves | Bins | HashedWords | Scattering | Gated
TABLE: dict[str, type[RecordMap]] = {one.name: one for one in get_args(Maps)}
PLAIN = "plain"


def maps_named(
    names: str, fields: tuple[Field, ...] | None = None, resolved: float = 0.0
) -> tuple[RecordMap, ...]:
    """The maps of these names, separated by commas; ``plain`` is none.

    ``fields``, ``resolved``: as large as such a record and budget carry (see ``RecordMap.for_budget``).
    """
    if names == PLAIN:
        return ()
    listed = [name.strip() for name in names.split(",")]
    strange = [name for name in listed if name not in TABLE]
    if strange or len(set(listed)) != len(listed):
        raise InputError(
            "features",
            "must be plain, or maps of records separated by commas: " + ", ".join(TABLE),
            names,
            "plain is what a column gets that no map takes: leave it out of the list"
            if strange == [PLAIN]
            else "auto, sqrt and fourier are for training a model",
        )
    return tuple(
        TABLE[name]() if fields is None else TABLE[name].for_budget(fields, resolved)
        for name in listed
    )


def automatic_maps(fields: tuple[Field, ...], resolved: float) -> tuple[RecordMap, ...]:
    """The maps that pay for such fields; ``resolved``: public records times mu of the budget. No
    value is looked at."""
    return tuple(
        one.for_budget(fields, resolved) for one in TABLE.values() if one.pays(fields, resolved)
    )


def maps_from(data: object) -> tuple[RecordMap, ...]:
    """What ``to_data`` wrote, or names of maps in a list."""
    if isinstance(data, str):
        return maps_named(data)
    if not isinstance(data, list | tuple) or not all(
        isinstance(entry, str | dict) for entry in cast("Sequence[object]", data)
    ):
        raise InputError(
            "features", "must be the name of a map, or a list of maps", cast(object, data)
        )
    classes = {one.__name__: one for one in TABLE.values()}
    return tuple(
        record_map
        for entry in cast("Sequence[object]", data)
        for record_map in (
            maps_named(entry)
            if isinstance(entry, str)
            else (serialization.decode(entry, "features", classes),)
        )
    )


def names_in(data: Any) -> tuple[str, ...]:
    """The maps that ``maps_from`` reads from names, which say nothing of their sizes."""
    listed = [data] if isinstance(data, str) else data
    return tuple(
        one.name for entry in listed if isinstance(entry, str) for one in maps_named(entry)
    )


def to_data(maps: tuple[RecordMap, ...]) -> list[Any]:
    """JSON-ready; ``maps_from`` reads it."""
    return [serialization.encode(one) for one in maps]


def describe_maps(maps: tuple[RecordMap, ...]) -> str:
    """What is done to records, in one line."""
    return (
        "; ".join(one.words() for one in maps)
        or "plain: numbers scaled to [-1, 1], a 0 or 1 for each category"
    )


def check_maps(maps: object) -> None:
    """Refuse what is no tuple of maps of the table, by their exact type."""
    if not isinstance(maps, tuple) or any(
        type(one) not in TABLE.values() for one in cast("tuple[object, ...]", maps)
    ):
        raise InputError(
            "features", "must be a tuple of maps of lastiterate.features", cast(object, maps)
        )
    names = [one.name for one in cast("tuple[RecordMap, ...]", maps)]
    if len(set(names)) != len(names):
        raise InputError("features", "must name a map once", names)
