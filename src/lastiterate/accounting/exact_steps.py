"""The certificate of a run with exact noise: charged steps, the discrete Gaussian's own curve."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

from lastiterate.accounting.budgets import check_budget
from lastiterate.accounting.calibration import scale_noise, with_kind_of_noise, with_unit_noise
from lastiterate.accounting.cite import bibtex
from lastiterate.accounting.derived import added_caveats, differences, proper_delta
from lastiterate.accounting.form import COMMON
from lastiterate.accounting.stated import stated
from lastiterate.accounting.stored import Checked
from lastiterate.accounting.wording import NEIGHBOURS, UNIT, Text, rounded_up, units
from lastiterate.accounting.written import finite, preparation, sealed
from lastiterate.curves.curve import UP, Curve, check_delta
from lastiterate.curves.renyi import Rdp
from lastiterate.curves.tails import smallest_true
from lastiterate.errors import InputError, NotCertified
from lastiterate.markup import tag
from lastiterate.run.adjacency import convertible, keeps_places
from lastiterate.run.evidence import Evidence
from lastiterate.run.facts import FLOAT_SLACK, known
from lastiterate.run.preparation import CosineFeatures, TopEigenvalue
from lastiterate.run.run import Run, check_described, check_run
from lastiterate.theorems.composition_gdp import THEOREM, composition_mu
from lastiterate.theorems.theorem import Fails, match

CAVEATS = (
    "covers this release only: further fits on the same data compose",
    "every step is charged: theorems about a hidden state speak of steps on real numbers and of Gaussian noise; that a "
    "step on gradients rounded to a grid moves two points no further apart, and that discrete noise absorbs their "
    "distance, is not proved, so none of them is used",
    "intermediate iterates, gradients, noise and its key must stay secret; the noise is as good as AES-256 in counter "
    "mode with a key of 128 random bits",
    "holds if the run is executed exactly as described",
)
DERIVED = ("epsilon", "epsilon_replace_one", "adjacency", "exact_run")


@final
@dataclass(frozen=True, repr=False)
class ExactCertificate:
    """The privacy of a run on exact sums with discrete Gaussian noise (Canonne, Kamath, Steinke 2020, Theorem 4).

    **Guarantee:** ``epsilon(delta)`` is an upper bound for the computation as it is executed, rounding included: what
    is released is a function of whole-number sums to which exact noise was added.
    """

    run: Run
    caveats: tuple[str, ...] = ()

    @property
    def adjacency(self) -> str:
        return self.run.adjacency

    @cached_property
    def curve(self) -> Curve:
        """Renyi divergence alpha mu^2 / 2, mu as in the composition of the Gaussian mechanisms of the same noise, those
        of the preparation included."""
        found = Rdp.linear((composition_mu(self.run) ** 2 + preparation_squared(self.run)) / 2 * UP)
        return found.group(self.run.rows_per_unit) if self.run.rows_per_unit > 1 else found

    def epsilon(self, delta: float) -> float:
        """Upper bound on epsilon at ``delta``."""
        return self.curve.epsilon(delta)

    def delta(self, epsilon: float) -> float:
        """Upper bound on delta at ``epsilon``."""
        return self.curve.delta(epsilon)

    def under(self, adjacency: str) -> ExactCertificate | None:
        """The same run under another adjacency, or ``None`` where its constants cannot be converted."""
        if not convertible(self.adjacency, adjacency):
            return None
        return replace(self, run=replace(self.run, adjacency=adjacency))  # pyright: ignore[reportArgumentType]

    def replace_one_epsilon(self, delta: float) -> float:
        """Epsilon at ``delta`` under replace-one; infinite where nothing is known."""
        found = self.under("replace-one")
        return math.inf if found is None else found.epsilon(delta)

    def all_caveats(self) -> tuple[str, ...]:
        """Everything a reader must know beside the number."""
        secret = (self.run.batching.secret,) if self.run.batching.secret else ()
        several = (units(self.run.rows_per_unit),) if self.run.rows_per_unit > 1 else ()
        return (*self.caveats, *secret, *several, *CAVEATS)

    def verify(self) -> bool:
        """Whether the run can be certified in this way."""
        return certify(self.run).curve == self.curve

    def explain(self, delta: float, *, all: bool = False) -> str:
        """The answer in words (``all`` has nothing to add)."""
        check_delta(delta)
        other = self.replace_one_epsilon(delta)
        return Text("\n".join([
            f"epsilon {rounded_up(self.epsilon(delta))} at delta {delta:g} ({self.adjacency}), every step charged, "
            "exact sums and exact discrete Gaussian noise: nothing is left to floating point.",
            f"Neighbours ({self.adjacency}): {NEIGHBOURS[self.adjacency]}. {UNIT}",
            f"Under replace-one: epsilon {rounded_up(other)}." if math.isfinite(other)
            else "Under replace-one nothing is claimed.",
            "Theorem: Canonne, Kamath, Steinke: The discrete Gaussian for differential privacy (2020), Theorem 4.",
            *(f"- {text}" for text in self.all_caveats())]))

    def _repr_html_(self) -> str:
        return tag("pre", self.explain(1e-5))

    def __repr__(self) -> str:
        return (f"<ExactCertificate of {self.run.steps} steps on {self.run.n} records, "
                f"{type(self.run.batching).__name__}, {self.adjacency}>")

    def stated(self, delta: float) -> dict[str, Any]:
        """What is stated beside epsilon."""
        return stated(self, delta, run=self.run, curve=self.curve, charged=preparation(self.run),
                      secret=(self.run.batching.secret,) if self.run.batching.secret else ())

    def cite(self) -> str:
        """BibTeX of what the certificate rests on."""
        return bibtex((THEOREM,), ("exact",))

    def described(self) -> dict[str, Any]:
        """What the numbers follow from, JSON-ready; the same run with rounded noise is another one."""
        return {"exact_run": self.run.to_dict()}

    def to_dict(self, delta: float, *, files: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """JSON-ready; ``content_sha256`` covers everything else in it. ``files``: SHA-256 of a model's files."""
        body = {
            "epsilon": finite(self.epsilon(delta)),
            "delta": delta, "adjacency": self.adjacency, "epsilon_replace_one": finite(self.replace_one_epsilon(delta)),
            "exact_run": self.run.to_dict(), "caveats": list(self.all_caveats()),
            "stated": self.stated(delta),
        }
        return sealed(body, files or {})

    def to_json(self, delta: float) -> str:
        """``to_dict`` as JSON text."""
        return json.dumps(self.to_dict(delta), indent=2)


