"""JSON from strangers: one meaning per text, and every other text refused in one sentence.

Readers differ on duplicate keys, on ``NaN`` and on numbers that no double holds; a text that two readers understand
differently certifies nothing.
"""

# pyright: basic
# what JSON holds is checked here, not known
from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any, TypeGuard

from lastiterate import limits
from lastiterate.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

LARGEST = 2**63
_PARTS = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[^"]++', re.DOTALL)
"""A text of JSON, or all between two of them; possessive, so that the engine keeps nothing to come back to."""
_BRACKETS = re.compile(r"[\[\]{}]")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def loads(text: str | bytes, where: str) -> Any:
    """The value of a JSON text; ``InputError``, with ``where`` as its argument, for what is not exactly one value."""
    if len(text) > limits.TEXT:
        raise InputError(where, f"must be at most {limits.text(limits.TEXT)} of text", len(text))
    try:
        plain = text.decode("utf-8") if isinstance(text, bytes) else text
        _check_size(plain, where)
        value = json.loads(plain, object_pairs_hook=lambda pairs: _object(pairs, where),
                           parse_constant=lambda name: _refuse(where, name),
                           parse_int=lambda digits: _whole(digits, where),
                           parse_float=lambda digits: _number(digits, where))
        if _SURROGATE.search(plain):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeError:
        raise InputError(where, "must be text in UTF-8", None, "the file is damaged") from None
    except (json.JSONDecodeError, RecursionError) as error:
        begun = text.lstrip()[:1] in ("", "{", "[", b"", b"{", b"[")
        raise InputError(where, "must be complete JSON", str(error)[:120],
                         "the file is cut off or damaged" if begun else "there is none in it" +
                         ("; give the text of a file, and not its name" if isinstance(text, str) else "")) from None
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
    """The bytes of a JSON file, which may be a pipe; a file without an end is refused before it takes all memory."""
    return limits.content(path, where, limits.TEXT)


def _check_size(text: str, where: str) -> None:
    """Refuse lists and objects that are too deep in one another, and too many values, before anything is made of them.
    """
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
    """How deep the end of a part without texts lies; negative where it closes more than was opened."""
    for bracket in _BRACKETS.finditer(part):
        depth += 1 if bracket.group() in "[{" else -1
        if depth > limits.NESTING:
            raise InputError(where, f"must not nest lists and objects deeper than {limits.NESTING}", None)
        if depth < 0:
            break
    return depth


def _object(pairs: list[tuple[str, Any]], where: str) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen = set[str]()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise InputError(where, "must name every key once", twice[:60].encode("utf-8", "replace").decode(),
                         "two readers could understand it differently")
    return members


def _refuse(where: str, name: str) -> Any:
    raise InputError(where, "must hold finite numbers", name)


def _whole(digits: str, where: str) -> int:
    if len(digits) > 20 or abs(int(digits)) > LARGEST:
        raise InputError(where, "must hold whole numbers of at most 2^63", digits[:24])
    return int(digits)


def _number(digits: str, where: str) -> float:
    if len(digits) > limits.DIGITS:
        raise InputError(where, f"must hold numbers of at most {limits.DIGITS:,} characters", digits[:24])
    value = float(digits)
    return value if math.isfinite(value) else _refuse(where, digits[:24])
