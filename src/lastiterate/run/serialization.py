"""JSON for the dataclasses of a run, and TOML: strict about text from strangers."""

# pyright: basic

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache, partial
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    TypeGuard,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np

from lastiterate import limits
from lastiterate.errors import InputError
from lastiterate.run.validation import integer, to_float, to_floats

if TYPE_CHECKING:
    from pathlib import Path


# JSON for the frozen dataclasses of a run: ``{"type": class, field: value}``, nothing else
# accepted. ``normalise_fields`` reads the types that a field may have from its annotation when the
# object is built: nothing about single fields stands here.

# what JSON holds is checked here, not known


DEEPEST = 12
"""Levels of lists and objects in each other that are read; a run has six."""


WHERE_GIVEN = {"written": "where given"}
"""Metadata of a field that came later: runs that leave it out are written, and hashed, as they were
before."""


ALWAYS_GIVEN = {"written": "always"}
"""Metadata of a field that a file must have, though callers may give another argument instead."""


def key_of(item: Field[Any]) -> str:
    """The key of a field in files, which stays where a field is renamed."""
    return item.metadata.get("key", item.name)


def type_name(kind: type) -> str:
    """The name of a class in files, which stays where a class is renamed."""
    stays = getattr(kind, "json_type", None)
    return stays if isinstance(stays, str) else kind.__name__


def encode(value: object) -> Any:
    """A JSON-ready form of a run or one of its parts; a ``json_type`` names a class that
    ``stands_for()`` it."""
    if is_dataclass(value) and not isinstance(value, type):
        body = {
            key_of(item): encode(getattr(value, item.name))
            for item in fields(value)
            if item.init
            and not (item.metadata == WHERE_GIVEN and getattr(value, item.name) == item.default)
        }
        return {"type": getattr(value, "json_type", type(value).__name__), **body}
    if isinstance(value, tuple):
        return [encode(entry) for entry in value]
    return value


def decode(data: object, where: str, classes: Mapping[str, type], depth: int = DEEPEST) -> Any:
    """The object described by ``data``, of one of ``classes`` by name; unknown types and fields,
    and missing ones, are refused by name."""
    if not depth:
        raise InputError(
            where, f"is nested deeper than {DEEPEST} levels", None, "write one with Run.to_json()"
        )
    if isinstance(data, list):
        return tuple(decode(entry, where, classes, depth - 1) for entry in data)
    if not isinstance(data, dict):
        return data
    kind = data.get("type")
    cls = classes.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise InputError(
            where, 'has an unknown "type"', kind, "use the names that Run.to_json() writes"
        )
    known = {key_of(item): item for item in fields(cls) if item.init}
    extra = sorted(map(str, set(data) - set(known) - {"type"}))
    if extra:
        raise InputError(f"{where}.{kind}", "has an unknown field", extra[0], "remove it")
    missing = [
        name
        for name, item in known.items()
        if name not in data and (item.default is MISSING or item.metadata == ALWAYS_GIVEN)
    ]
    if missing:
        raise InputError(f"{where}.{kind}", f"misses the field {missing[0]!r}", None, "add it")
    decoded = cls(
        **{
            item.name: decode(data[key], f"{where}.{key}", classes, depth - 1)
            for key, item in known.items()
            if key in data
        }
    )
    return decoded.stands_for() if hasattr(cls, "stands_for") else decoded


# The types of a description's fields, read from its annotations: what is checked is what is stored.
# A description is one of a closed set of final classes and is recognised by its exact type: a
# subclass could answer one thing to a theorem and another to the trainer. Numbers are stored as
# built-in ones for the same reason.

Check = Callable[[str, Any], Any]
"""From the name of an argument and its value to the value that is stored; refuses a value of
another type."""


def normalise_fields(description: object) -> None:
    """Check every field of a description against its annotation and its own rule, and store numbers
    and tuples as built-in ones."""
    for name, where, check, rule in _checks(type(description)):
        given = getattr(description, name)
        plain = check(where, given)
        if plain is not given:
            object.__setattr__(description, name, plain)
        if rule is not None:
            rule(plain)


class Checked:
    """A frozen dataclass whose fields are checked when it is built (see ``require``)."""

    def __post_init__(self) -> None:
        normalise_fields(self)


def require(check: Callable[..., None], name: str, **limits: Any) -> dict[str, Any]:
    """Return the metadata of a field that ``check(name, value, **limits)`` must not refuse."""
    return {"rule": partial(check, name, **limits)}


@cache
def _checks(
    cls: type,
) -> tuple[tuple[str, str, Check, Callable[[Any], None] | None], ...]:
    hints = {name: _type_in_file(hint) for name, hint in get_type_hints(cls).items()}
    return tuple(
        (
            item.name,
            f"{cls.__name__}.{item.name}",
            check_of(hints[item.name]),
            item.metadata.get("rule"),
        )
        for item in fields(cls)
        if item.init
    )