def preparation_squared(run: Run) -> float:
    """The sum of mu^2 over the Gaussian mechanisms of the run's preparation."""
    found = 0.0
    for part in run.prelude:
        if isinstance(part, TopEigenvalue):
            raise NotCertified("exact noise: a top eigenvalue is computed in floating point, with an error that "
                               "nothing bounds")
        if isinstance(part, CosineFeatures):
            raise NotCertified("exact noise: a sum of cosines is computed in floating point and not on a grid")
        if part.noise_multiplier is not None:
            found += (part.moved(run.adjacency) * (1 + FLOAT_SLACK) / part.noise_multiplier) ** 2
    return found


def certify(run: Run, *, extra: tuple[str, ...] = ()) -> ExactCertificate:
    """The certificate of a run with exact noise; refused where its gradients have no enforced bound, or no noise."""
    if run.counts:
        raise NotCertified("exact noise: counts of right answers have noise of another kind; leave them out")
    check_described(run)
    if not keeps_places(run.adjacency):
        raise NotCertified("exact noise: a record that is removed (add-remove) moves others to other places, and that "
                           "their gradients are rounded alike there is not proved: use zero-out")
    preparation_squared(run)
    found = match(THEOREM, run)
    sensitivity = known(run.facts(), "sensitivity")
    if isinstance(found, Fails):
        raise NotCertified("exact noise: " + "; ".join(found.reasons))
    if sensitivity is None or sensitivity.evidence < Evidence.ENFORCED or not run.noise_stds.min() > 0:
        raise NotCertified("exact noise needs an enforced bound on a record's gradient, and noise at every step")
    return ExactCertificate(run, extra)


def calibrate_exactly(run: Run, *, epsilon: float, delta: float) -> ExactCertificate:
    """The least noise of this schedule for which the exact certificate keeps (epsilon, delta)."""
    check_run(run)
    check_budget(epsilon, delta, run.n)
    unit = with_unit_noise(with_kind_of_noise(run))
    certify(unit)  # says why not
    rows = run.rows_per_unit

    def kept(inverse: float) -> bool:
        found = Rdp.linear(1 / inverse)
        return (found.group(rows) if rows > 1 else found).epsilon(delta) <= epsilon

    slope = 1 / smallest_true(kept, 1e-9, 1e12, 1e-9)
    left = 2 * slope / (1 + 1e-9) - preparation_squared(run)
    if left <= 0:
        raise InputError("epsilon", "does not suffice for the preparation alone", epsilon,
                         "give its parts more noise, or ask for a larger epsilon")
    return certify(scale_noise(unit, composition_mu(unit) / math.sqrt(left) * (1 + 1e-9)))


def check(stored: dict[str, Any]) -> Checked:
    """Derive everything again from the run, and compare it with what is written."""
    problems = _derived(stored)[1]
    return Checked(tuple(problems), stored.get("epsilon"), stored.get("delta"), "")


def restore(stored: dict[str, Any]) -> ExactCertificate:
    """The certificate that is written, derived again; refused when what is written differs."""
    fresh, problems = _derived(stored)
    return replace(fresh, caveats=added_caveats(stored, fresh.all_caveats(), problems))


def _derived(stored: dict[str, Any]) -> tuple[ExactCertificate, list[str]]:
    delta = proper_delta(stored)
    fresh = certify(Run.from_dict(stored.get("exact_run")))
    wanted = fresh.to_dict(delta)
    return fresh, differences(stored, wanted, "exact_run", DERIVED, COMMON, "run", lambda: wanted["stated"])
