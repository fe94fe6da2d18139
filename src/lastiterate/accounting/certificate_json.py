"""A certificate as JSON, its citations, and the comparison of a written one with its subject."""

# what a file holds is checked here, not known
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lastiterate.accounting.certificate_subject import FORMAT, finite
from lastiterate.accounting.guarantee import ROUNDING, Guarantee, rows
from lastiterate.accounting.tradeoff_summary import summarise_guarantee
from lastiterate.certificate_statement import check_statement, content_hash
from lastiterate.curves.curve import check_delta
from lastiterate.errors import InputError
from lastiterate.theorems.theorem import Theorem

# Citations.

TITLE = "lastiterate: differentially private training with hidden iterates"
AUTHORS = "The lastiterate authors"
YEAR = 2026
"""Year in a citation of the library, as in CITATION.cff."""
OTHERS = {
    "exact": "Canonne, Kamath, Steinke: The discrete Gaussian for differential privacy, NeurIPS "
    "2020, Theorem 4",
    "selection": "Papernot, Steinke: Hyperparameter tuning with Renyi differential privacy, ICLR "
    "2022, Theorems 2, 6",
    "forgetting": "Bok, Su, Altschuler: Shifted interpolation for differential privacy, ICML 2024 "
    "(arXiv:2403.00278)",
}
"""Sources of certificates that no theorem of the table gives."""


def bibtex(theorems: Iterable[Theorem], others: Iterable[str] = ()) -> str:
    """One entry per theorem, its key the theorem's name, and one for the library."""
    entries = [entry(theorem.name, theorem.citation) for theorem in theorems]
    return "\n".join([*entries, *(entry(name, OTHERS[name]) for name in others), library()])


def library() -> str:
    """The library's own entry."""
    from lastiterate import __version__

    return "\n".join(
        [
            "@software{lastiterate,",
            f"  author = {{{{{AUTHORS}}}}},",
            f"  title = {{{TITLE}}},",
            f"  year = {{{YEAR}}},",
            f"  version = {{{__version__}}},",
            "}",
            "",
        ]
    )


def entry(key: str, citation: str) -> str:
    """``Authors: Title, where (year), place`` as an entry; what has another form becomes its title."""
    authors, colon, rest = citation.partition(": ")
    if not colon or re.search(r"[(/]|^[a-z]", authors):
        authors, rest = "", citation
    year = re.search(r"\b(?:19|20)\d\d\b", citation)
    lines = [f"@misc{{{key},"]
    if authors:
        lines.append(f"  author = {{{_plain(' and '.join(re.split(r', | and ', authors)))}}},")
    lines.append(f"  title = {{{_plain(rest)}}},")
    if year:
        lines.append(f"  year = {{{year[0]}}},")
    return "\n".join([*lines, "}", ""])


def _plain(text: str) -> str:
    return re.sub(r"([#$%&_{}])", r"\\\1", text)


# JSON.


def answer(guarantee: Guarantee, delta: float) -> dict[str, Any]:
    """Return the JSON of ``lastiterate account``: epsilon, its evidence, every verdict, the
    subject."""
    check_delta(delta)
    guarantee.check_lower_bounds(delta)
    subject = guarantee.subject
    outside = subject.outside
    return {
        "epsilon": finite(guarantee.epsilon(delta)),
        "delta": delta,
        "adjacency": guarantee.adjacency,
        "epsilon_replace_one": finite(guarantee.replace_one_epsilon(delta)),
        **(_by_theorems(guarantee, delta) if guarantee.verdicts else {}),
        subject.entry: subject.description(),
        "caveats": list(guarantee.all_caveats()),
    } | ({"plugins": [part.to_dict() for part in outside]} if outside else {})


def _by_theorems(guarantee: Guarantee, delta: float) -> dict[str, Any]:
    best = guarantee.best(delta)
    return {
        "epsilon_at_least": finite(guarantee.lower(delta)),
        "theorem": None if best is None else best.theorem.name,
        "evidence": None if best is None or best.evidence is None else best.evidence.name,
        "verdicts": sorted(
            _rows_to_write(guarantee, delta),
            key=lambda row: (row["epsilon"] is None, row["epsilon"] or 0.0),
        ),
    }


