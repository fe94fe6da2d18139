"""The numbers of a certificate, what they rest on, and every theorem's answer as a row."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from lastiterate.accounting.accounted_run import AccountedRun
from lastiterate.accounting.subjects import Subject, Verdict, finite
from lastiterate.curves.curve import BestOf, Curve
from lastiterate.curves.lower_bound import LowerBound
from lastiterate.errors import InputError, NotCertified
from lastiterate.run.facts import Evidence
from lastiterate.run.run import Run
from lastiterate.run.validation import number, whole
from lastiterate.theorems.theorem import Applies, Theorem

ROUNDING = 1e-6
"""How much, relatively, a number may differ between processors: at small deltas the rounding of
fast Fourier transforms moves an epsilon by up to 4e-8 of itself, far within what every bound allows
for its own rounding."""


@dataclass(frozen=True, repr=False)
class Guarantee:
    """What holds for ``subject``; ``caveats``: what its executor says beside what follows;
    ``unit``: what a unit is called, where its executor knew whose every row is and bounded the rows
    of each. See ``Certificate``."""

    subject: Subject
    caveats: tuple[str, ...] = ()
    unit: str = ""

    @classmethod
    def of(cls, run: Run, theorems: Iterable[Theorem], at_least: Evidence) -> Self:
        """What ``theorems`` alone say about ``run``."""
        return cls(AccountedRun(run, at_least, tuple(theorems)))

    @property
    def run(self) -> Run:
        """The run that is executed; ``InputError`` where a certificate is about something else."""
        if self.subject.run is None:
            raise InputError(
                "certificate",
                "must be about a single run",
                self.subject.word,
                "ask for its subject",
            )
        return self.subject.run

    @property
    def adjacency(self) -> str:
        """What neighbouring data sets are; see the glossary."""
        return self.subject.adjacency

    @property
    def at_least(self) -> Evidence:
        """How well a fact must be known to certify."""
        return self.subject.at_least

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """One per theorem, with the facts that it used or why it fails; none where no theorem of
        the table is asked."""
        return self.subject.verdicts

    @property
    def certifying(self) -> tuple[Verdict, ...]:
        """Verdicts that may certify, in the table's order."""
        return self.subject.certifying

    @property
    def condition(self) -> str:
        """What is assumed ("" for nothing)."""
        return self.subject.condition

    def verdict(self, name: str) -> Verdict:
        """What the theorem of that name says about the run."""
        named = next((verdict for verdict in self.verdicts if verdict.theorem.name == name), None)
        if named is None:
            raise InputError(
                "theorem",
                "must be one of " + ", ".join(v.theorem.name for v in self.verdicts),
                name,
            )
        return named

    def curve(self, verdict: Verdict | str | None = None) -> Curve:
        """The curve of one applying verdict (or of the theorem of that name), with the private
        preparation composed in; by default the smallest of all that certify.

        Errors: the theorem does not apply, and why; a ``lower`` one has no curve (see
        ``Verdict.bound``).
        """
        if verdict is not None:
            return self.subject.curve_of(
                self.verdict(verdict) if isinstance(verdict, str) else verdict
            )
        curves = self.subject.curves
        if not curves:
            raise InputError(
                "adjacency",
                f"must be one under which the {self.subject.word} is certified",
                self.adjacency,
            )
        return curves[0] if len(curves) == 1 else BestOf(curves)

    def best(self, delta: float) -> Verdict | None:
        """The certifying verdict with the smallest epsilon at ``delta`` (``None`` if no theorem
        certifies).

        Between equals, up to rounding, the theorem that assumes least.
        """
        pairs = (
            [
                (curve.epsilon(delta), verdict)
                for verdict, curve in zip(self.certifying, self.subject.curves, strict=True)
            ]
            if self.verdicts
            else []
        )
        least = min((epsilon for epsilon, _ in pairs), default=math.inf)
        near = [verdict for epsilon, verdict in pairs if epsilon <= least * (1 + ROUNDING)]
        return min(near, key=lambda verdict: len(verdict.theorem.assumptions), default=None)

    def best_curve(self, delta: float) -> Curve | None:
        """The curve of the smallest epsilon at ``delta``; ``None`` where that is infinite."""
        return self.curve(self.best(delta)) if math.isfinite(self.epsilon(delta)) else None

    def epsilon(self, delta: float) -> float:
        """Upper bound on epsilon at ``delta``; infinite when nothing is certified."""
        number("delta", delta)
        return min((curve.epsilon(delta) for curve in self.subject.curves), default=math.inf)

    def delta(self, epsilon: float) -> float:
        """Upper bound on delta at ``epsilon``; 1 when nothing is certified."""
        number("epsilon", epsilon)
        return min((curve.delta(epsilon) for curve in self.subject.curves), default=1.0)

    def certifies(self, epsilon: float, delta: float) -> bool:
        """Whether (epsilon, delta) is certified; cheaper than inverting a curve."""
        return any(curve.delta(epsilon) <= delta for curve in self.subject.curves)

    def coarse_delta(self, epsilon: float, times: int) -> float:
        """An upper bound on delta at ``epsilon`` from curves made coarser ``times`` times: cheap
        for a search."""
        return min(
            (self.subject.curve_of(verdict, times).delta(epsilon) for verdict in self.certifying),
            default=1.0,
        )

    def by_coarse_delta(self, epsilon: float, times: int) -> list[tuple[float, Theorem]]:
        """The theorems that certify, each with its ``coarse_delta``, the smallest first."""
        curves = [
            (self.subject.curve_of(verdict, times), verdict.theorem) for verdict in self.certifying
        ]
        return sorted(
            ((curve.delta(epsilon), theorem) for curve, theorem in curves), key=lambda pair: pair[0]
        )

    @property
    def expensive(self) -> bool:
        """Whether some certifying curve has a coarser version."""
        return any(
            self.subject.curve_of(verdict, 1) != self.curve(verdict) for verdict in self.certifying
        )

    def lower(self, delta: float) -> float:
        """The largest epsilon that the worst loss of the class is known to have (0 if no theorem
        says)."""
        bounds = [
            verdict.bound for verdict in self.verdicts if verdict.theorem.kind in ("lower", "exact")
        ]
        return max((bound.epsilon(delta) for bound in bounds if bound is not None), default=0.0)

    def check_lower_bounds(self, delta: float) -> None:
        """Refuse an upper bound that lies below a lower bound of the same run: one of them is false.

        **Guarantee:** a certificate is issued, calibrated and verified only where this passes.
        """
        leaks = [
            (verdict.bound.epsilon(delta), verdict.theorem.name)
            for verdict in self.verdicts
            if verdict.theorem.kind in ("lower", "exact") and verdict.bound is not None
        ]
        at_least, witness = max(leaks, default=(0.0, ""))
        best = self.best(delta)
        if best is None or at_least <= self.epsilon(delta) * (1 + ROUNDING) + ROUNDING**2:
            return
        raise NotCertified(
            f"theorem {best.theorem.name} certifies epsilon {self.epsilon(delta):.6g} at delta "
            f"{delta:g}, yet theorem {witness} shows that a loss of this class leaks at least "
            f"{at_least:.6g}: one of the two is false, so nothing is certified. Report the run to "
            "the project, or to the author of the theorem that you registered."
        )

    def under(self, adjacency: str) -> Self | None:
        """The same under another adjacency, or ``None`` where its constants cannot be converted."""
        subject = self.subject.under(adjacency)
        return None if subject is None else replace(self, subject=subject)

    def replace_one_epsilon(self, delta: float) -> float:
        """Epsilon at ``delta`` under replace-one; infinite where nothing is known."""
        return self.subject.replace_one_epsilon(delta)

    def group(self, size: int, delta: float) -> float:
        """Epsilon at ``delta`` for groups of ``size`` records, by the curves' own group privacy."""
        whole("size", size)
        if size == 1:
            return self.epsilon(delta)
        return min(
            (_grouped(curve, size, delta) for curve in self.subject.for_groups), default=math.inf
        )

    def all_caveats(self) -> tuple[str, ...]:
        """Everything a reader must know beside the number."""
        return tuple(dict.fromkeys((*self.caveats, *self.subject.caveats)))

    def described(self) -> dict[str, object]:
        """What the numbers follow from, JSON-ready: a ledger's line has its hash."""
        return self.subject.described()


