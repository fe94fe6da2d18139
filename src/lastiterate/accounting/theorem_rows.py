"""What every theorem says of a run, as rows of a table, JSON-ready."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lastiterate.accounting.guarantee import Guarantee
from lastiterate.accounting.verdict import Verdict
from lastiterate.accounting.wording import finite
from lastiterate.curves.lower_bound import LowerBound
from lastiterate.errors import InputError
from lastiterate.theorems.theorem import Applies


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
    table: list[dict[str, Any]] = []
    for verdict in certificate.verdicts:
        if isinstance(verdict.result, Applies) and not isinstance(verdict.result.bound, LowerBound):
            curve = certificate.curve(verdict)
            table.append({"theorem": verdict.theorem.name, "kind": verdict.theorem.kind,
                          "certifies": verdict.certifies(certificate.at_least),
                          "epsilon": [finite(curve.rdp(order)) for order in orders]})
    first = [math.inf if row["epsilon"][0] is None else row["epsilon"][0] for row in table]
    return [row for _, row in sorted(zip(first, table, strict=True), key=lambda pair: pair[0])]
