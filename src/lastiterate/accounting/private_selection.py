"""A model that is selected privately from a random number of runs (``tune``) as the subject of a
certificate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, final

from lastiterate.accounting.accounted_run import AccountedRun
from lastiterate.accounting.certificate_subject import (
    CAVEATS,
    CertificateSubject,
    Words,
    format_rounded_up,
)
from lastiterate.curves.curve import UP, BestOf, Curve
from lastiterate.curves.renyi import Rdp
from lastiterate.curves.selection import NegativeBinomial, PoissonRuns, Runs, Selected, WorstOf
from lastiterate.errors import InputError
from lastiterate.plugins import Outside
from lastiterate.run import serialization
from lastiterate.run.adjacency import has_fixed_size
from lastiterate.run.run import Run
from lastiterate.run.validation import positive
from lastiterate.theorems.theorem import Theorem, list_built_in

SECRET = (
    "how many candidates were trained, their scores and models, and how long it took must stay "
    "secret",
    "holds if every run is executed as described and scored on the records that were held out",
)


@final
@dataclass(frozen=True)
class Selection(CertificateSubject):
    """Draw a run from ``candidates`` uniformly, train it, score it with noise; as often as ``law``
    says; keep the best.

    ``held_out`` records, at public positions, are scored and not trained on. A score is a sum over
    them of integers in [0, ``unit``], with discrete Gaussian noise of standard deviation
    ``score_noise`` * ``unit``.

    **Guarantee:** its curve is an upper bound for all of ``tune``
    (docs/theorems/private-selection.md), training and scoring of all candidates included: one
    record is trained on or scored, never both, so a run costs the worse of the two.
    """

    entry: ClassVar[str] = "selection"
    word: ClassVar[str] = "selection"

    candidates: tuple[Run, ...]
    law: Runs
    held_out: int
    score_noise: float
    unit: int = 1

    def __post_init__(self) -> None:
        positive("score_noise", self.score_noise)
        same_data = {(run.n, run.adjacency, run.release) for run in self.candidates}
        if len(same_data) != 1 or self.candidates[0].release != "last":
            raise InputError(
                "candidates",
                "must all release the last iterate of runs on the same records",
                sorted(map(str, same_data)),
            )
        rows = max(max(run.rows_per_unit, run.rows_per_record) for run in self.candidates)
        # a unit's records could fall on both sides of the split, and a score counts records
        if rows > 1:
            raise InputError(
                "rows_per_unit",
                "must be 1 where candidates are scored on records that are held out",
                rows,
                "tune on one row per unit",
            )
        if not has_fixed_size(self.adjacency):  # one record more is another split of all of them
            raise InputError(
                "adjacency",
                "must keep places where candidates are scored on records of public places",
                self.adjacency,
                "use zero-out, where n is public",
            )
        if (
            type(self.held_out) is not int
            or self.held_out < 1
            or type(self.unit) is not int
            or self.unit < 1
        ):
            raise InputError(
                "held_out", "must be a positive integer, a number of records", self.held_out
            )

    def description(self) -> dict[str, Any]:
        return {
            "candidates": [run.to_dict() for run in self.candidates],
            "held_out": self.held_out,
            "law": {"type": type(self.law).__name__, **vars(self.law)},
            "score_noise": self.score_noise,
            "unit": self.unit,
        }

    @classmethod
    def from_dict(cls, data: Any) -> Selection:
        match data:
            case {
                "candidates": [*runs],
                "law": law,
                "held_out": int() as held_out,
                "score_noise": float() as noise,
                "unit": int() as unit,
                **rest,
            } if not rest and runs:
                try:
                    read = serialization.decode(
                        law,
                        "law",
                        {kind.__name__: kind for kind in (NegativeBinomial, PoissonRuns)},
                    )
                    if not isinstance(read, Runs):
                        raise InputError(
                            "selection",
                            "must hold the law of a number of runs",
                            type(read).__name__,
                        )
                    return cls(
                        tuple(Run.from_dict(run) for run in runs), read, held_out, noise, unit
                    )
                except TypeError:
                    raise InputError(
                        "selection", "must hold numbers where numbers belong", None
                    ) from None
            case _:
                raise InputError(
                    "selection", "must hold candidates, law, held_out, score_noise and unit", None
                )

    @classmethod
    def read(cls, stored: dict[str, Any]) -> Selection:
        return cls.from_dict(stored.get("selection"))

    @property
    def adjacency(self) -> str:
        return self.candidates[0].adjacency

    @cached_property
    def accounted(self) -> tuple[AccountedRun, ...]:
        """Return the guarantee of every candidate alone, by theorems of this project."""
        return tuple(AccountedRun(run, theorems=list_built_in()) for run in self.candidates)

    def all_curves(self) -> tuple[Curve, ...]:
        """All of it as one curve."""
        score = Rdp.linear(1 / (2 * self.score_noise**2) * UP)
        return (Selected(WorstOf((*(_whole(one) for one in self.accounted), score)), self.law),)

    def with_adjacency(self, adjacency: str) -> Selection | None:
        """One record's score moves by the unit at most, under every adjacency."""
        converted = [one.with_adjacency(adjacency) for one in self.accounted]
        runs = tuple(one.run for one in converted if one is not None and one.certifying)
        return replace(self, candidates=runs) if len(runs) == len(converted) else None

    @property
    def outside(self) -> tuple[Outside, ...]:
        return tuple(dict.fromkeys(part for one in self.accounted for part in one.outside))

    @property
    def caveats(self) -> tuple[str, ...]:
        from_runs = (text for one in self.accounted for text in one.caveats)
        return tuple(dict.fromkeys((*from_runs, *SECRET, *CAVEATS)))

    @property
    def words(self) -> Words:
        tried = (
            f"the best of a secret number of runs, {self.law.mean:.3g} on average, from "
            f"{len(self.candidates)} "
            "candidates"
        )
        return Words(
            f"a selection, {self.adjacency}",
            by=f"for {tried}",
            secret=SECRET[:1],
            charged=(f"tuning: {tried}, and their scores on {self.held_out} records",),
        )

    def because(self, delta: float) -> tuple[str, ...]:
        each = WorstOf(tuple(_whole(one) for one in self.accounted)).epsilon(delta)
        return (
            f"One run alone would cost epsilon {format_rounded_up(each)}.",
            "Theorem: Papernot and Steinke 2022, Theorems 2 and 6, and the statement on profiles "
            "of the proof "
            "note.",
        )

    def sources(self) -> tuple[tuple[Theorem, ...], tuple[str, ...]]:
        used = {v.theorem.name: v.theorem for one in self.accounted for v in one.certifying}
        return tuple(used.values()), ("selection",)


def _whole(candidate: AccountedRun) -> Curve:
    curves = candidate.curves
    if not curves:
        raise InputError("candidates", "must each be certified", repr(candidate.run.batching))
    return curves[0] if len(curves) == 1 else BestOf(curves)
