"""JSON for the frozen dataclasses of a run: ``{"type": class, field: value}``, nothing else accepted."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from lastiterate import domains, losses, prox, schedules
from lastiterate.errors import InputError
from lastiterate.evidence import Fact

_MODULES = (losses, schedules, domains, prox)
_REGISTRY: dict[str, Any] = {}


def _classes() -> dict[str, type]:
    from lastiterate.run import Run

    if not _REGISTRY:
        found: dict[str, type] = {"Run": Run, "Fact": Fact}
        for module in _MODULES:
            for name, value in vars(module).items():
                if isinstance(value, type) and is_dataclass(value) and not name.startswith("_"):
                    found[name] = value
        _REGISTRY.update(found)
    return _REGISTRY


def encode(value: Any) -> Any:
    """A JSON-ready form of a run or one of its parts."""
    if isinstance(value, Fact):
        return {"type": "Fact", "value": value.value, "why": value.why}
    if is_dataclass(value) and not isinstance(value, type):
        body = {item.name: encode(getattr(value, item.name)) for item in fields(value)}
        return {"type": type(value).__name__, **body}
    if isinstance(value, tuple | list):
        return [encode(entry) for entry in value]
    return value


def decode(data: Any, where: str) -> Any:
    """The object described by ``data``; unknown types, fields and missing fields are refused by name."""
    if isinstance(data, list):
        return tuple(decode(entry, where) for entry in data)
    if not isinstance(data, dict):
        return data
    kind = data.get("type")
    cls = _classes().get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise InputError(where, "has an unknown \"type\"", kind, "use the names that Run.to_json() writes")
    known = {item.name: item for item in fields(cls) if item.init}
    extra = sorted(set(data) - set(known) - {"type", "evidence"})
    if extra:
        raise InputError(f"{where}.{kind}", "has an unknown field", extra[0], "remove it")
    missing = [name for name, item in known.items() if name not in data and item.default is MISSING]
    if missing:
        raise InputError(f"{where}.{kind}", f"misses the field {missing[0]!r}", None, "add it")
    body = {name: decode(data[name], f"{where}.{name}") for name in known if name in data}
    try:
        return cls(**body)
    except (TypeError, AttributeError) as error:
        raise InputError(f"{where}.{kind}", "has a field of the wrong type", str(error), "see Run.to_json()") from None
