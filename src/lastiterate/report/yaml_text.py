"""YAML for the documents that are exported: mappings, lists and scalars, every text in double quotes.

What is written reads back the same with any reader of YAML 1.1 or 1.2; no text can become another value or a tag.
"""

from __future__ import annotations

import math
from typing import Any

from lastiterate.markup import plain


def dump(value: dict[str, Any]) -> str:
    """A block of YAML for a mapping; keys are texts or whole numbers."""
    return "\n".join(_lines(value, 0)) + "\n"


def _lines(value: Any, depth: int) -> list[str]:
    pad, out = "  " * depth, list[str]()
    pairs = [(f"{_key(key)}:", inner) for key, inner in value.items()] if isinstance(value, dict) else [
        ("-", inner) for inner in value]
    for head, inner in pairs:
        if isinstance(inner, dict | list | tuple) and inner:
            out += [f"{pad}{head}", *_lines(inner, depth + 1)]
        else:
            out.append(f"{pad}{head} {scalar(inner)}")
    return out


def _key(key: Any) -> str:
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
