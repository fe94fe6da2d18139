"""A certificate: the run, every verdict on it, and the best curve; it can be re-derived from the run alone."""

# arguments are checked because callers are not
# pyright: reportUnnecessaryIsInstance=false
from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from lastiterate.accounting.preparation import prepared_curves
from lastiterate.analysis.paid_smoothness import as_accounted
from lastiterate.curves.compose import compose
from lastiterate.curves.curve import Curve, check_delta
from lastiterate.errors import InputError
from lastiterate.run.adjacency import convertible
from lastiterate.run.evidence import Evidence, weakest
from lastiterate.run.run import Run, check_described
from lastiterate.theorems import TABLE
from lastiterate.theorems.theorem import Applies, Fails, Theorem, by_reason, match

FORMAT = 1
UPPER = tuple(theorem for theorem in TABLE.values() if theorem.kind in ("upper", "exact"))
"""The theorems that can certify: all that a search asks."""
CAVEATS = (
    "covers this release only: further fits on the same data compose",
    "noise and steps have double precision; the proofs are about real numbers",
    "intermediate iterates, gradients, noise and its seed must stay secret",
)


@dataclass(frozen=True)
class Verdict:
    """What one theorem says about the run."""

    theorem: Theorem
    result: Applies | Fails

    @property
    def evidence(self) -> Evidence | None:
        return self.result.evidence if isinstance(self.result, Applies) else None

    def certifies(self, at_least: Evidence) -> bool:
        """Whether the theorem is an upper bound that holds on facts of the evidence asked for."""
        good = isinstance(self.result, Applies) and self.theorem.kind in ("upper", "exact")
        return good and self.evidence is not None and self.evidence.satisfies(at_least)


