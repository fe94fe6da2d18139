"""A run as the subject of a certificate: every theorem's verdict, and the curves of those that
certify."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, final

from lastiterate.accounting.certificate_subject import CAVEATS, OneRun, Verdict
from lastiterate.accounting.extra_charges import (
    curves_of_preprocessing,
    has_later_releases,
    with_later_parts,
)
from lastiterate.analysis.step_map import to_accounted_run
from lastiterate.curves.composition import compose
from lastiterate.curves.curve import BestOf, Curve, Exchanged, Grouped
from lastiterate.curves.lower_bound import LowerBound
from lastiterate.errors import InputError
from lastiterate.plugins import Outside
from lastiterate.run.adjacency import convertible, one_by_one
from lastiterate.run.facts import Evidence
from lastiterate.run.public_blocks import provider_of
from lastiterate.run.run import Run, check_run
from lastiterate.theorems import TABLE
from lastiterate.theorems.assumptions import released_as_left
from lastiterate.theorems.theorem import (
    Applies,
    Fails,
    Theorem,
    Violated,
    list_built_in,
    match,
)


def upper_theorems() -> tuple[Theorem, ...]:
    """Return the theorems of the table that can certify: all that a search asks."""
    return tuple(theorem for theorem in TABLE.values() if theorem.kind in ("upper", "exact"))


def _all() -> tuple[Theorem, ...]:
    return tuple(TABLE.values())


@final
@dataclass(frozen=True)
class AccountedRun(OneRun):
    """``executed``, certified by facts of ``evidence`` or stronger. ``theorems``: those that are
    asked."""

    entry: ClassVar[str] = "run"
    word: ClassVar[str] = "run"
    evidence: Evidence = Evidence.ENFORCED
    theorems: tuple[Theorem, ...] = field(default_factory=_all)

    def __post_init__(self) -> None:
        check_run(self.executed)

    @classmethod
    def read(cls, stored: dict[str, Any]) -> Self:
        """Read one of another version of the library by the theorems that it lists: later ones were not
        known when it was written.

        **Guarantee:** fewer theorems certify no less than they did, so nothing is believed that
        does not follow.
        """
        from lastiterate import __version__

        evidence, listed = stored.get("at_least"), stored.get("verdicts")
        if not isinstance(evidence, str) or evidence not in Evidence.__members__:
            raise InputError(
                "certificate",
                "must be one that lastiterate wrote, with a proper 'at_least'",
                evidence,
            )
        asked = {part["name"] for part in stored.get("plugins", ()) if part["kind"] == "theorem"}
        accounted = cls(
            Run.from_dict(stored.get("run")),
            Evidence[evidence],
            (*list_built_in(), *(TABLE[name] for name in sorted(asked))),
        )
        today = stored.get("library") == f"lastiterate {__version__}"
        if today or not isinstance(listed, list):
            return accounted
        names = {row.get("theorem") for row in listed if isinstance(row, dict)}  # pyright: ignore
        return replace(
            accounted,
            theorems=tuple(theorem for theorem in accounted.theorems if theorem.name in names),
        )

    def with_lower_bounds(self) -> Self:
        """The same run by every lower bound of the table, where it was read by a part of it."""
        others = (theorem for theorem in list_built_in() if theorem.kind in ("lower", "exact"))
        missing = tuple(theorem for theorem in others if theorem not in self.theorems)
        return replace(self, theorems=self.theorems + missing) if missing else self

    def describe(self) -> dict[str, Any]:
        """The run, and the evidence that sufficed where it is weaker."""
        return self.run.to_dict() | (
            {} if self.min_evidence is Evidence.ENFORCED else self.details()
        )

    def details(self) -> dict[str, Any]:
        return {"at_least": self.min_evidence.name}

    def fresh(self) -> Self:
        return type(self)(self.run, self.min_evidence, self._list_asked())

    def _list_asked(self) -> tuple[Theorem, ...]:
        """Every theorem of this project, and those of plug-ins that were asked before."""
        return (*list_built_in(), *(theorem for theorem in self.theorems if theorem.origin))

    @property
    def outside(self) -> tuple[Outside, ...]:
        """The plug-in of its batching, and those whose theorems apply: one that fails changes
        nothing."""
        theorems = tuple(
            Outside("theorems", verdict.theorem.name, verdict.theorem.origin)
            for verdict in self.verdicts
            if verdict.theorem.origin and isinstance(verdict.result, Applies)
        )
        return (*provider_of(self.run.batching), *theorems)

    @property
    def min_evidence(self) -> Evidence:
        return self.evidence

    def all_verdicts(self) -> tuple[Verdict, ...]:
        accounted = to_accounted_run(self.run)
        return tuple(
            Verdict(theorem, self._match_theorem(theorem, accounted), self.run)
            for theorem in self.theorems
        )

    def _match_theorem(self, theorem: Theorem, accounted: Run) -> Applies | Fails:
        """Apply a theorem to the accounted run, which leaves out everything after the last step."""
        answer = match(theorem, accounted)
        if accounted is self.run or released_as_left not in theorem.assumptions:
            return answer
        lost = released_as_left.check(self.run)
        return (
            Fails((lost.reason,))
            if isinstance(answer, Applies) and isinstance(lost, Violated)
            else answer
        )

    def all_curves(self) -> tuple[Curve, ...]:
        return tuple(self.curve_of(verdict) for verdict in self.certifying)

    @property
    def for_groups(self) -> tuple[Curve, ...]:
        pairs = zip(self.certifying, self.curves, strict=True)
        return tuple(curve for verdict, curve in pairs if verdict.groups(self.run))

    def curve_of(self, verdict: Verdict, coarser: int = 0) -> Curve:
        """The curve of an applying verdict, with private preparation and counts composed in."""
        if verdict.run is not self.run and verdict.run != self.run:
            raise InputError(
                "run",
                "must be the one that the verdict is about",
                None,
                "account it: lastiterate.account(run)",
            )
        if not isinstance(verdict.result, Applies):
            raise InputError(
                "theorem",
                "does not apply to this run",
                verdict.theorem.name,
                "; ".join(verdict.reasons),
            )
        bound = verdict.result.bound
        if isinstance(bound, LowerBound):
            raise InputError(
                "theorem",
                "gives a lower bound, by which nothing is certified",
                verdict.theorem.name,
                "read the bound of its verdict",
            )
        if self.run.rows_per_unit > 1 and any(part.failure > 0 for part in self.run.preprocessing):
            bound = self._bound_of_groups(verdict, bound)
        for _ in range(coarser):
            bound = bound.coarser()
        return (
            self._add_preprocessing(bound, self.run)
            if self.run.preprocessing or has_later_releases(self.run)
            else bound
        )

    def _bound_of_groups(self, verdict: Verdict, bound: Curve) -> Curve:
        """``bound``, or the theorem's bound for one record as that of a group.

        Preparation that may fail composes with the bound for one record alone: no Renyi divergence
        bounds a failure.
        """
        row = to_accounted_run(replace(self.run, rows_per_unit=1))
        answer = self._match_theorem(verdict.theorem, row)
        if not isinstance(answer, Applies) or isinstance(answer.bound, LowerBound):
            return bound
        return Grouped(answer.bound, self.run.rows_per_unit)

    def _add_preprocessing(self, curve: Curve, run: Run) -> Curve:
        """``curve``, which speaks of ``run``'s units and neighbours, with the preparation and
        counts composed in.

        Bounds for several records of a unit, or for an exchange, that follow from those for one
        record join them.
        """
        match curve:
            case BestOf():
                return BestOf(tuple(self._add_preprocessing(part, run) for part in curve.curves))
            case Grouped(inner, size) if size == run.rows_per_unit:
                return self._add_preprocessing(inner, replace(run, rows_per_unit=1)).group(size)
            case Exchanged(inner) if between := one_by_one(run.adjacency):
                return self._add_preprocessing(
                    inner, replace(run, adjacency=between)
                ).replace_one_curve()
            case _:
                return with_later_parts(compose(curve, *curves_of_preprocessing(run)), run)

    def with_adjacency(self, adjacency: str) -> AccountedRun | None:
        if adjacency == self.run.adjacency:
            return self
        if self.run.loss.facts().sensitivity is not None or not convertible(
            self.run.adjacency, adjacency
        ):
            return None
        other = replace(self.run, adjacency=adjacency)  # pyright: ignore[reportArgumentType]
        return AccountedRun(other, self.min_evidence, self._list_asked())

    def replace_one_epsilon(self, delta: float) -> float:
        """By converted constants; from zero-out by removing one record and adding one."""
        known = OneRun.replace_one_epsilon(self, delta)
        if not convertible(self.run.adjacency, "replace-one"):
            return known
        for one, curve in sorted(
            ((c.epsilon(delta), c) for c in self.curves), key=lambda pair: pair[0]
        ):
            if one >= known:  # an exchange costs more than one record
                break
            known = min(known, _replace_one_epsilon(curve, delta))
        return known

    @property
    def condition(self) -> str:
        used = {
            fact
            for v in self.certifying
            if isinstance(v.result, Applies)
            for fact in v.result.facts
        }
        weak = sorted(
            f"{fact.why} ({fact.value:g})"
            for fact in used
            if not fact.evidence.satisfies(Evidence.ENFORCED)
        )
        return "conditional on: " + "; ".join(weak) if weak else ""

    @property
    def caveats(self) -> tuple[str, ...]:
        condition = (self.condition,) if self.condition else ()
        return (
            *condition,
            *self.of_the_run,
            "holds if the run is executed exactly as described",
            *CAVEATS,
        )

    def sources(self) -> tuple[tuple[Theorem, ...], tuple[str, ...]]:
        """Theorems that certify the run, and those whose lower bounds it is compared with."""
        return tuple(
            v.theorem
            for v in self.verdicts
            if isinstance(v.result, Applies) and v.theorem.kind != "claimed"
        ), ()


def _replace_one_epsilon(curve: Curve, delta: float) -> float:
    try:
        return curve.replace_one_curve().epsilon(delta)
    except InputError:
        return math.inf