def _rows_to_write(guarantee: Guarantee, delta: float) -> list[dict[str, Any]]:
    """Rows of verdicts; a plug-in's theorem that does not apply leaves none, so that nobody needs
    the plug-in to derive them again."""
    listed = rows(guarantee, delta)
    return [
        row
        for row, verdict in zip(listed, guarantee.verdicts, strict=True)
        if row["applies"] or not verdict.theorem.origin
    ]


def derive_fields(guarantee: Guarantee, delta: float) -> dict[str, Any]:
    """Return all fields of a written certificate that follow from its subject, except ``stated``."""
    return json.loads(json.dumps(answer(guarantee, delta) | guarantee.subject.details()))


def check_schema(body: Any, kind: str) -> None:
    """Refuse a written file that does not fit the JSON Schema of its kind."""
    for error in _validator(kind).iter_errors(body):
        missing = error.validator == "required"  # its message names the key; others hold values
        rule = error.message if missing else f"{error.validator} {error.validator_value}"[:80]
        raise InputError(
            kind,
            f"must fit {kind}.schema.json, where {error.json_path} needs: {rule}",
            None,
            "ask for the file as it was written",
        )


@cache
def _validator(kind: str) -> Any:
    from jsonschema import Draft202012Validator  # imported by verify alone

    text = Path(__file__).with_name(f"{kind}.schema.json").read_text(encoding="utf-8")
    return Draft202012Validator(json.loads(text))


def document(guarantee: Guarantee, delta: float, recorded: Mapping[str, Any]) -> dict[str, Any]:
    """The certificate as it is stored: what is derived, format, library, what was recorded, a hash
    of all of it.

    ``recorded``: SHA-256 of a model's files, by their entries, and what else nobody can derive.
    """
    from lastiterate import __version__

    whole = derive_fields(guarantee, delta) | {
        "stated": summarise_guarantee(guarantee, delta),
        "format": FORMAT,
        "library": f"lastiterate {__version__}",
        "weights_sha256": None,
        **recorded,
    }
    whole = json.loads(json.dumps(whole))
    return whole | {"content_sha256": content_hash(whole)}


# Compare a written certificate with what follows from its subject.


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
        known = _with_lower_bounds_of(expected, known)
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
    """List what of a certificate of another version is not compared: sentences and lower bounds, and
    nothing that certifies."""
    if "verdicts" not in stored or _is_of_this_version(stored):
        return ()
    return (
        "why theorems do not apply: those sentences are of another version",
        "lower bounds, which certify nothing: those numbers are of another version",
    )


def _is_of_this_version(stored: dict[str, Any]) -> bool:
    """Return whether a certificate says that this version wrote it."""
    from lastiterate import __version__

    return stored.get("library") == f"lastiterate {__version__}"


def _with_lower_bounds_of(fresh: dict[str, Any], stored: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of another version with the lower bounds of today, of the theorems that it
    lists: a later version may know better ones, or withdraw one. One above the stated epsilon stays
    as it is, and is noticed."""
    epsilon, rows, least = (stored.get(key) for key in ("epsilon", "verdicts", "epsilon_at_least"))
    if type(epsilon) not in (int, float) or not isinstance(rows, list):
        return stored

    def is_possible(bound: object) -> bool:
        return bound is None or (type(bound) in (int, float) and 0 <= bound <= epsilon)  # pyright: ignore

    def admit(row: Any) -> Any:
        known = next((one for one in today if isinstance(row, dict) and _is_of(row, one)), None)
        return row if known is None or not is_possible(row["epsilon"]) else known

    today = [row for row in fresh.get("verdicts", ()) if row["kind"] == "lower"]
    found = stored | {"verdicts": [admit(row) for row in rows]}
    name = "epsilon_at_least"
    if name in stored and name in fresh and is_possible(least):
        found[name] = fresh[name]
    return found


def _is_of(row: dict[str, Any], known: dict[str, Any]) -> bool:
    """Whether both are verdicts of one theorem, in one form."""
    return row.keys() == known.keys() and all(row[key] == known[key] for key in ("theorem", "kind"))


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
