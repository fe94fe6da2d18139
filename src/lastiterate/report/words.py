"""Sentences of a report that people read before any formula."""

from __future__ import annotations

import math

from lastiterate.accounting.wording import rounded_down, rounded_up
from lastiterate.markup import Markup, tag

LADDER = {
    "ENFORCED": "made true by what the run itself does: clipping, projecting, drawing batches",
    "PROVED": "follows from other facts by a cited lemma",
    "PAID": "measured on the private data by a mechanism that epsilon pays for",
    "TESTED": "survived a search for a counterexample; not proved",
    "ASSUMED": "stated by somebody; nothing checks it",
}
"""The ladder of evidence, as a report shows it, and what each rung means."""
QUESTIONS = {
    "zero-out": "whether your record was used",
    "replace-one": "which of two versions of your record was used",
    "add-remove": "whether your record was among the data",
    "forgotten": "whether your record had ever been used",
}


def of_hundred(value: float) -> int:
    """How often of 100 times, rounded up."""
    return min(100, math.ceil(100 * value - 1e-9))


def odds(right: float, adjacency: str, rows: int) -> str:
    """The guarantee in odds."""
    question = (
        QUESTIONS[adjacency]
        if rows == 1
        else QUESTIONS[adjacency].replace("record", f"records (up to {rows})").replace("was", "were")
    )
    return (f"Someone who guesses {question}, knowing everything else, is right at most {of_hundred(right)} of 100 "
            "times instead of 50.")


def number(path: str, value: float | None, text: str | None = None, *, down: bool = False) -> Markup:
    """A number of the certificate: as it is stored, where it stands there, and as it is shown."""
    if value is None:
        return tag("data", "infinite", data_path=path, value="null")
    shown = text if text is not None else rounded_down(value) if down else rounded_up(value)
    return tag("data", shown, data_path=path, value=repr(value))


def share(path: str, value: float) -> Markup:
    """A probability in percent, rounded up."""
    return tag("data", f"{percent(value)} %", data_path=path, value=repr(value))


def percent(value: float) -> str:
    """A probability in percent without its sign, four digits, rounded up."""
    return rounded_up(min(value * 100, 100.0)) if value > 0 else "0"