@dataclass(frozen=True)
class Certificate:
    """The privacy of one run's release.

    **Guarantee:** ``epsilon(delta)`` is an upper bound under the run's adjacency, if the run was executed as described
    and its facts of evidence below ``ENFORCED`` (if any were admitted) are true.
    """

    run: Run
    verdicts: tuple[Verdict, ...]
    at_least: Evidence = Evidence.ENFORCED
    preparation: tuple[Curve, ...] = ()
    caveats: tuple[str, ...] = ()

    @cached_property
    def certifying(self) -> tuple[Verdict, ...]:
        """Verdicts that may certify, in the table's order."""
        return tuple(verdict for verdict in self.verdicts if verdict.certifies(self.at_least))

    def curve(self, verdict: Verdict) -> Curve:
        """The curve of one applying verdict, with the private preparation composed in."""
        return self._rough_curve(verdict, 0)

    def _rough_curve(self, verdict: Verdict, times: int) -> Curve:
        assert isinstance(verdict.result, Applies)
        found = verdict.result.curve
        for _ in range(times):
            found = found.rough()
        return compose(found, *self.preparation) if self.preparation else found

    def best(self, delta: float) -> Verdict | None:
        """The certifying verdict with the smallest epsilon at ``delta`` (``None`` if nothing certifies).

        Between equals, up to rounding, the theorem that assumes least.
        """
        found = [(self.curve(verdict).epsilon(delta), verdict) for verdict in self.certifying]
        least = min((epsilon for epsilon, _ in found), default=math.inf)
        near = [verdict for epsilon, verdict in found if epsilon <= least * (1 + 1e-9)]
        return min(near, key=lambda verdict: len(verdict.theorem.assumptions), default=None)

    def epsilon(self, delta: float) -> float:
        """Upper bound on epsilon at ``delta``; infinite when no theorem certifies the run."""
        return min((self.curve(verdict).epsilon(delta) for verdict in self.certifying), default=math.inf)

    def delta(self, epsilon: float) -> float:
        """Upper bound on delta at ``epsilon``; 1 when no theorem certifies the run."""
        return min((self.curve(verdict).delta(epsilon) for verdict in self.certifying), default=1.0)

    def certifies(self, epsilon: float, delta: float) -> bool:
        """Whether some theorem certifies (epsilon, delta); cheaper than inverting a curve."""
        return any(self.curve(verdict).delta(epsilon) <= delta for verdict in self.certifying)

    def rough_delta(self, epsilon: float, times: int) -> float:
        """An upper bound on delta at ``epsilon`` from curves made rough ``times`` times: larger, cheap for a search."""
        return min((self._rough_curve(verdict, times).delta(epsilon) for verdict in self.certifying), default=1.0)

    def rough_best(self, epsilon: float, times: int) -> Verdict:
        """The certifying verdict (there must be one) with the smallest ``rough_delta``."""
        return min(self.certifying, key=lambda verdict: self._rough_curve(verdict, times).delta(epsilon))

    @property
    def expensive(self) -> bool:
        """Whether some certifying curve has a rough version."""
        return any(self._rough_curve(verdict, 1) != self.curve(verdict) for verdict in self.certifying)

    def lower(self, delta: float) -> float:
        """The largest epsilon that the worst loss of the class is known to have (0 if no theorem says)."""
        found = [verdict for verdict in self.verdicts if verdict.theorem.kind in ("lower", "exact")]
        return max((v.result.curve.epsilon(delta) for v in found if isinstance(v.result, Applies)), default=0.0)

    def under(self, adjacency: str) -> Certificate | None:
        """The same run accounted under another adjacency, or ``None`` where its constants cannot be converted."""
        if adjacency == self.run.adjacency:
            return self
        given = self.run.loss.facts().sensitivity is not None
        if given or not convertible(self.run.adjacency, adjacency):
            return None
        return account(replace(self.run, adjacency=adjacency), at_least=self.at_least)  # pyright: ignore

    def replace_one_epsilon(self, delta: float) -> float:
        """Epsilon under replace-one: by converted constants, and from zero-out by two steps of group privacy."""
        converted = self.under("replace-one")
        known = math.inf if converted is None else converted.epsilon(delta)
        if not convertible(self.run.adjacency, "replace-one"):
            return known
        return min(known, self.group(2, delta))

    def group(self, size: int, delta: float) -> float:
        """Epsilon at ``delta`` for groups of ``size`` records, by the curves' own group privacy."""
        return min((_grouped(self.curve(v), size, delta) for v in self.certifying), default=math.inf)

    def all_caveats(self) -> tuple[str, ...]:
        """Everything a reader must know beside the number."""
        found = list(self.caveats)
        used = {fact for v in self.certifying if isinstance(v.result, Applies) for fact in v.result.facts}
        weak = sorted(f"{fact.why} ({fact.value:g})" for fact in used if not fact.evidence.satisfies(Evidence.ENFORCED))
        if weak:
            found.append("conditional on: " + "; ".join(weak))
        if self.run.batching.secret:
            found.append(self.run.batching.secret)
        found.append("holds if the run is executed exactly as described")
        return (*found, *CAVEATS)

    def why_not(self) -> str:
        """Why nothing certifies the run: every reason, and the theorems it concerns."""
        found: dict[str, tuple[str, ...]] = {}
        for verdict in self.verdicts:
            if verdict.theorem.kind not in ("upper", "exact"):
                continue
            if isinstance(verdict.result, Fails):
                reasons = verdict.result.reasons
            elif not verdict.certifies(self.at_least):
                weak = [f.why for f in verdict.result.facts if not f.evidence.satisfies(self.at_least)]
                reasons = (f"rests on {weakest(*verdict.result.facts).name} facts ({'; '.join(weak)}): "
                           "pass --trust-constants to rely on them",)
            else:
                reasons = ("its epsilon is infinite (no noise)",)
            found[verdict.theorem.name] = reasons
        return "no theorem certifies this run:\n" + by_reason(found)

    def explain(self, delta: float) -> str:
        """Every theorem's verdict in plain text, best first."""
        check_delta(delta)
        rows = sorted(self.rows(delta), key=lambda row: row["epsilon"] if row["applies"] else math.inf)
        out: list[str] = []
        for row in rows:
            verdict = f"epsilon {row['epsilon']:.4g}" if row["applies"] else "fails: " + "; ".join(row["reasons"])
            out.append(f"{row['theorem']} ({row['kind']}): {verdict}")
        return "\n".join(out)

    def rows(self, delta: float) -> list[dict[str, Any]]:
        """One JSON-ready row per theorem (``epsilon`` is ``None`` where it fails or is infinite)."""
        rows: list[dict[str, Any]] = []
        for verdict in self.verdicts:
            row: dict[str, Any] = {"theorem": verdict.theorem.name, "kind": verdict.theorem.kind, "applies": False,
                                   "epsilon": None, "evidence": None, "reasons": []}
            if isinstance(verdict.result, Applies):
                upper = verdict.theorem.kind != "lower"
                curve = self.curve(verdict) if upper else verdict.result.curve
                epsilon = curve.epsilon(delta)
                row |= {"applies": True, "epsilon": epsilon if math.isfinite(epsilon) else None,
                        "evidence": verdict.result.evidence.name}
            else:
                row["reasons"] = list(verdict.result.reasons)
            rows.append(row)
        return rows

    def answer(self, delta: float) -> dict[str, Any]:
        """What ``account --json`` prints."""
        check_delta(delta)
        best = self.best(delta)
        epsilon = self.epsilon(delta)
        return {
            "epsilon": epsilon if math.isfinite(epsilon) else None, "delta": delta, "adjacency": self.run.adjacency,
            "epsilon_replace_one": _finite(self.replace_one_epsilon(delta)),
            "epsilon_at_least": self.lower(delta),
            "theorem": None if best is None else best.theorem.name,
            "evidence": None if best is None or best.evidence is None else best.evidence.name,
            "verdicts": sorted(self.rows(delta), key=lambda row: (row["epsilon"] is None, row["epsilon"] or 0.0)),
            "run": self.run.to_dict(), "caveats": list(self.all_caveats()),
        }

    def to_dict(self, delta: float, *, weights_sha256: str | None = None, extra: Sequence[str] = ()) -> dict[str, Any]:
        """The certificate as it is stored beside a model; ``content_sha256`` covers everything else in it."""
        from lastiterate import __version__

        check_delta(delta)
        body = self.answer(delta) | {
            "format": FORMAT, "library": f"lastiterate {__version__}", "at_least": self.at_least.name,
            "weights_sha256": weights_sha256, "caveats": [*self.all_caveats(), *extra],
        }
        return body | {"content_sha256": content_hash(body)}

    def to_json(self, delta: float, **more: Any) -> str:
        """``to_dict`` as JSON text."""
        return json.dumps(self.to_dict(delta, **more), indent=2)

    def verify(self) -> bool:
        """Whether accounting the run again gives the same verdicts."""
        fresh = account(self.run, at_least=self.at_least)
        return (fresh.verdicts, fresh.preparation) == (self.verdicts, self.preparation)


