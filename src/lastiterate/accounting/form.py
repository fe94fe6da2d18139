"""What certificates of all kinds have in common on disk: their format, what is recorded beside what is derived."""

# pyright: basic
# what JSON holds is checked here, not known
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from lastiterate.accounting.releaser_statement import check_word
from lastiterate.accounting.written import FORMAT, content_hash
from lastiterate.errors import InputError
from lastiterate.run.older import in_todays_words

FORMATS = (1, 2, FORMAT)
ADDED = ("stated", "word", "software")
"""What formats from 2 on have and format 1 has not."""
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
    elif not same(in_todays_words(stored.get("stated")), fresh(), larger=looser(stored)):
        problems.append(f"stated is not what follows from the {about}")
    if form in FORMATS[1:] and "word" in stored:
        try:
            check_word(stored["word"])
        except InputError as error:
            problems.append(str(error))
    if form in FORMATS[1:] and not _texts(stored.get("software", {})):
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


def same(stored: Any, wanted: Any, *, larger: float = 1e-9) -> bool:
    """Equal, numbers up to 1e-9 (another machine may round differently); a bool or infinity equals no number.

    ``larger``: how much larger, relatively, a stored number may be.
    """
    if isinstance(stored, bool) or isinstance(wanted, bool):
        return stored is wanted
    if isinstance(stored, int | float) and isinstance(wanted, int | float):
        size = max(abs(stored), abs(wanted))
        return math.isfinite(stored) and math.isfinite(wanted) and -1e-9 * size <= stored - wanted <= larger * size
    if isinstance(stored, list) and isinstance(wanted, list):
        return len(stored) == len(wanted) and all(
            same(x, y, larger=larger) for x, y in zip(stored, wanted, strict=True))
    if isinstance(stored, dict) and isinstance(wanted, dict):
        return stored.keys() == wanted.keys() and all(
            same(stored[key], wanted[key], larger=larger) for key in stored)
    return type(stored) is type(wanted) and stored == wanted


def looser(stored: dict[str, Any]) -> float:
    """How much larger its bounds may be than today's: for older formats a little, since bounds become tighter.

    **Guarantee:** an upper bound that is larger than one that holds, holds; none may be smaller.
    """
    return 1e-3 if stored.get("format") in FORMATS[:-1] else 1e-9
