"""Runs as subjects of certificates: every theorem's verdict on a run, exact noise included."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, final

from lastiterate.accounting.certificate_subject import (
    CAVEATS,
    OneRun,
    Verdict,
    curves_of_preprocessing,
    has_later_releases,
    with_later_parts,
)
from lastiterate.analysis.step_map import to_accounted_run
from lastiterate.curves.composition import compose
from lastiterate.curves.curve import UP, BestOf, Curve, Exchanged, Grouped
from lastiterate.curves.lower_bound import LowerBound
from lastiterate.curves.renyi import Rdp
from lastiterate.errors import InputError, NotCertified
from lastiterate.plugins import Outside
from lastiterate.run.adjacency import convertible, has_fixed_size, one_by_one
from lastiterate.run.facts import FLOAT_SLACK, Evidence, find_fact
from lastiterate.run.plugin_batching import provider_of
from lastiterate.run.preprocessing import CosineFeatures, TopEigenvalue
from lastiterate.run.probability_calibration import private_calibration
from lastiterate.run.run import Run, check_described, check_run
from lastiterate.theorems import TABLE
from lastiterate.theorems.assumptions import released_as_left, released_up_to_scale
from lastiterate.theorems.composition import COMPOSITION_GDP, composition_mu
from lastiterate.theorems.theorem import Applies, Fails, Theorem, Violated, list_built_in, match

# A run as the subject of a certificate: every theorem's verdict, and the curves of those that
# certify.


RELEASES = (released_as_left, released_up_to_scale)
"""Assumptions about what is done with the last iterate, which an accounted run does not tell."""


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
        names = {str(row.get("theorem")) for row in listed if isinstance(row, dict)}  # pyright: ignore
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
        """Apply a theorem to the accounted run, which leaves out everything after the last step, and
        a ridge: more losses than those of the run, of which a lower bound must not speak."""
        answer = match(theorem, accounted)
        if accounted is self.run or not isinstance(answer, Applies):
            return answer
        if theorem.kind != "upper" and self.run.loss.ridge > 0:
            return Fails(("how much a ridge contracts depends on the measured smoothness",))
        asked = (one for one in RELEASES if one in theorem.assumptions)
        lost = [
            one.reason
            for one in (each.check(self.run) for each in asked)
            if isinstance(one, Violated)
        ]
        return Fails(tuple(lost)) if lost else answer

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


# A run with exact noise as the subject of a certificate: charged steps, the discrete Gaussian's
# own curve.

EXACT_CAVEATS = (
    "covers this release only: further fits on the same data compose",
    "every step is charged: theorems about a hidden state speak of steps on real numbers and of "
    "Gaussian noise; that a "
    "step on gradients rounded to a grid moves two points no further apart, and that discrete "
    "noise absorbs their "
    "distance, is not proved, so none of them is used",
    "intermediate iterates, gradients, noise and its key must stay secret; the noise is as good as "
    "AES-256 in counter "
    "mode with a key of 128 random bits",
    "holds if the run is executed exactly as described",
)


@final
@dataclass(frozen=True)
class ExactRun(OneRun):
    """A run on exact sums with discrete Gaussian noise (Canonne, Kamath, Steinke 2020, Theorem 4).

    Errors: ``NotCertified`` where its gradients have no enforced bound, or a step has no noise.

    **Guarantee:** its curve is an upper bound for the computation as it is executed, rounding
    included: what is released is a function of integer sums to which exact noise was added.
    """

    entry: ClassVar[str] = "exact_run"
    word: ClassVar[str] = "run"
    by: ClassVar[str] = (
        "every step charged, exact sums and exact discrete Gaussian noise: nothing is left to "
        "floating point"
    )
    composes_steps: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check(self.executed)

    @classmethod
    def read(cls, stored: dict[str, Any]) -> Self:
        return cls(Run.from_dict(stored.get("exact_run")))

    def describe(self) -> dict[str, Any]:
        """The same run with rounded noise is another one."""
        return {self.entry: self.run.to_dict()}

    def all_curves(self) -> tuple[Curve, ...]:
        """Renyi divergence alpha mu^2 / 2, mu as in the composition of the Gaussian mechanisms of
        the same noise, those of the preparation included."""
        curve = Rdp.linear((composition_mu(self.run) ** 2 + preparation_squared(self.run)) / 2 * UP)
        return (curve.group(self.run.rows_per_unit) if self.run.rows_per_unit > 1 else curve,)

    @property
    def for_groups(self) -> tuple[Curve, ...]:
        return self.curves

    def with_adjacency(self, adjacency: str) -> ExactRun | None:
        if not convertible(self.adjacency, adjacency):
            return None
        return ExactRun(replace(self.run, adjacency=adjacency))  # pyright: ignore[reportArgumentType]

    @property
    def caveats(self) -> tuple[str, ...]:
        return (*self.of_the_run, *EXACT_CAVEATS)

    def because(self, delta: float) -> tuple[str, ...]:
        return (
            "Theorem: Canonne, Kamath, Steinke: The discrete Gaussian for differential privacy "
            "(2020), Theorem 4.",
        )

    def sources(self) -> tuple[tuple[Theorem, ...], tuple[str, ...]]:
        return (COMPOSITION_GDP,), ("exact",)


def preparation_squared(run: Run) -> float:
    """The sum of mu^2 over the Gaussian mechanisms of the run's preparation and calibration."""
    total = 0.0
    for part in run.preprocessing:
        if isinstance(part, TopEigenvalue):
            raise NotCertified(
                "exact noise: a top eigenvalue is computed in floating point, with an error that "
                "nothing bounds"
            )
        if isinstance(part, CosineFeatures):
            raise NotCertified(
                "exact noise: a sum of cosines is computed in floating point and not on a grid"
            )
        if part.noise_multiplier is not None:
            total += (
                part.sensitivity(run.adjacency) * (1 + FLOAT_SLACK) / part.noise_multiplier
            ) ** 2
    if (rounds := private_calibration(run.probability_calibration)) is not None:
        total += (
            rounds.sensitivity(run.adjacency) * (1 + FLOAT_SLACK) / rounds.noise_multiplier
        ) ** 2
    return total


def _check(run: Run) -> None:
    if run.counts:
        raise NotCertified(
            "exact noise: counts of right answers have noise of another kind; leave them out"
        )
    check_described(run)
    if not has_fixed_size(run.adjacency):
        raise NotCertified(
            "exact noise: a record that is removed (add-remove) moves others to other places, and "
            "that "
            "their gradients are rounded alike there is not proved: use zero-out"
        )
    preparation_squared(run)
    answer = match(COMPOSITION_GDP, run)
    sensitivity = find_fact(run.facts(), "sensitivity")
    if isinstance(answer, Fails):
        raise NotCertified("exact noise: " + "; ".join(answer.reasons))
    if (
        sensitivity is None
        or sensitivity.evidence < Evidence.ENFORCED
        or not run.noise_stds.min() > 0
    ):
        raise NotCertified(
            "exact noise needs an enforced bound on a record's gradient, and noise at every step"
        )
