"""YAML for the documents that are exported: mappings, lists and scalars, every text in double quotes.

What is written reads back the same with any reader of YAML 1.1 or 1.2; no text can become another value or a tag.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

from lastiterate.markup import plain


def dump(value: dict[str, Any]) -> str:
    """A block of YAML for a mapping; keys are texts or whole numbers."""
    return "\n".join(_lines(value, 0)) + "\n"


def _lines(value: object, depth: int) -> list[str]:
    """The entries of a mapping or list; none of anything else."""
    pad, out, pairs = "  " * depth, list[str](), list[tuple[str, object]]()
    if isinstance(value, dict):
        pairs = [(f"{_key(key)}:", inner) for key, inner in cast("dict[str | int, object]", value).items()]
    elif isinstance(value, list | tuple):
        pairs = [("-", inner) for inner in cast("Sequence[object]", value)]
    for head, inner in pairs:
        below = _lines(inner, depth + 1)
        out += [f"{pad}{head}", *below] if below else [f"{pad}{head} {scalar(inner)}"]
    return out


def _key(key: str | int) -> str:
    return str(key) if isinstance(key, int) else scalar(key) if not key.isidentifier() else key


def scalar(value: object) -> str:
    """One value on one line."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float() if math.isfinite(value):
            text = repr(value)
            return text.replace("e", ".0e") if "e" in text and "." not in text else text
        case float():
            return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
        case dict():
            return "{}"
        case list() | tuple():
            return "[]"
        case _:
            return '"' + "".join(map(_character, plain(str(value)))) + '"'


def _character(letter: str) -> str:
    if letter in '"\\':
        return "\\" + letter
    if letter == "\n":
        return "\\n"
    if letter.isprintable():
        return letter
    return f"\\U{ord(letter):08x}"