def _grouped(curve: Curve, size: int, delta: float) -> float:
    try:
        return curve.group(size).epsilon(delta)
    except InputError:
        return math.inf


# Rows of verdicts, JSON-ready.


def rows(certificate: Guarantee, delta: float) -> list[dict[str, Any]]:
    """One row per theorem (``epsilon`` is ``None`` where it fails or is infinite)."""
    return [_row(certificate, verdict, delta) for verdict in certificate.verdicts]


def _row(certificate: Guarantee, verdict: Verdict, delta: float) -> dict[str, Any]:
    row: dict[str, Any] = {
        "theorem": verdict.theorem.name,
        "kind": verdict.theorem.kind,
        "applies": False,
        "epsilon": None,
        "evidence": None,
        "reasons": list(verdict.reasons),
    }
    if isinstance(verdict.result, Applies):
        bound = verdict.result.bound
        known = bound if isinstance(bound, LowerBound) else certificate.curve(verdict)
        row |= {
            "applies": True,
            "epsilon": finite(known.epsilon(delta)),
            "evidence": verdict.result.evidence.name,
        }
    return row


def renyi(certificate: Guarantee, orders: Sequence[float]) -> list[dict[str, Any]]:
    """What every theorem that applies (lower bounds apart) says about the Renyi divergences of
    ``orders``, > 1, by the smallest at the first of them; ``None`` where it says nothing."""
    for order in orders:
        if not 1 < order < math.inf:
            raise InputError(
                "renyi", "must be finite orders above 1", order, "write them as in 1.5,2,8"
            )
    table: list[dict[str, Any]] = []
    for verdict in certificate.verdicts:
        if isinstance(verdict.result, Applies) and not isinstance(verdict.result.bound, LowerBound):
            curve = certificate.curve(verdict)
            table.append(
                {
                    "theorem": verdict.theorem.name,
                    "kind": verdict.theorem.kind,
                    "certifies": verdict.certifies(certificate.at_least),
                    "epsilon": [finite(curve.rdp(order)) for order in orders],
                }
            )
    first = [math.inf if row["epsilon"][0] is None else row["epsilon"][0] for row in table]
    return [row for _, row in sorted(zip(first, table, strict=True), key=lambda pair: pair[0])]
