"""A certificate as JSON, the one form of it: what is printed, and what lies beside a released model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from lastiterate.accounting.guarantee import Guarantee
from lastiterate.accounting.stated import stated
from lastiterate.accounting.subjects import FORMAT
from lastiterate.accounting.theorem_rows import rows
from lastiterate.accounting.wording import finite
from lastiterate.curves.curve import check_delta


def answer(guarantee: Guarantee, delta: float) -> dict[str, Any]:
    """What ``lastiterate account`` prints as JSON: the number, what it rests on, every verdict, the subject."""
    check_delta(delta)
    subject = guarantee.subject
    return {
        "epsilon": finite(guarantee.epsilon(delta)), "delta": delta, "adjacency": guarantee.adjacency,
        "epsilon_replace_one": finite(guarantee.replace_one_epsilon(delta)),
        **(_by_theorems(guarantee, delta) if guarantee.verdicts else {}),
        subject.entry: subject.description(), "caveats": list(guarantee.all_caveats()),
    }


def _by_theorems(guarantee: Guarantee, delta: float) -> dict[str, Any]:
    best = guarantee.best(delta)
    return {
        "epsilon_at_least": finite(guarantee.lower(delta)),
        "theorem": None if best is None else best.theorem.name,
        "evidence": None if best is None or best.evidence is None else best.evidence.name,
        "verdicts": sorted(rows(guarantee, delta), key=lambda row: (row["epsilon"] is None, row["epsilon"] or 0.0)),
    }


def derived(guarantee: Guarantee, delta: float) -> dict[str, Any]:
    """All of a written certificate that follows from its subject, apart from what is ``stated`` beside."""
    return json.loads(json.dumps(answer(guarantee, delta) | guarantee.subject.details()))


def document(guarantee: Guarantee, delta: float, recorded: Mapping[str, Any]) -> dict[str, Any]:
    """The certificate as it is stored: what is derived, format, library, what was recorded, a hash of all of it.

    ``recorded``: SHA-256 of a model's files, by their entries, and what else nobody can derive.
    """
    from lastiterate import __version__

    whole = derived(guarantee, delta) | {"stated": stated(guarantee, delta), "format": FORMAT,
                                         "library": f"lastiterate {__version__}", "weights_sha256": None, **recorded}
    whole = json.loads(json.dumps(whole))
    return whole | {"content_sha256": content_hash(whole)}


def content_hash(body: dict[str, Any]) -> str:
    """SHA-256 of the canonical JSON of a certificate without its own hash."""
    kept = {key: value for key, value in body.items() if key != "content_sha256"}
    return hashlib.sha256(json.dumps(kept, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
