"""The values of a certificate, their evidence, and every theorem's answer as a table row."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from lastiterate.accounting.accounted_run import AccountedRun
from lastiterate.accounting.certificate_subject import CertificateSubject, Verdict, finite
from lastiterate.curves.curve import BestOf, Curve
from lastiterate.curves.lower_bound import LowerBound
from lastiterate.errors import InputError, NotCertified
from lastiterate.lazy import RenamedAttribute
from lastiterate.run.facts import Evidence
from lastiterate.run.run import Run
from lastiterate.run.validation import check_integer, to_float
from lastiterate.theorems.theorem import Applies, Theorem

ROUNDING = 1e-6
"""How much, relatively, a value may differ between processors: at small deltas the rounding of fast
Fourier transforms moves an epsilon by up to 4e-8 of itself, far within what every bound allows for
its own rounding."""


@dataclass(frozen=True, repr=False)
class Guarantee:
    """The guarantee for ``subject``. ``caveats``: those that its executor adds to the derived ones;
    ``unit``: the name of a unit, where its executor knew the owner of every record and bounded the
    records of each. See ``Certificate``."""

    subject: CertificateSubject
    caveats: tuple[str, ...] = ()
    unit: str = ""

    @classmethod
    def of(cls, run: Run, theorems: Iterable[Theorem], min_evidence: Evidence) -> Self:
        """Account a run by some theorems alone.

        Parameters
        ----------
        run : Run
            Description of the run.
        theorems : iterable of Theorem
            Theorems to ask.
        min_evidence : Evidence
            Weakest evidence of the facts that it may rest on.

        Returns
        -------
        Guarantee
            Guarantee by these theorems.
        """
        return cls(AccountedRun(run, min_evidence, tuple(theorems)))

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

    at_least = RenamedAttribute("min_evidence")

    @property
    def min_evidence(self) -> Evidence:
        """How well a fact must be known to certify."""
        return self.subject.min_evidence

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
        """Return the verdict of one theorem.

        Parameters
        ----------
        name : str
            Name of the theorem.

        Returns
        -------
        Verdict
            Facts that it used, or the reason why it fails.

        Raises
        ------
        InputError
            If no theorem has this name.
        """
        named = next((verdict for verdict in self.verdicts if verdict.theorem.name == name), None)
        if named is None:
            raise InputError(
                "theorem",
                "must be one of " + ", ".join(v.theorem.name for v in self.verdicts),
                name,
            )
        return named

    def curve(self, verdict: Verdict | str | None = None) -> Curve:
        """Return the privacy curve of one theorem, with the private preparation composed in.

        Parameters
        ----------
        verdict : Verdict or str, optional
            Verdict, or name of a theorem; by default the smallest of all certifying curves.

        Returns
        -------
        Curve
            Curve with ``epsilon(delta)`` and ``delta(epsilon)``.

        Raises
        ------
        InputError
            If the theorem does not apply, or gives a lower bound, which has no curve.
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
        """Return the certifying verdict with the smallest epsilon at ``delta``.

        Parameters
        ----------
        delta : float
            Delta at which epsilon is compared.

        Returns
        -------
        Verdict or None
            Verdict; between equal ones a theorem of this project, with the fewest assumptions.
            ``None`` where no theorem of the table certifies: also with ``secure_noise=True``, whose
            curve is that of its discrete noise.
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
        return min(
            near,
            key=lambda one: (bool(one.theorem.origin), len(one.theorem.assumptions)),
            default=None,
        )

    def best_curve(self, delta: float) -> Curve | None:
        """Return the curve of the smallest epsilon at ``delta``.

        Parameters
        ----------
        delta : float
            Delta at which epsilon is compared.

        Returns
        -------
        Curve or None
            Curve; ``None`` where epsilon is infinite.
        """
        return self.curve(self.best(delta)) if math.isfinite(self.epsilon(delta)) else None

    def epsilon(self, delta: float) -> float:
        """Return an upper bound on epsilon at ``delta``.

        Parameters
        ----------
        delta : float
            Delta within (0, 1).

        Returns
        -------
        float
            Bound in natural logarithms; infinite where nothing is certified.
        """
        to_float("delta", delta)
        return min((curve.epsilon(delta) for curve in self.subject.curves), default=math.inf)

    def delta(self, epsilon: float) -> float:
        """Return an upper bound on delta at ``epsilon``.

        Parameters
        ----------
        epsilon : float
            Epsilon in natural logarithms.

        Returns
        -------
        float
            Bound; 1 where nothing is certified.
        """
        to_float("epsilon", epsilon)
        return min((curve.delta(epsilon) for curve in self.subject.curves), default=1.0)

    def certifies(self, epsilon: float, delta: float) -> bool:
        """Return whether a budget is certified; cheaper than inverting a curve.

        Parameters
        ----------
        epsilon : float
            Epsilon in natural logarithms.
        delta : float
            Delta within (0, 1).

        Returns
        -------
        bool
            Whether some curve keeps the budget.
        """
        return any(curve.delta(epsilon) <= delta for curve in self.subject.curves)

    def coarse_delta(self, epsilon: float, times: int) -> float:
        """Return an upper bound on delta from coarser curves, which are cheap for a search.

        Parameters
        ----------
        epsilon : float
            Epsilon in natural logarithms.
        times : int
            Number of times that curves are made coarser.

        Returns
        -------
        float
            Bound; 1 where nothing is certified.
        """
        return min(
            (self.subject.curve_of(verdict, times).delta(epsilon) for verdict in self.certifying),
            default=1.0,
        )

    def rank_by_coarse_delta(self, epsilon: float, times: int) -> list[tuple[float, Theorem]]:
        """Return the certifying theorems by their ``coarse_delta``, the smallest first.

        Parameters
        ----------
        epsilon : float
            Epsilon in natural logarithms.
        times : int
            Number of times that curves are made coarser.

        Returns
        -------
        list of tuple
            Pairs of a bound and its theorem.
        """
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
        """Return the largest epsilon that the worst loss of the class is known to have.

        Parameters
        ----------
        delta : float
            Delta at which epsilon is stated.

        Returns
        -------
        float
            Lower bound; 0 where no theorem gives one.
        """
        bounds = [
            verdict.bound for verdict in self.verdicts if verdict.theorem.kind in ("lower", "exact")
        ]
        return max((bound.epsilon(delta) for bound in bounds if bound is not None), default=0.0)

    def check_lower_bounds(self, delta: float) -> None:
        """Refuse an upper bound below a lower bound of the same run: one of them is false.

        **Guarantee:** a certificate is issued, calibrated and verified only where this passes.

        Parameters
        ----------
        delta : float
            Delta at which the bounds are compared.

        Raises
        ------
        NotCertified
            If the bounds contradict one another.
        """
        leaks = [
            (verdict.bound.epsilon(delta), verdict.theorem.name)
            for verdict in self.verdicts
            if verdict.theorem.kind in ("lower", "exact") and verdict.bound is not None
        ]
        leaked, witness = max(leaks, default=(0.0, ""))
        best = self.best(delta)
        if best is None or leaked <= self.epsilon(delta) * (1 + ROUNDING) + ROUNDING**2:
            return
        raise NotCertified(
            f"theorem {best.theorem.name} certifies epsilon {self.epsilon(delta):.6g} at delta "
            f"{delta:g}, yet theorem {witness} shows that a loss of this class leaks at least "
            f"{leaked:.6g}: one of the two is false, so nothing is certified. Report the run to "
            f"{self._responsible(best.theorem.name, witness)}."
        )

    def _responsible(self, *names: str) -> str:
        """Say who answers for theorems that contradict one another."""
        outside = [origin for name in names if (origin := self.verdict(name).theorem.origin)]
        return f"the author of {outside[0]}" if outside else "the project"

    def with_adjacency(self, adjacency: str) -> Self | None:
        """Return the guarantee under another adjacency.

        Parameters
        ----------
        adjacency : str
            Adjacency: "zero-out", "replace-one" or "add-remove".

        Returns
        -------
        Guarantee or None
            Guarantee; ``None`` where its constants cannot be converted.
        """
        subject = self.subject.with_adjacency(adjacency)
        return None if subject is None else replace(self, subject=subject)

    def replace_one_epsilon(self, delta: float) -> float:
        """Return an upper bound on epsilon under "replace-one".

        Parameters
        ----------
        delta : float
            Delta at which epsilon is stated.

        Returns
        -------
        float
            Bound; infinite where nothing is known.
        """
        return self.subject.replace_one_epsilon(delta)

    def group(self, size: int, delta: float) -> float:
        """Return an upper bound on epsilon for groups of records.

        Parameters
        ----------
        size : int
            Number of records in a group.
        delta : float
            Delta at which epsilon is stated.

        Returns
        -------
        float
            Bound by the curves' own group privacy; infinite where nothing is known.
        """
        check_integer("size", size)
        if size == 1:
            return self.epsilon(delta)
        return min(
            (_group_epsilon(curve, size, delta) for curve in self.subject.for_groups),
            default=math.inf,
        )

    def all_caveats(self) -> tuple[str, ...]:
        """Return all conditions that a reader must know in addition to epsilon.

        Returns
        -------
        tuple of str
            Marks of plug-ins, caveats of the executor, and those that follow from the subject.
        """
        marks = (part.words for part in self.subject.outside)
        return tuple(dict.fromkeys((*marks, *self.caveats, *self.subject.caveats)))

    def describe(self) -> dict[str, object]:
        """Return a JSON-ready description of the subject, whose hash a ledger holds.

        Returns
        -------
        dict
            Description.
        """
        return self.subject.describe()


def _group_epsilon(curve: Curve, size: int, delta: float) -> float:
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
    if verdict.theorem.origin:
        row["by"] = verdict.theorem.origin
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
    """Return the Renyi divergences of ``orders``, > 1, by every theorem that applies (lower bounds
    apart), sorted by the first of them; ``None`` where a theorem gives none."""
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
                    "certifies": verdict.certifies(certificate.min_evidence),
                    "epsilon": [finite(curve.rdp(order)) for order in orders],
                }
            )
    first = [math.inf if row["epsilon"][0] is None else row["epsilon"][0] for row in table]
    return [row for _, row in sorted(zip(first, table, strict=True), key=lambda pair: pair[0])]
