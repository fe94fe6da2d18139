"""The certificate of a model that was selected privately from a random number of runs (``tune``)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

from lastiterate.accounting.certificate import Certificate, account
from lastiterate.accounting.cite import bibtex
from lastiterate.accounting.derived import added_caveats, differences, proper_delta
from lastiterate.accounting.form import COMMON
from lastiterate.accounting.stated import stated
from lastiterate.accounting.stored import Checked
from lastiterate.accounting.wording import CAVEATS, NEIGHBOURS, UNIT, Text, rounded_up
from lastiterate.accounting.written import finite, sealed
from lastiterate.curves.curve import UP, BestOf, Curve, check_delta
from lastiterate.curves.number_of_runs import Runs
from lastiterate.curves.private_selection import Selected, WorstOf, runs_from_dict
from lastiterate.curves.renyi import Rdp
from lastiterate.errors import InputError
from lastiterate.markup import tag
from lastiterate.run.run import Run
from lastiterate.run.validate import positive

SECRET = ("how many candidates were trained, their scores and models, and how long it took must stay secret",
          "holds if every run is executed as described and scored on the records that were held out")
DERIVED = ("epsilon", "epsilon_replace_one", "adjacency", "selection")


@final
@dataclass(frozen=True)
class Selection:
    """Draw a run from ``candidates`` uniformly, train it, score it with noise; as often as ``law`` says; keep the best.

    ``held_out`` records, of public places, are scored and not trained on. A score is a sum over them of whole numbers
    in [0, ``unit``], with discrete Gaussian noise of standard deviation ``score_noise`` * ``unit``.
    """

    candidates: tuple[Run, ...]
    law: Runs
    held_out: int
    score_noise: float
    unit: int = 1

    def __post_init__(self) -> None:
        positive("score_noise", self.score_noise)
        same_data = {(run.n, run.adjacency, run.release) for run in self.candidates}
        if len(same_data) != 1 or self.candidates[0].release != "last":
            raise InputError("candidates", "must all release the last iterate of runs on the same records",
                             sorted(map(str, same_data)))
        rows = max(max(run.rows_per_unit, run.rows_per_record) for run in self.candidates)
        if rows > 1:  # a unit's rows could fall on both sides of the split, and a score counts rows
            raise InputError("rows_per_unit", "must be 1 where candidates are scored on records that are held out",
                             rows, "tune on one row per unit")
        if type(self.held_out) is not int or self.held_out < 1 or type(self.unit) is not int or self.unit < 1:
            raise InputError("held_out", "must be a positive whole number of records", self.held_out)

    @property
    def adjacency(self) -> str:
        return self.candidates[0].adjacency

    def to_dict(self) -> dict[str, Any]:
        return {"candidates": [run.to_dict() for run in self.candidates], "held_out": self.held_out,
                "law": {"type": type(self.law).__name__, **vars(self.law)}, "score_noise": self.score_noise,
                "unit": self.unit}

    @classmethod
    def from_dict(cls, data: Any) -> Selection:
        match data:
            case {"candidates": [*runs], "law": law, "held_out": int() as held_out,
                  "score_noise": float() as noise, "unit": int() as unit, **rest} if not rest and runs:
                try:
                    return cls(tuple(Run.from_dict(run) for run in runs), runs_from_dict(law), held_out, noise, unit)
                except TypeError:
                    raise InputError("selection", "must hold numbers where numbers belong", None) from None
            case _:
                raise InputError("selection", "must hold candidates, law, held_out, score_noise and unit", None)


@final
@dataclass(frozen=True, repr=False)
class SelectionCertificate:
    """The privacy of one selected model, the training and the scoring of all the others included.

    **Guarantee:** ``epsilon(delta)`` is an upper bound for all of ``tune`` (docs/theorems/private-selection.md): one
    record is trained on or scored, never both, so a run costs the worse of the two.
    """

    selection: Selection
    certificates: tuple[Certificate, ...]
    caveats: tuple[str, ...] = ()

    @property
    def adjacency(self) -> str:
        return self.selection.adjacency

    @cached_property
    def curve(self) -> Curve:
        """All of it as one curve."""
        score = Rdp.linear(1 / (2 * self.selection.score_noise**2) * UP)
        return Selected(WorstOf((*(_curve(one) for one in self.certificates), score)), self.selection.law)

    def epsilon(self, delta: float) -> float:
        """Upper bound on epsilon at ``delta``."""
        return self.curve.epsilon(delta)

    def delta(self, epsilon: float) -> float:
        """Upper bound on delta at ``epsilon``."""
        return self.curve.delta(epsilon)

    def under(self, adjacency: str) -> SelectionCertificate | None:
        """The same selection accounted under another adjacency (one record's score moves by the unit at most)."""
        found = [one.under(adjacency) for one in self.certificates]
        if any(one is None or not one.certifying for one in found):
            return None
        runs = tuple(one.run for one in found if one is not None)
        return replace(self, selection=replace(self.selection, candidates=runs), certificates=tuple(found))  # pyright: ignore

    def replace_one_epsilon(self, delta: float) -> float:
        """Epsilon at ``delta`` under replace-one; infinite where nothing is known."""
        found = self.under("replace-one")
        return math.inf if found is None else found.epsilon(delta)

    def all_caveats(self) -> tuple[str, ...]:
        """Everything a reader must know beside the number."""
        from_runs = (text for one in self.certificates for text in one.all_caveats())
        return tuple(dict.fromkeys((*self.caveats, *from_runs, *SECRET, *CAVEATS)))

    def verify(self) -> bool:
        """Whether accounting every candidate again gives the same."""
        return all(one.verify() for one in self.certificates)

    def explain(self, delta: float, *, all: bool = False) -> str:
        """The answer in words (``all`` has nothing to add)."""
        check_delta(delta)
        chosen = self.selection
        other = self.replace_one_epsilon(delta)
        each = WorstOf(tuple(_curve(one) for one in self.certificates)).epsilon(delta)
        return Text("\n".join([
            f"epsilon {rounded_up(self.epsilon(delta))} at delta {delta:g} ({self.adjacency}), for the best of a "
            f"secret number of runs, {chosen.law.mean:.3g} on average, from {len(chosen.candidates)} candidates.",
            f"Neighbours ({self.adjacency}): {NEIGHBOURS[self.adjacency]}. {UNIT}",
            f"Under replace-one: epsilon {rounded_up(other)}." if math.isfinite(other)
            else "Under replace-one nothing is claimed.",
            f"One run alone would cost epsilon {rounded_up(each)}.",
            "Theorem: Papernot and Steinke 2022, Theorems 2 and 6, and the statement on profiles of the proof note.",
            *(f"- {text}" for text in self.all_caveats())]))

    def _repr_html_(self) -> str:
        return tag("pre", self.explain(1e-5))

    def __repr__(self) -> str:
        return (f"<SelectionCertificate of {len(self.selection.candidates)} candidates, {self.selection.law.mean:.3g} "
                f"runs on average, {self.adjacency}>")

    def stated(self, delta: float) -> dict[str, Any]:
        """What is stated beside epsilon."""
        chosen = self.selection
        tuning = (f"tuning: the best of a secret number of runs, {chosen.law.mean:.3g} on average, from "
                  f"{len(chosen.candidates)} candidates, and their scores on {chosen.held_out} records")
        return stated(self, delta, run=None, curve=self.curve, charged=(tuning,), secret=SECRET[:1])

    def cite(self) -> str:
        """BibTeX of what the certificate rests on."""
        used = {v.theorem.name: v.theorem for one in self.certificates for v in one.certifying}
        return bibtex(used.values(), ("selection",))

    def described(self) -> dict[str, Any]:
        """What the numbers follow from, JSON-ready."""
        return self.selection.to_dict()

    def to_dict(self, delta: float, *, files: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """JSON-ready; ``content_sha256`` covers everything else in it. ``files``: SHA-256 of a model's files."""
        body = {
            "epsilon": finite(self.epsilon(delta)),
            "delta": delta, "adjacency": self.adjacency, "epsilon_replace_one": finite(self.replace_one_epsilon(delta)),
            "selection": self.selection.to_dict(), "caveats": list(self.all_caveats()),
            "stated": self.stated(delta),
        }
        return sealed(body, files or {})

    def to_json(self, delta: float) -> str:
        """``to_dict`` as JSON text."""
        return json.dumps(self.to_dict(delta), indent=2)


def _curve(certificate: Certificate) -> Curve:
    curves = tuple(certificate.curve(verdict) for verdict in certificate.certifying)
    if not curves:
        raise InputError("candidates", "must each be certified", repr(certificate.run.batching))
    return curves[0] if len(curves) == 1 else BestOf(curves)


def certify(selection: Selection, *, extra: tuple[str, ...] = ()) -> SelectionCertificate:
    """The certificate of a selection, from its description alone."""
    return SelectionCertificate(selection, tuple(account(run) for run in selection.candidates), extra)


def check(stored: dict[str, Any]) -> Checked:
    """Derive everything again from the selection, and compare it with what is written."""
    problems = _derived(stored)[1]
    return Checked(tuple(problems), stored.get("epsilon"), stored.get("delta"), "")


def restore(stored: dict[str, Any]) -> SelectionCertificate:
    """The certificate that is written, derived again; refused when what is written differs."""
    fresh, problems = _derived(stored)
    return replace(fresh, caveats=added_caveats(stored, fresh.all_caveats(), problems))


def _derived(stored: dict[str, Any]) -> tuple[SelectionCertificate, list[str]]:
    delta = proper_delta(stored)
    fresh = certify(Selection.from_dict(stored.get("selection")))
    wanted = fresh.to_dict(delta)
    return fresh, differences(stored, wanted, "selection", DERIVED, COMMON, "selection", lambda: wanted["stated"])
