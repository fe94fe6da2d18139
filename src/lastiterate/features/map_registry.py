"""The table of maps, by the names that ``features=`` takes; a new map is a file and a line here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast, get_args

from lastiterate import plugins
from lastiterate.errors import InputError
from lastiterate.features.column_maps import Bins, Curves, Gated, RecordMap
from lastiterate.features.hashed_words import HashedWords
from lastiterate.features.patches import Patches
from lastiterate.features.record_fields import Field
from lastiterate.features.scattering import Scattering
from lastiterate.run import serialization

Maps = Curves | Bins | HashedWords | Patches | Scattering | Gated
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
    strange = [name for name in listed if _find_map(name) is None]
    if strange or len(set(listed)) != len(listed):
        raise InputError(
            "features",
            "must be plain, or maps of records separated by commas: " + ", ".join(TABLE),
            names,
            "plain is what a column gets that no map takes: leave it out of the list"
            if strange == [PLAIN]
            else "auto, sqrt and fourier are for training a model",
        )
    kinds = [kind for name in listed if (kind := _find_map(name)) is not None]
    return tuple(kind() if fields is None else kind.for_budget(fields, resolved) for kind in kinds)


def automatic_maps(fields: tuple[Field, ...], resolved: float) -> tuple[RecordMap, ...]:
    """The maps that pay for such fields, the first of each field; ``resolved``: public records
    times mu of the budget. No value is looked at, and no plug-in is asked."""
    chosen: list[type[RecordMap]] = []
    for one in TABLE.values():
        kinds = tuple(kind for other in chosen for kind in other.takes)
        left = tuple(field for field in fields if not isinstance(field, kinds))
        if any(isinstance(field, one.takes) for field in left) and one.pays(left, resolved):
            chosen.append(one)
    return tuple(one.for_budget(fields, resolved) for one in chosen)


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
    classes = _classes_for(cast("Sequence[object]", data))
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
        type(one) not in TABLE.values() and type(one) not in _PROVIDERS
        for one in cast("tuple[object, ...]", maps)
    ):
        raise InputError(
            "features", "must be a tuple of maps of lastiterate.features", cast(object, maps)
        )
    names = [one.name for one in cast("tuple[RecordMap, ...]", maps)]
    if len(set(names)) != len(names):
        raise InputError("features", "must name a map once", names)


# Maps of plug-ins.

_PROVIDERS: dict[type[RecordMap], str] = {}


def find_plugins() -> dict[str, type[RecordMap]]:
    """Return the maps of plug-ins by name; none where they are not allowed."""
    return plugins.find_all("features", _accept)


def list_providers(maps: Sequence[RecordMap]) -> tuple[plugins.Outside, ...]:
    """Return the marks of the maps that plug-ins provide."""
    return tuple(
        plugins.Outside("features", one.name, _PROVIDERS[type(one)])
        for one in maps
        if type(one) in _PROVIDERS
    )


def describe_provider(kind: type[RecordMap]) -> str:
    """Say which package provides a map."""
    return plugins.mark(_PROVIDERS[kind])


def _find_map(name: str) -> type[RecordMap] | None:
    return TABLE[name] if name in TABLE else plugins.find("features", name, _accept)


def _classes_for(data: Sequence[object]) -> dict[str, type[RecordMap]]:
    """Return the maps by class; those of plug-ins too, where an entry names none of the table."""
    classes = {one.__name__: one for one in TABLE.values()}
    named = [entry.get("type") for entry in data if serialization.is_object(entry)]
    strange = [name for name in named if isinstance(name, str) and name not in classes]
    if not strange:
        return classes
    outside = {kind.__name__: kind for kind in find_plugins().values()}
    if not set(strange) <= set(outside) and plugins.find_installed("features"):
        raise InputError(
            "features",
            'has an unknown "type"',
            strange[0],
            "where a plug-in provides it, let its code run: lastiterate.allow_plugins()",
        )
    return classes | outside


def _accept(name: str, value: object, package: str) -> type[RecordMap]:
    """Return the class of a plug-in's map, from now on one that schemas may hold."""
    if not (isinstance(value, type) and issubclass(value, RecordMap)):
        raise InputError(
            "entry point",
            "must name a class that derives from lastiterate.features.column_maps.RecordMap",
            str(value),  # pyright: ignore[reportUnknownArgumentType]
        )
    if value.name != name:
        raise InputError("entry point", f"must be called {value.name}, as its map is", name)
    taken = {*TABLE, *(one.__name__ for one in TABLE.values()), PLAIN, "auto", "sqrt", "fourier"}
    if name in taken or value.__name__ in taken:
        raise InputError("features", "must have a name that no map of this project has", name)
    _PROVIDERS[value] = package
    return value