def _type_in_file(hint: object) -> Any:
    """Return the type that a field holds: for a descriptor, the type that reading it gives."""
    read = getattr(hint, "__get__", None) if isinstance(hint, type) else None
    return hint if read is None else get_type_hints(read)["return"]


def check_of(hint: object) -> Check:
    """Return the check for an annotation."""
    if hint in _PLAIN:
        return _PLAIN[hint]
    if get_origin(hint) is Literal:
        return _choice(get_args(hint))
    if get_origin(hint) in (Union, UnionType):
        return _union(get_args(hint))
    if get_origin(hint) is tuple:
        return _several(check_of(get_args(hint)[0]))
    return _union((hint,))


def _text(name: str, value: object) -> str:
    if type(value) not in (str, np.str_):
        raise InputError(name, "must be text", type(value).__name__)
    return str(value)


_PLAIN: dict[Any, Check] = {float: to_float, int: integer, str: _text, tuple[float, ...]: to_floats}


def _choice(options: tuple[str, ...]) -> Check:
    def check(name: str, value: object) -> str:
        if type(value) not in (str, np.str_) or value not in options:
            raise InputError(name, "must be one of " + ", ".join(options), value)
        return str(value)

    return check


def _several(each: Check) -> Check:
    def check(name: str, value: Any) -> tuple[Any, ...]:
        if type(value) not in (list, tuple, np.ndarray):
            raise InputError(name, "must be a list or tuple", type(value).__name__)
        return tuple(each(name, entry) for entry in value)

    return check


_ADMITTED: dict[type, type] = {}


def admit(kind: type, like: type) -> None:
    """Let fields hold ``kind``, a plug-in's class, wherever they may hold ``like``."""
    _ADMITTED[kind] = like


def _union(members: tuple[Any, ...]) -> Check:
    """One of several classes by exact type; a number, a tuple of them or nothing where the
    annotation has it."""
    several = next((check_of(member) for member in members if get_origin(member) is tuple), None)
    single = next((_PLAIN[member] for member in members if member in (float, int)), None)
    classes = frozenset(
        member for member in members if isinstance(member, type) and member not in (float, int)
    )
    names = ", ".join(
        member.__name__ for member in members if member in classes and member is not NoneType
    )

    def check(name: str, value: object) -> Any:
        kind = type(value)
        if kind in classes or _ADMITTED.get(kind) in classes:
            return value
        if several is not None and kind in (list, tuple, np.ndarray):
            return several(name, value)
        if single is not None:
            return single(name, value)
        remedy = getattr(kind, "not_admitted", "")
        raise InputError(name, f"must be one of {names}", kind.__name__, remedy)

    return check


# JSON from strangers: one meaning per text, and every other text refused in one sentence.  Readers
# differ on duplicate keys, on ``NaN`` and on numbers that no double holds; a text that two readers
# understand differently certifies nothing.


LARGEST = 2**63
_PARTS = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[^"]++', re.DOTALL)
"""A text of JSON, or all between two of them; possessive, so that the engine keeps nothing to come
back to."""
_BRACKETS = re.compile(r"[\[\]{}]")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def loads(text: str | bytes, where: str) -> Any:
    """The value of a JSON text; ``InputError``, with ``where`` as its argument, for what is not
    exactly one value."""
    if len(text) > limits.TEXT:
        raise InputError(where, f"must be at most {limits.text(limits.TEXT)} of text", len(text))
    try:
        plain = text.decode("utf-8") if isinstance(text, bytes) else text
        _check_size(plain, where)
        value = json.loads(
            plain,
            object_pairs_hook=lambda pairs: _object(pairs, where),
            parse_constant=lambda name: _refuse(where, name),
            parse_int=lambda digits: _whole(digits, where),
            parse_float=lambda digits: _number(digits, where),
        )
        if _SURROGATE.search(plain):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeError:
        raise InputError(where, "must be text in UTF-8", None, "the file is damaged") from None
    except (json.JSONDecodeError, RecursionError) as error:
        begun = text.lstrip()[:1] in ("", "{", "[", b"", b"{", b"[")
        raise InputError(
            where,
            "must be complete JSON",
            str(error)[:120],
            "the file is cut off or damaged"
            if begun
            else "there is none in it"
            + ("; give the text of a file, and not its name" if isinstance(text, str) else ""),
        ) from None
    return value


def read(path: Path, where: str) -> dict[str, Any]:
    """The object in a JSON file."""
    parsed = loads(content(path, where), where)
    if not isinstance(parsed, dict):
        raise InputError(where, "must be a JSON object", type(parsed).__name__)
    return parsed


def is_object(value: object) -> TypeGuard[dict[str, object]]:
    """Whether a value of JSON is an object, of whose entries nothing is known."""
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[object]]:
    """Whether a value of JSON is a list, of whose entries nothing is known."""
    return isinstance(value, list)


