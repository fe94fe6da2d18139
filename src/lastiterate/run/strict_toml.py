"""TOML from strangers: schemas and statements, refused in one sentence where they are no values of
this library's.

Python's reader descends into itself for every list in a list, and its time grows with the square of
the number of parts of a dotted key; both are bounded before it reads. Numbers are those that JSON
may hold, so that what was read can be written into a model's folder.
"""

# pyright: basic
# what TOML holds is checked here, not known
from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any

from lastiterate import limits
from lastiterate.errors import InputError
from lastiterate.run.serialization import LARGEST

if TYPE_CHECKING:
    from pathlib import Path

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


def read(path: Path, where: str, remedy: str = "") -> dict[str, Any]:
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
