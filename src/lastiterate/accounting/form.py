"""What certificates of all kinds have in common on disk: their format, what is recorded beside what is derived."""

# pyright: basic
# what JSON holds is checked here, not known
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from lastiterate.accounting.word import check_word
from lastiterate.accounting.written import FORMAT, content_hash
from lastiterate.errors import InputError

FORMATS = (1, FORMAT)
ADDED = ("stated", "word", "software")
"""What format 2 has and format 1 has not."""
COMMON = {"delta", "caveats", "format", "library", "weights_sha256", "model_sha256", "content_sha256", *ADDED}


def form_problems(stored: dict[str, Any], fresh: Callable[[], dict[str, Any]], about: str = "run") -> list[str]:
    """What is wrong with the format, what it states beside epsilon, what is recorded, and the hash over everything.

    ``fresh``: what follows from what is certified, as ``stated``.
    """
    problems: list[str] = []
    form = stored.get("format")
    if isinstance(form, bool) or form not in FORMATS:
        problems.append(f"the format is one of {', '.join(map(str, FORMATS))}, not {form!r}")
    elif form == 1:
        problems += [f"unknown entry {key!r}" for key in ADDED if key in stored]
    elif not same(stored.get("stated"), fresh()):
        problems.append(f"stated is not what follows from the {about}")
    if form == FORMAT and "word" in stored:
        try:
            check_word(stored["word"])
        except InputError as error:
            problems.append(str(error))
    if form == FORMAT and not _texts(stored.get("software", {})):
        problems.append("software is no table of texts")
    if stored.get("content_sha256") != content_hash(stored):
        problems.append("the content hash does not match: something in the certificate was changed")
    return problems


def _texts(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def completed(description: Any, fresh: Any) -> Any:
    """A description as it was written, with fields that it did not have then: readers took their defaults."""
    if isinstance(description, dict) and isinstance(fresh, dict):
        return fresh | {key: completed(value, fresh.get(key)) for key, value in description.items()}
    if isinstance(description, list) and isinstance(fresh, list) and len(description) == len(fresh):
        return [completed(one, two) for one, two in zip(description, fresh, strict=True)]
    return description


def same(one: Any, two: Any) -> bool:
    """Equal, numbers up to 1e-9 (another machine may round differently); a bool or infinity equals no number."""
    if isinstance(one, bool) or isinstance(two, bool):
        return one is two
    if isinstance(one, int | float) and isinstance(two, int | float):
        return math.isfinite(one) and math.isfinite(two) and abs(one - two) <= 1e-9 * max(abs(one), abs(two))
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(same(x, y) for x, y in zip(one, two, strict=True))
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    return type(one) is type(two) and one == two
