"""What follows from a run's description: every theorem's verdict, and the numbers that the certifying ones give."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

from lastiterate.accounting.beside_the_model import prepared_curves, with_counts
from lastiterate.accounting.verdict import Verdict
from lastiterate.accounting.wording import CAVEATS, units
from lastiterate.analysis.paid_smoothness import as_accounted
from lastiterate.curves.composition import compose
from lastiterate.curves.curve import BestOf, Curve
from lastiterate.curves.exchanged import Exchanged
from lastiterate.curves.grouped import Grouped
from lastiterate.curves.lower_bound import LowerBound
from lastiterate.errors import InputError
from lastiterate.run.adjacency import convertible, one_by_one
from lastiterate.run.evidence import Evidence
from lastiterate.run.run import Run, check_run
from lastiterate.theorems import TABLE
from lastiterate.theorems.theorem import Applies, Theorem, match


@dataclass(frozen=True, repr=False)
class Guarantee:
    """The numbers of a certificate, and what they rest on; see ``Certificate``."""

    run: Run
    verdicts: tuple[Verdict, ...]
    at_least: Evidence = Evidence.ENFORCED
    preparation: tuple[Curve, ...] = ()
    caveats: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what was found out about another run: epsilon would be an upper bound for that one."""
        check_run(self.run)
        if any(verdict.run is not self.run and verdict.run != self.run for verdict in self.verdicts) \
                or self.preparation != prepared_curves(self.run):
            raise InputError("run", "must be the one that the verdicts and the preparation are about", None,
                             "account it: lastiterate.account(run)")

    @classmethod
    def of(cls, run: Run, theorems: Iterable[Theorem], at_least: Evidence) -> Self:
        """What ``theorems`` say about ``run``."""
        subject = as_accounted(run)
        verdicts = tuple(Verdict(theorem, match(theorem, subject), run) for theorem in theorems)
        return cls(run=run, verdicts=verdicts, at_least=at_least, preparation=prepared_curves(run))

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Copies and pickles say what the run's JSON says: everything is derived from the run again."""
        asked = [verdict.theorem for verdict in state["verdicts"]]
        fresh = type(self).of(state["run"], asked, state["at_least"])
        self.__dict__.update(vars(fresh), caveats=state["caveats"])

    @property
    def adjacency(self) -> str:
        """What neighbouring data sets are; see the glossary."""
        return self.run.adjacency

    @cached_property
    def certifying(self) -> tuple[Verdict, ...]:
        """Verdicts that may certify, in the table's order."""
        return tuple(verdict for verdict in self.verdicts if verdict.certifies(self.at_least))

    def verdict(self, name: str) -> Verdict:
        """What the theorem of that name says about the run."""
        found = next((verdict for verdict in self.verdicts if verdict.theorem.name == name), None)
        if found is None:
            raise InputError("theorem", "must be one of " + ", ".join(v.theorem.name for v in self.verdicts), name)
        return found

    def curve(self, verdict: Verdict | str) -> Curve:
        """The curve of one applying verdict (or of the theorem of that name), with the private preparation composed in.

        Errors: the theorem does not apply, and why; a ``lower`` one has no curve (see ``Verdict.bound``).
        """
        found = self.verdict(verdict) if isinstance(verdict, str) else verdict
        return self._coarse_curve(found, 0)

    def _coarse_curve(self, verdict: Verdict, times: int) -> Curve:
        if not isinstance(verdict.result, Applies):
            raise InputError("theorem", "does not apply to this run", verdict.theorem.name, "; ".join(verdict.reasons))
        found = verdict.result.bound
        if isinstance(found, LowerBound):
            raise InputError("theorem", "gives a lower bound, by which nothing is certified", verdict.theorem.name,
                             "read the bound of its verdict")
        for _ in range(times):
            found = found.coarser()
        return self._prepared(found, self.run) if self.preparation or self.run.counts else found

    def _prepared(self, curve: Curve, run: Run) -> Curve:
        """``curve``, which speaks of ``run``'s units and neighbours, with the preparation and counts composed in.

        Where several rows of a unit or an exchange follow from what holds for one row, they join that.
        """
        match curve:
            case BestOf():
                return BestOf(tuple(self._prepared(part, run) for part in curve.curves))
            case Grouped(inner, size) if size == run.rows_per_unit:
                return self._prepared(inner, replace(run, rows_per_unit=1)).group(size)
            case Exchanged(inner) if between := one_by_one(run.adjacency):
                return self._prepared(inner, replace(run, adjacency=between)).exchanged()
            case _:
                return with_counts(compose(curve, *prepared_curves(run)), run)

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

    def coarse_delta(self, epsilon: float, times: int) -> float:
        """An upper bound on delta at ``epsilon`` from curves made coarser ``times`` times: cheap for a search."""
        return min((self._coarse_curve(verdict, times).delta(epsilon) for verdict in self.certifying), default=1.0)

    def coarse_best(self, epsilon: float, times: int) -> Verdict:
        """The certifying verdict (there must be one) with the smallest ``coarse_delta``."""
        return min(self.certifying, key=lambda verdict: self._coarse_curve(verdict, times).delta(epsilon))

    @property
    def expensive(self) -> bool:
        """Whether some certifying curve has a coarser version."""
        return any(self._coarse_curve(verdict, 1) != self.curve(verdict) for verdict in self.certifying)

    def lower(self, delta: float) -> float:
        """The largest epsilon that the worst loss of the class is known to have (0 if no theorem says)."""
        bounds = [verdict.bound for verdict in self.verdicts if verdict.theorem.kind in ("lower", "exact")]
        return max((bound.epsilon(delta) for bound in bounds if bound is not None), default=0.0)

    def under(self, adjacency: str) -> Self | None:
        """The same run accounted under another adjacency, or ``None`` where its constants cannot be converted."""
        if adjacency == self.run.adjacency:
            return self
        given = self.run.loss.facts().sensitivity is not None
        if given or not convertible(self.run.adjacency, adjacency):
            return None
        return type(self).of(replace(self.run, adjacency=adjacency), TABLE.values(), self.at_least)  # pyright: ignore

    def replace_one_epsilon(self, delta: float) -> float:
        """Epsilon under replace-one: by converted constants; from zero-out by removing one record and adding one."""
        converted = self.under("replace-one")
        known = math.inf if converted is None else converted.epsilon(delta)
        if not convertible(self.run.adjacency, "replace-one"):
            return known
        curves = [self.curve(verdict) for verdict in self.certifying]
        for one, curve in sorted(((c.epsilon(delta), c) for c in curves), key=lambda pair: pair[0]):
            if one >= known:  # an exchange costs more than one record
                break
            known = min(known, _exchanged(curve, delta))
        return known

    def group(self, size: int, delta: float) -> float:
        """Epsilon at ``delta`` for groups of ``size`` records, by the curves' own group privacy."""
        return min((_grouped(self.curve(v), size, delta) for v in self.certifying if size == 1 or v.groups(self.run)),
                   default=math.inf)

    @property
    def condition(self) -> str:
        """What is taken on somebody's word ("" for nothing)."""
        used = {fact for v in self.certifying if isinstance(v.result, Applies) for fact in v.result.facts}
        weak = sorted(f"{fact.why} ({fact.value:g})" for fact in used if not fact.evidence.satisfies(Evidence.ENFORCED))
        return "conditional on: " + "; ".join(weak) if weak else ""

    def all_caveats(self) -> tuple[str, ...]:
        """Everything a reader must know beside the number."""
        found = list(self.caveats)
        if condition := self.condition:
            found.append(condition)
        if self.run.batching.secret:
            found.append(self.run.batching.secret)
        if self.run.rows_per_unit > 1:
            found.append(units(self.run.rows_per_unit))
        found.append("holds if the run is executed exactly as described")
        return (*found, *CAVEATS)

    def described(self) -> dict[str, Any]:
        """What the numbers follow from, JSON-ready: the run, and the evidence that sufficed where it is weaker."""
        trusted = {} if self.at_least is Evidence.ENFORCED else {"at_least": self.at_least.name}
        return self.run.to_dict() | trusted


def _exchanged(curve: Curve, delta: float) -> float:
    try:
        return curve.exchanged().epsilon(delta)
    except InputError:
        return math.inf


def _grouped(curve: Curve, size: int, delta: float) -> float:
    try:
        return curve.group(size).epsilon(delta)
    except InputError:
        return math.inf
