"""A certificate: the run, every verdict on it, and the best curve; it can be re-derived from the run alone."""

# arguments are checked because callers are not
# pyright: reportUnnecessaryIsInstance=false
from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lastiterate.accounting import explain, written
from lastiterate.accounting.cite import bibtex
from lastiterate.accounting.guarantee import Guarantee
from lastiterate.errors import InputError
from lastiterate.run.evidence import Evidence
from lastiterate.run.run import Run, check_described
from lastiterate.theorems import TABLE
from lastiterate.theorems.theorem import Applies

UPPER = tuple(theorem for theorem in TABLE.values() if theorem.kind in ("upper", "exact"))
"""The theorems that can certify: all that a search asks."""


@dataclass(frozen=True, repr=False)
class Certificate(Guarantee):
    """The privacy of one run's release: ``epsilon(delta)``, ``best(delta)``, ``explain(delta)``, ``verify()``.

    ``verdicts``: one per theorem, with the facts it used or why it fails. ``caveats``: what no theorem covers.

    **Guarantee:** ``epsilon(delta)`` is an upper bound under the run's adjacency, if the run was executed as described
    and its facts of evidence below ``ENFORCED`` (if any were admitted) are true.
    """

    def why_not(self) -> str:
        """Why nothing certifies the run: every reason, and the theorems it concerns."""
        return explain.why_not(self)

    def explain(self, delta: float, *, all: bool = False) -> str:
        """The answer in words: epsilon, what a record is, the theorem and its conditions, what else applies.

        ``all``: also the theorems that do not apply, and why.
        """
        return explain.in_words(self, delta, all)

    def cite(self) -> str:
        """BibTeX of every theorem that certifies the run, and of those whose lower bounds it is compared with."""
        used = [v.theorem for v in self.verdicts if isinstance(v.result, Applies) and v.theorem.kind != "claimed"]
        return bibtex(used)

    def __repr__(self) -> str:
        run = self.run
        names = len(self.certifying)
        said = f"{names} of {len(self.verdicts)} theorems certify it" if names else "no theorem certifies it"
        return (f"<Certificate of {run.steps} steps on {run.n} records, {type(run.batching).__name__}, {run.adjacency}:"
                f" {said}>")

    def _repr_html_(self) -> str:
        return explain.for_notebooks(self)

    def rows(self, delta: float) -> list[dict[str, Any]]:
        """One JSON-ready row per theorem (``epsilon`` is ``None`` where it fails or is infinite)."""
        return written.rows(self, delta)

    def answer(self, delta: float) -> dict[str, Any]:
        """What ``lastiterate account --json`` prints."""
        return written.answer(self, delta)

    def to_dict(self, delta: float, *, files: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The certificate as it is stored; ``content_sha256`` covers everything else, ``files`` a model's hashes."""
        return written.stored_form(self, delta, files=files or {})

    def to_json(self, delta: float) -> str:
        """``to_dict`` as JSON text."""
        return json.dumps(self.to_dict(delta), indent=2)

    def verify(self) -> bool:
        """Whether accounting the run again gives the same verdicts."""
        fresh = account(self.run, at_least=self.at_least)
        return (fresh.verdicts, fresh.preparation) == (self.verdicts, self.preparation)


def account(run: Run, *, at_least: Evidence = Evidence.ENFORCED) -> Certificate:
    """Every theorem's verdict on ``run``; certificates rest on facts of evidence ``at_least`` or stronger.

    Looks at public numbers only. Where no theorem certifies the run, epsilon is infinite and ``why_not()`` lists the
    reasons. Errors: ``InputError`` where the run's noise is still to be calibrated, or is no ``Run``.

    **Guarantee:** only theorems of kind ``upper`` or ``exact`` whose assumptions all hold can certify.
    """
    if not isinstance(at_least, Evidence):
        raise InputError("at_least", "must be an Evidence", at_least, "use lastiterate.Evidence.ENFORCED or ASSUMED")
    check_described(run)
    return Certificate.of(run, TABLE.values(), at_least)
