"""Entries of a schema as TOML or JSON holds them: checked, complete, and read into columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from types import UnionType
from typing import Any, cast

from lastiterate.data.columns import UNKNOWN, Category, Column, Date, Id, Ignore, Numeric, Words
from lastiterate.errors import InputError
from lastiterate.run.strict_json import is_object

ENTRIES: dict[str, tuple[type | UnionType, str]] = {
    "columns": (dict, "tables such as [columns.age]"), "target": (str, "the name of a column"),
    "classes": (list, "a list of labels"), "target_range": (list, "[low, high]"),
    "array": (dict, "a table with low and high"), "source": (str, "text"),
    "header": (list | str, "a list of names, or \"yes\""),  # pyright: ignore
    "features": (str | list, "the name of a map, or a list of maps")}  # pyright: ignore


NEEDS = {"number": ("low", "high"), "count": ("high",), "date": ("first", "last"), "category": ("values",),
         "text": (), "id": (), "ignore": ()}
"""The kinds of columns, and what each has to state."""
UNFILLED: tuple[object, ...] = (UNKNOWN, [], [UNKNOWN])
LISTED = ("classes", "target_range")
"""Lists in whose place a question mark may stand while they are not filled in."""


def check_entries(data: object, *, partly: bool = False) -> None:
    """Refuse what is no schema: entries that do not exist or have another type, and all that is not filled in.

    ``partly``: lists with a question mark in them, too, as in a file that somebody fills in; models that were trained
    before this was refused may have a category of that name.
    """
    if not isinstance(data, dict):
        raise InputError("schema", "must be a table of entries", type(data).__name__)
    given = cast("dict[str, Any]", data)
    extra = sorted(set(given) - set(ENTRIES))
    if extra:
        raise InputError("schema", "has an unknown entry", extra[0], "the entries are " + ", ".join(sorted(ENTRIES)))
    for name, value in given.items():
        kind, meaning = ENTRIES[name]
        if not isinstance(value, kind) and (value != UNKNOWN or name not in LISTED):
            raise InputError(f"schema: {name}", f"must be {meaning}", value)  # not of the flag of the same name
    missing = [name for name in ("target", "classes", "target_range") if _asks(given.get(name), partly)]
    for name, entry in given.get("columns", {}).items():
        missing += [f"{name}: {item}" for item in _unfilled(entry, partly)]
    array: dict[str, Any] = given.get("array") or {}
    missing += [f"[array]: {item}" for item, value in array.items() if value == [] or _asks(value, partly)]
    if missing:
        raise InputError("schema", "leaves public facts open", "; ".join(missing),
                         "fill each in from the meaning of the column, not from your data"
                         + "; cells \"?\" get a place of their own by missing = \"indicator\"" * partly)
    bounds = given.get("target_range")
    if bounds is not None and (len(bounds) != 2 or not all(_is_number(bound) for bound in bounds)):
        raise InputError("target_range", "must be [low, high], two numbers", bounds)
    header = given.get("header", ())
    if isinstance(header, str) and header != "yes":
        raise InputError("schema: header", "must be \"yes\", or a list of names for files without one", header)
    if not all(isinstance(name, str) for name in header):
        raise InputError("header", "must be a list of names", header)
    if not all(isinstance(label, str | int | float) for label in given.get("classes", ())):
        raise InputError("schema: classes", "must be a list of labels", given["classes"])


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _unfilled(entry: object, partly: bool) -> list[str]:
    """What a column's entry still has to state."""
    if not is_object(entry):
        return []
    kind = entry.get("kind", UNKNOWN)
    if kind == UNKNOWN:
        return ["kind"]
    if not isinstance(kind, str):
        return []
    return [item for item in NEEDS.get(kind, ()) if entry.get(item, []) == [] or _asks(entry[item], partly)]


def _asks(value: object, partly: bool) -> bool:
    """Whether a question mark stands for it, or with ``partly`` for a part of it."""
    return value in (UNKNOWN, [UNKNOWN]) or (partly and isinstance(value, list | tuple) and UNKNOWN in value)


def column_from(name: str, entry: object) -> Column:
    where = f"column {name!r}"
    if not is_object(entry):
        raise InputError(where, "must be a table such as { kind = \"number\", low = 0, high = 1 }", entry)
    kind = entry.get("kind")
    if not isinstance(kind, str) or kind not in NEEDS:
        raise InputError(f"{where}: kind", "must be one of " + ", ".join(NEEDS), kind)
    # what an empty schema offers to the other kinds may stand there unfilled
    others = {item for needed in NEEDS.values() for item in needed} - set(NEEDS[kind])
    rest: dict[str, Any] = {key: value for key, value in entry.items()
                            if key != "kind" and not (key in others and value in UNFILLED)}
    try:
        if kind == "category":
            listed: Any = rest["values"]
            if not isinstance(listed, list | tuple) or not all(
                    isinstance(value, str | int | float) for value in cast("list[object]", listed)):
                raise InputError(f"{where}: values", "must be a list of categories", rest["values"])
            return Category(name, tuple(rest.pop("values")), **rest)
        return MAKE[kind](name, **rest)
    except TypeError as error:
        raise InputError(where, f"has an entry that columns of kind {kind!r} have not",
                         str(error).rsplit(" ", 1)[-1].strip("'"),
                         "`lastiterate schema` writes the entries of every kind") from None


def _count(name: str, high: float, **rest: Any) -> Numeric:
    """A number from 0 on that may be large: its logarithm is what counts."""
    return Numeric(name, 0, high, **({"scale": "log"} | rest))


MAKE: dict[str, Callable[..., Column]] = {"number": Numeric, "count": _count, "date": Date, "text": Words,
                                          "id": Id, "ignore": Ignore}
"""What makes a column of an entry, by its kind; a count is a number."""


def as_entry(column: Column) -> dict[str, Any]:
    """What ``column_from`` reads, without the name; a linear scale is not written, as before there was another."""
    entry = {item.name: getattr(column, item.name) for item in fields(column) if item.name != "name"}
    return {key: value for key, value in entry.items() if (key, value) != ("scale", "linear")}