def content_hash(body: dict[str, Any]) -> str:
    """SHA-256 of the canonical JSON of a certificate without its own hash."""
    kept = {key: value for key, value in body.items() if key != "content_sha256"}
    return hashlib.sha256(json.dumps(kept, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _grouped(curve: Curve, size: int, delta: float) -> float:
    try:
        return curve.group(size).epsilon(delta)
    except InputError:
        return math.inf


def account(run: Run, *, at_least: Evidence = Evidence.ENFORCED) -> Certificate:
    """Every theorem's verdict on ``run``; certificates rest on facts of evidence ``at_least`` or stronger.

    **Guarantee:** only theorems of kind ``upper`` or ``exact`` whose assumptions all hold can certify.
    """
    if not isinstance(at_least, Evidence):
        raise InputError("at_least", "must be an Evidence", at_least, "use lastiterate.Evidence.ENFORCED or ASSUMED")
    check_described(run)
    return certificate_of(run, TABLE.values(), at_least)



def certificate_of(run: Run, theorems: Iterable[Theorem], at_least: Evidence) -> Certificate:
    subject = as_accounted(run)
    verdicts = tuple(Verdict(theorem, match(theorem, subject)) for theorem in theorems)
    return Certificate(run=run, verdicts=verdicts, at_least=at_least, preparation=prepared_curves(run))
