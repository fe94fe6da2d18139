"""JSON for the frozen dataclasses of a run: ``{"type": class, field: value}``, nothing else accepted.

Which types a field may have is read from its annotation when the object is built (``fields.settle``): nothing about
single fields stands here.
"""

# pyright: basic
# what JSON holds is checked here, not known
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from lastiterate.errors import InputError

DEEPEST = 12
"""Levels of lists and objects in each other that are read; a run has six."""


WHERE_GIVEN = {"written": "where given"}
"""Metadata of a field that came later: runs that leave it out are written, and hashed, as they were before."""


def encode(value: object) -> Any:
    """A JSON-ready form of a run or one of its parts; a ``json_type`` names a class that ``stands_for()`` it."""
    if is_dataclass(value) and not isinstance(value, type):
        body = {item.name: encode(getattr(value, item.name)) for item in fields(value) if item.init and not (
            item.metadata == WHERE_GIVEN and getattr(value, item.name) == item.default)}
        return {"type": getattr(value, "json_type", type(value).__name__), **body}
    if isinstance(value, tuple):
        return [encode(entry) for entry in value]
    return value


def decode(data: object, where: str, classes: Mapping[str, type], depth: int = DEEPEST) -> Any:
    """The object described by ``data``, of one of ``classes`` by name; unknown types and fields, and missing ones, are
    refused by name."""
    if not depth:
        raise InputError(where, f"is nested deeper than {DEEPEST} levels", None, "write one with Run.to_json()")
    if isinstance(data, list):
        return tuple(decode(entry, where, classes, depth - 1) for entry in data)
    if not isinstance(data, dict):
        return data
    kind = data.get("type")
    cls = classes.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise InputError(where, "has an unknown \"type\"", kind, "use the names that Run.to_json() writes")
    known = {item.name: item for item in fields(cls) if item.init}
    extra = sorted(map(str, set(data) - set(known) - {"type"}))
    if extra:
        raise InputError(f"{where}.{kind}", "has an unknown field", extra[0], "remove it")
    missing = [name for name, item in known.items() if name not in data and item.default is MISSING]
    if missing:
        raise InputError(f"{where}.{kind}", f"misses the field {missing[0]!r}", None, "add it")
    decoded = cls(**{name: decode(data[name], f"{where}.{name}", classes, depth - 1) for name in known if name in data})
    return decoded.stands_for() if hasattr(cls, "stands_for") else decoded
