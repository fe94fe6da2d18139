"""A certificate as JSON: what ``lastiterate account --json`` prints, and what lies beside a released model."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from lastiterate.accounting.guarantee import Guarantee
from lastiterate.accounting.stated import stated
from lastiterate.accounting.verdict import Verdict
from lastiterate.curves.curve import check_delta
from lastiterate.curves.lower_bound import LowerBound
from lastiterate.errors import InputError
from lastiterate.run.run import Run
from lastiterate.theorems.theorem import Applies

FORMAT = 3
"""The form of certificates (certificate.schema.json); older ones are verified as well."""


def rows(certificate: Guarantee, delta: float) -> list[dict[str, Any]]:
    """One row per theorem (``epsilon`` is ``None`` where it fails or is infinite)."""
    return [_row(certificate, verdict, delta) for verdict in certificate.verdicts]


def _row(certificate: Guarantee, verdict: Verdict, delta: float) -> dict[str, Any]:
    row: dict[str, Any] = {"theorem": verdict.theorem.name, "kind": verdict.theorem.kind, "applies": False,
                           "epsilon": None, "evidence": None, "reasons": list(verdict.reasons)}
    if isinstance(verdict.result, Applies):
        bound = verdict.result.bound
        known = bound if isinstance(bound, LowerBound) else certificate.curve(verdict)
        row |= {"applies": True, "epsilon": finite(known.epsilon(delta)),
                "evidence": verdict.result.evidence.name}
    return row


def renyi(certificate: Guarantee, orders: Sequence[float]) -> list[dict[str, Any]]:
    """What every theorem that applies (lower bounds apart) says about the Renyi divergences of ``orders``, > 1, by the
    smallest at the first of them; ``None`` where it says nothing."""
    for order in orders:
        if not 1 < order < math.inf:
            raise InputError("renyi", "must be finite orders above 1", order, "write them as in 1.5,2,8")
    found: list[dict[str, Any]] = []
    for verdict in certificate.verdicts:
        if isinstance(verdict.result, Applies) and not isinstance(verdict.result.bound, LowerBound):
            curve = certificate.curve(verdict)
            found.append({"theorem": verdict.theorem.name, "kind": verdict.theorem.kind,
                          "certifies": verdict.certifies(certificate.at_least),
                          "epsilon": [finite(curve.rdp(order)) for order in orders]})
    first = [math.inf if row["epsilon"][0] is None else row["epsilon"][0] for row in found]
    return [row for _, row in sorted(zip(first, found, strict=True), key=lambda pair: pair[0])]


def answer(certificate: Guarantee, delta: float) -> dict[str, Any]:
    """What ``lastiterate account --json`` prints: the number, what it rests on, every verdict, the run."""
    check_delta(delta)
    best = certificate.best(delta)
    return {
        "epsilon": finite(certificate.epsilon(delta)), "delta": delta, "adjacency": certificate.run.adjacency,
        "epsilon_replace_one": finite(certificate.replace_one_epsilon(delta)),
        "epsilon_at_least": finite(certificate.lower(delta)),
        "theorem": None if best is None else best.theorem.name,
        "evidence": None if best is None or best.evidence is None else best.evidence.name,
        "verdicts": sorted(rows(certificate, delta), key=lambda row: (row["epsilon"] is None, row["epsilon"] or 0.0)),
        "run": certificate.run.to_dict(), "caveats": list(certificate.all_caveats()),
    }


def stored_form(certificate: Guarantee, delta: float, *, files: Mapping[str, Any]) -> dict[str, Any]:
    """The certificate as it is stored beside a model. ``files``: SHA-256 of the model's files, by their entries, and
    what else is recorded beside what is derived."""
    body = answer(certificate, delta) | {
        "at_least": certificate.at_least.name, "stated": statement(certificate, delta)}
    return sealed(body, files)


def sealed(body: dict[str, Any], recorded: Mapping[str, Any]) -> dict[str, Any]:
    """What every kind of certificate is stored with: format, library, what was recorded, a hash of all of it."""
    from lastiterate import __version__

    whole = body | {"format": FORMAT, "library": f"lastiterate {__version__}", "weights_sha256": None, **recorded}
    whole = json.loads(json.dumps(whole))
    return whole | {"content_sha256": content_hash(whole)}


def statement(certificate: Guarantee, delta: float) -> dict[str, Any]:
    """``stated`` for a described run: by the theorem that is best at ``delta``."""
    best, run = certificate.best(delta), certificate.run
    certified = best is not None and math.isfinite(certificate.epsilon(delta))
    facts = best.result.facts if best is not None and isinstance(best.result, Applies) else ()
    return stated(certificate, delta, run=run, curve=certificate.curve(best) if best and certified else None,
                  facts=facts, charged=preparation(run), secret=(run.batching.secret,) if run.batching.secret else ())


def preparation(run: Run) -> tuple[str, ...]:
    """What the run's preparation is charged for, and counts that are released beside the model, in words."""
    counted = tuple(f"accuracy: a count over {count.records} records, "
                    + ("apart from those that are trained on" if count.apart else "which may be trained on too")
                    + f", noise multiplier {count.noise_multiplier:g}" for count in run.counts)
    return tuple(f"private preparation: {type(part).__name__}, noise multiplier {part.noise_multiplier:g}"
                 for part in run.prelude if part.noise_multiplier is not None) + counted


def content_hash(body: dict[str, Any]) -> str:
    """SHA-256 of the canonical JSON of a certificate without its own hash."""
    kept = {key: value for key, value in body.items() if key != "content_sha256"}
    return hashlib.sha256(json.dumps(kept, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None
