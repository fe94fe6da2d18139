"""Compare a written certificate with what follows from its subject."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from lastiterate.accounting.certificate_subject import FORMAT
from lastiterate.accounting.document import derive_fields
from lastiterate.accounting.guarantee import ROUNDING, Guarantee
from lastiterate.accounting.tradeoff_summary import summarise_guarantee
from lastiterate.errors import InputError
from lastiterate.written_certificate import check_statement, content_hash

# pyright: basic
# what a file holds is checked here, not known

RECORDED = {
    "delta",
    "caveats",
    "format",
    "library",
    "weights_sha256",
    "model_sha256",
    "content_sha256",
    "stated",
    "word",
    "software",
}
"""Entries that may be written and do not follow from the subject, or not in these words."""


@dataclass(frozen=True)
class CheckResult:
    """Outcome of a verification: the problems found (none when it holds), what was claimed, on what
    condition, and what of a folder nobody vouches for (``uncovered``). ``limit``: see ``CertificateSubject``.

    ``adjacency``, ``epsilon_replace_one``, ``unit`` (its name, or ""), ``rows`` (the most of one
    unit) and ``protects`` (the unit in a few words) say what epsilon is about. ``unsigned``: those
    of the problems that are about the signature. ``plugins``: the marks of what came from outside
    this project.
    """

    problems: tuple[str, ...]
    epsilon: float | None
    delta: float | None
    condition: str = ""
    uncovered: tuple[str, ...] = ()
    limit: str = ""
    adjacency: str = ""
    epsilon_replace_one: float | None = None
    unit: str = ""
    rows: int = 1
    protects: str = ""
    unsigned: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        return not self.problems


def proper_delta(stored: dict[str, Any]) -> float:
    """The delta that is written, or an error."""
    delta = stored.get("delta")
    if not isinstance(delta, float) or not 0 < delta < 1:
        raise InputError(
            "certificate", "must be one that lastiterate wrote, with a proper 'delta'", delta
        )
    return delta


def differences(stored: dict[str, Any], guarantee: Guarantee, delta: float) -> list[str]:
    """List the differences of a written certificate from ``guarantee``, which is derived again from
    its subject.

    Everything that follows must be what is written, and nothing else may be. A caveat may be added,
    none be missing.
    """
    entry, word, wanted = (
        guarantee.subject.entry,
        guarantee.subject.word,
        derive_fields(guarantee, delta),
    )
    known = stored | {entry: fill_missing_fields(stored.get(entry), wanted[entry])}
    expected = wanted
    if list_uncompared(stored):
        known, expected = _without_reasons(known), _without_reasons(wanted)
    known, expected = _by_name(known), _by_name(expected)
    follows = [key for key in wanted if key not in RECORDED]
    problems = [
        f"{key} is not what follows from the {word}"
        for key in follows
        if not same(known.get(key), expected[key])
    ]
    problems += [f"unknown entry {key!r}" for key in sorted(set(stored) - set(follows) - RECORDED)]
    caveats = stored.get("caveats")
    listed = (
        caveats
        if isinstance(caveats, list) and all(isinstance(text, str) for text in caveats)
        else []
    )
    problems += [
        f"the caveat {text!r} is missing" for text in wanted["caveats"] if text not in listed
    ]
    return problems + _problems_of_form(stored, guarantee, delta)


def list_uncompared(stored: dict[str, Any]) -> tuple[str, ...]:
    """List what of a certificate of another version is not compared: sentences, and no number."""
    if "verdicts" not in stored or _is_of_this_version(stored):
        return ()
    return ("why theorems do not apply: those sentences are of another version",)


def _is_of_this_version(stored: dict[str, Any]) -> bool:
    """Return whether a certificate says that this version wrote it."""
    from lastiterate import __version__

    return stored.get("library") == f"lastiterate {__version__}"


def _admit_looser_bounds(stated: Any, derived: dict[str, Any]) -> Any:
    """Return the statements of another version with the epsilons of today where they are smaller: an
    upper bound that was computed less closely is still one."""
    rows = stated.get("guarantees") if isinstance(stated, dict) else None
    if not isinstance(rows, list) or len(rows) != len(derived["guarantees"]):
        return stated
    pairs = zip(rows, derived["guarantees"], strict=True)
    return stated | {
        "guarantees": [fresh if _is_looser(row, fresh) else row for row, fresh in pairs]
    }


def _is_looser(row: Any, fresh: dict[str, Any]) -> bool:
    """Return whether a stated epsilon, at the same delta, is at least the one of today."""
    if not isinstance(row, dict) or row.keys() != fresh.keys():
        return False
    epsilon, least = row["epsilon"], fresh["epsilon"]
    if not same(row["delta"], fresh["delta"]) or isinstance(epsilon, bool) or least is None:
        return False
    return isinstance(epsilon, int | float) and math.isfinite(epsilon) and epsilon >= least


def _problems_of_form(stored: dict[str, Any], guarantee: Guarantee, delta: float) -> list[str]:
    """List the problems of the format, of the statements in addition to epsilon (computed only
    where there are any), of the recorded fields, and of the hash over everything."""
    problems: list[str] = []
    form = stored.get("format")
    if isinstance(form, bool) or form != FORMAT:
        problems.append(f"the format is {FORMAT}, not {form!r}")
    else:
        stated = stored.get("stated")
        derived = json.loads(json.dumps(summarise_guarantee(guarantee, delta)))
        if not _is_of_this_version(stored):
            stated = _admit_looser_bounds(stated, derived)
        if not same(stated, derived):
            problems.append(f"stated is not what follows from the {guarantee.subject.word}")
    if "word" in stored:
        try:
            check_statement(stored["word"])
        except InputError as error:
            problems.append(str(error))
    if not _texts(stored.get("software", {})):
        problems.append("software is no table of texts")
    if stored.get("content_sha256") != content_hash(stored):
        problems.append("the content hash does not match: something in the certificate was changed")
    return problems


def _by_name(body: dict[str, Any]) -> dict[str, Any]:
    """Sort the verdicts by theorem: their order in the table says nothing."""
    verdicts = body.get("verdicts")
    if not isinstance(verdicts, list) or not all(isinstance(row, dict) for row in verdicts):
        return body
    return body | {"verdicts": sorted(verdicts, key=lambda row: str(row.get("theorem")))}


def _without_reasons(body: dict[str, Any]) -> dict[str, Any]:
    """Without the sentences that say why theorems fail: a later version may word them otherwise."""
    verdicts = body.get("verdicts")
    if not isinstance(verdicts, list):
        return body
    return body | {
        "verdicts": [{**row, "reasons": []} if isinstance(row, dict) else row for row in verdicts]
    }


def _texts(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def fill_missing_fields(description: object, fresh: object) -> Any:
    """A description as it was written, with fields that it did not have then: readers took their
    defaults."""
    if isinstance(description, dict) and isinstance(fresh, dict):
        return fresh | {
            key: fill_missing_fields(value, fresh.get(key)) for key, value in description.items()
        }
    if isinstance(description, list) and isinstance(fresh, list) and len(description) == len(fresh):
        return [fill_missing_fields(one, two) for one, two in zip(description, fresh, strict=True)]
    return description


def same(stored: object, wanted: object) -> bool:
    """Return whether both are equal, numbers up to ``ROUNDING``; a bool or infinity equals no
    number."""
    if isinstance(stored, bool) or isinstance(wanted, bool):
        return stored is wanted
    if isinstance(stored, int | float) and isinstance(wanted, int | float):
        size = max(abs(stored), abs(wanted))
        return math.isfinite(size) and abs(stored - wanted) <= ROUNDING * size
    if isinstance(stored, list) and isinstance(wanted, list):
        return len(stored) == len(wanted) and all(
            same(x, y) for x, y in zip(stored, wanted, strict=True)
        )
    if isinstance(stored, dict) and isinstance(wanted, dict):
        return stored.keys() == wanted.keys() and all(
            same(stored[key], wanted[key]) for key in stored
        )
    return type(stored) is type(wanted) and stored == wanted
