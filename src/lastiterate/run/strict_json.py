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

from lastiterate.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

DEEPEST = 64
"""Lists and objects inside of one another; what this library writes needs a tenth of it."""
LARGEST = 2**63
LONGEST = 2**27
"""Bytes of a text; what this library writes has kilobytes, or a few megabytes with a list of noise for every step."""
_NESTING = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)


def loads(text: str | bytes, where: str) -> Any:
    """The value of a JSON text; ``InputError``, with ``where`` as its argument, for what is not exactly one value."""
    try:
        plain = text.decode("utf-8") if isinstance(text, bytes) else text
        _check_depth(plain, where)
        value = json.loads(plain, object_pairs_hook=lambda pairs: _object(pairs, where),
                           parse_constant=lambda name: _refuse(where, name),
                           parse_int=lambda digits: _whole(digits, where),
                           parse_float=lambda digits: _number(digits, where))
        if "\\ud" in plain.lower():
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
    try:
        with path.open("rb") as file:
            raw = file.read(LONGEST + 1)
    except FileNotFoundError:
        raise InputError(where, "must be an existing file", str(path)) from None
    except OSError as error:
        raise InputError(where, "must be a readable file", f"{path} ({error.strerror})") from None
    if len(raw) > LONGEST:
        raise InputError(where, f"must be at most {LONGEST // 2**20} MiB of text", str(path), "no such file is longer")
    return raw


def _check_depth(text: str, where: str) -> None:
    depth = 0
    for token in _NESTING.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(token.group(), 0)
        if depth > DEEPEST:
            raise InputError(where, f"must not nest lists and objects deeper than {DEEPEST}", None)


def _object(pairs: list[tuple[str, Any]], where: str) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
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
    value = float(digits)
    return value if math.isfinite(value) else _refuse(where, digits[:24])
