"""A certificate as JSON, and its citations as BibTeX."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from lastiterate.accounting.certificate_subject import FORMAT, finite
from lastiterate.accounting.guarantee import Guarantee, rows
from lastiterate.accounting.tradeoff_summary import summarise_guarantee
from lastiterate.curves.curve import check_delta
from lastiterate.errors import InputError
from lastiterate.theorems.theorem import Theorem
from lastiterate.written_certificate import content_hash

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
    told = rows(guarantee, delta)
    return [
        row
        for row, verdict in zip(told, guarantee.verdicts, strict=True)
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
