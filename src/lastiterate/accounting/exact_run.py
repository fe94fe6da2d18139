"""A run with exact noise as the subject of a certificate: charged steps, the discrete Gaussian's
own curve."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, final

from lastiterate.accounting.certificate_subject import OneRun
from lastiterate.curves.curve import UP, Curve
from lastiterate.curves.renyi import Rdp
from lastiterate.errors import NotCertified
from lastiterate.run.adjacency import convertible, has_fixed_size
from lastiterate.run.facts import FLOAT_SLACK, Evidence, find_fact
from lastiterate.run.preprocessing import CosineFeatures, TopEigenvalue
from lastiterate.run.probability_calibration import private_calibration
from lastiterate.run.run import Run, check_described
from lastiterate.theorems.composition import COMPOSITION_GDP, composition_mu
from lastiterate.theorems.theorem import Fails, Theorem, match

CAVEATS = (
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
        return (*self.of_the_run, *CAVEATS)

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