def content(path: Path, where: str) -> bytes:
    """The bytes of a JSON file, which may be a pipe; a file without an end is refused before it
    takes all memory."""
    return limits.content(path, where, limits.TEXT)


def _check_size(text: str, where: str) -> None:
    """Refuse lists and objects that are too deep in one another, and too many values, before
    anything is made of them."""
    depth = values = texts = 0
    for part in _PARTS.finditer(text):
        if text[part.start()] == '"':
            texts += 1
        else:
            plain = part.group()
            values += plain.count(",") + plain.count("[") + plain.count("{")
            if values <= limits.VALUES and (depth := _depth_behind(plain, depth, where)) < 0:
                return  # the parser says where
        if values > limits.VALUES or texts > 2 * limits.VALUES:
            raise InputError(where, f"must hold at most {limits.VALUES:,} values", None)


def _depth_behind(part: str, depth: int, where: str) -> int:
    """Return the depth at the end of a part without texts; negative where it closes more brackets
    than were opened."""
    for bracket in _BRACKETS.finditer(part):
        depth += 1 if bracket.group() in "[{" else -1
        if depth > limits.NESTING:
            raise InputError(
                where, f"must not nest lists and objects deeper than {limits.NESTING}", None
            )
        if depth < 0:
            break
    return depth


def _object(pairs: list[tuple[str, Any]], where: str) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen = set[str]()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise InputError(
            where,
            "must name every key once",
            twice[:60].encode("utf-8", "replace").decode(),
            "two readers could understand it differently",
        )
    return members


def _refuse(where: str, name: str) -> Any:
    raise InputError(where, "must hold finite numbers", name)


def _whole(digits: str, where: str) -> int:
    if len(digits) > 20 or abs(int(digits)) > LARGEST:
        raise InputError(where, "must hold integers of at most 2^63", digits[:24])
    return int(digits)


def _number(digits: str, where: str) -> float:
    if len(digits) > limits.DIGITS:
        raise InputError(
            where, f"must hold numbers of at most {limits.DIGITS:,} characters", digits[:24]
        )
    value = float(digits)
    return value if math.isfinite(value) else _refuse(where, digits[:24])


# TOML from strangers: schemas and statements, refused in one sentence where they are no values of
# this library's.
#
# Python's reader descends into itself for every list in a list, and its time grows with the square of
# the number of parts of a dotted key; both are bounded before it reads. Numbers are those that JSON
# may hold, so that what was read can be written into a model's folder.


_TOKENS = re.compile(
    r'"""(?:[^"\\]++|\\.|"(?!""))*+(?:"{3,5}|\Z)|'
    r"'''(?:[^']++|'(?!''))*+(?:'{3,5}|\Z)|"
    r'"(?:[^"\\\n]++|\\[^\n])*+"?|'
    r"'[^'\n]*+'?|"
    r"#[^\n]*+|[\[\]{}.,=\n]",
    re.DOTALL,
)
"""Texts, comments, and what nests or separates; a text that does not end reaches to the end of its
line or file."""


def read_toml(path: Path, where: str, remedy: str = "") -> dict[str, Any]:
    """The table in a TOML file; ``InputError``, with ``where`` as its argument, for everything
    else.

    ``remedy``: what helps where the file is no TOML.
    """
    raw = limits.content(path, where, limits.TOML)
    try:
        text = raw.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
        _check_nesting(text, where)
        table = tomllib.loads(text)
    except InputError:
        raise
    except (
        ValueError,
        RecursionError,
    ) as error:  # ValueError: of TOML, of UTF-8, and an integer of too many digits
        raise InputError(where, "must be valid TOML", str(error)[:120], remedy) from None
    _check_integers(table, where)
    return table


def _check_nesting(text: str, where: str) -> None:
    """Refuse lists and tables that are too deep in one another, and dotted keys of too many parts."""
    depth = parts = 0
    for token in _TOKENS.finditer(text):
        match token.group()[:1]:
            case "[" | "{":
                depth, parts = depth + 1, 0
            case "]" | "}":
                depth, parts = depth - 1, 0
            case ".":
                parts += 1
            case "," | "=" | "\n":
                parts = 0
            case _:
                pass  # a text, which may be a part of a key, or a comment
        if max(depth, parts) > limits.NESTING:
            raise InputError(
                where, f"must not nest lists and tables deeper than {limits.NESTING}", None
            )


def _check_integers(table: dict[str, Any], where: str) -> None:
    """Refuse integers that TOML's 64 bits do not hold; Python reads them of any size."""
    left: list[Any] = [table]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            left += value.values()
        elif isinstance(value, list):
            left += value
        elif isinstance(value, int) and abs(value) > LARGEST:
            raise InputError(
                where,
                "must hold integers of at most 2^63",
                f"one of {value.bit_length()} bits",
            )
