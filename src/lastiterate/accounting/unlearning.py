"""A model that forgot records as the subject of a certificate: the training, and the steps without
them after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, final

from lastiterate.accounting.certificate_subject import (
    CAVEATS,
    CertificateSubject,
    Words,
    curves_of_preprocessing,
)
from lastiterate.analysis.restarted_sampling import LONGEST
from lastiterate.analysis.unlearning import Continued, Training, forgotten_curve
from lastiterate.curves.composition import compose
from lastiterate.curves.curve import Curve
from lastiterate.errors import InputError, NotCertified
from lastiterate.plugins import Outside
from lastiterate.run.losses import KnownConstants
from lastiterate.run.methods import NoisySGD, RidgeMinimiser, minimiser_of
from lastiterate.run.plugin_batching import provider_of
from lastiterate.run.run import Run, check_described
from lastiterate.run.step_sizes import RelativeToSmooth, StableSteps
from lastiterate.run.validation import check_integer
from lastiterate.theorems.assumptions import (
    NOISY_STEPS,
    last_iterate_only,
    lipschitz_step,
    plain_updates,
    released_as_left,
    solved_objective,
)
from lastiterate.theorems.theorem import Assumption, Theorem, Violated

ADJACENCY = "forgotten"
STEPS = (*NOISY_STEPS, last_iterate_only, plain_updates, released_as_left, lipschitz_step)
"""The assumptions on the steps of a training, and on those after a request."""
NOT_OTHERS = "is no differential privacy for the records that stay"
"""A caveat as certificates store it; ``planning.unlearning_plans`` says it with numbers."""
SILENT = (
    "speaks of this model alone: not of earlier models that were handed out, of their predictions, "
    "or of other data "
    "that mention the same people",
    NOT_OTHERS,
    "holds if the data are those that the model was trained on, and the removed records took part "
    "in nothing else",
    "holds if nobody chose which records to remove, or how often to ask, by looking at a model "
    "that had seen them",
)


@final
@dataclass(frozen=True)
class Unlearning(CertificateSubject):
    """``training`` on all records, then for every one of ``requests`` steps without the records
    removed so far.

    Errors: ``NotCertified`` where nothing is known about how far apart records move the weights,
    with the reasons.

    **Guarantee:** its curve bounds, in both orders, how well these weights are distinguished from
    those that the same training, followed by the same steps, gives where the removed records'
    contributions are zero from the beginning (n stays public), if everything is executed as
    described. It says nothing about anybody else's privacy.
    """

    entry: ClassVar[str] = "unlearning"
    word: ClassVar[str] = "forgetting"
    limit: ClassVar[str] = (
        "it is about the removed records alone, against a model that never saw them, and says "
        "nothing about the records that stay"
    )

    training: Training
    requests: tuple[Continued, ...]

    def __post_init__(self) -> None:
        if not self.requests:
            raise InputError("requests", "must hold at least one", 0)
        if isinstance(self.training, Run):
            check_training(self.training)
        for part in self.requests:
            check_integer("removed", part.removed, most=self.training.n)
            _check_steps(part.run, STEPS)
            if (
                part.run.n != self.training.n
                or part.run.batching.drawn == "each step"
                or part.run.preprocessing
            ):
                raise InputError(
                    "requests",
                    "must continue on the same public n, in epochs, without a preparation of "
                    "their own",
                    part.run.n,
                )
            check_integer("steps after a request", part.run.steps, most=LONGEST)
        check_integer("removed", self.removed, most=self.training.n - 1)

    @property
    def removed(self) -> int:
        """Records that were removed by all requests together."""
        return sum(part.removed for part in self.requests)

    def description(self) -> dict[str, Any]:
        return {
            "training": self.training.to_dict(),
            "requests": [
                {"removed": part.removed, "run": part.run.to_dict()} for part in self.requests
            ],
        }

    def describe_charge(self) -> dict[str, Any]:
        """The last steps alone, for those who stay: what was before them was charged before."""
        return self.requests[-1].run.to_dict()

    @classmethod
    def from_dict(cls, data: Any) -> Unlearning:
        """Read what ``description`` wrote; ``InputError`` for anything else."""
        match data:
            case {"training": {"type": kind} as training, "requests": [*requests], **rest} if (
                not rest
            ):
                parts = tuple(_request(each) for each in requests)
                return cls(
                    RidgeMinimiser.from_dict(training)
                    if kind == "RidgeMinimiser"
                    else Run.from_dict(training),
                    parts,
                )
            case _:
                raise InputError("unlearning", "must hold training and requests", None)

    @classmethod
    def read(cls, stored: dict[str, Any]) -> Unlearning:
        return cls.from_dict(stored.get("unlearning"))

    @property
    def adjacency(self) -> str:
        return ADJACENCY

    def all_curves(self) -> tuple[Curve, ...]:
        """Given what a private preparation released, and the preparation's own curve for all
        removed records."""
        forgotten = forgotten_curve(self.training, self.requests)
        if isinstance(self.training, RidgeMinimiser):
            return (forgotten,)
        prepared = (
            curve.group(self.removed) if self.removed > 1 else curve
            for curve in curves_of_preprocessing(self.training)
        )
        return (compose(forgotten, *prepared),)

    def with_adjacency(self, adjacency: str) -> Unlearning | None:
        return self if adjacency == ADJACENCY else None

    def describe_unit(self, name: str = "") -> dict[str, Any]:
        count = self.removed
        return {
            "rows": count,
            "words": f"the {format_count(count, 'removed record')} together, and nobody else",
        }

    @property
    def outside(self) -> tuple[Outside, ...]:
        runs = [part.run for part in self.requests]
        if isinstance(self.training, Run):
            runs.insert(0, self.training)
        return tuple(dict.fromkeys(part for run in runs for part in provider_of(run.batching)))

    @property
    def caveats(self) -> tuple[str, ...]:
        return (*SILENT, *CAVEATS[1:])

    @property
    def reference(self) -> str:
        """The procedure whose outcome the model is compared with, in words."""
        after = sum(part.run.steps for part in self.requests)
        how = (
            "the minimiser of the ridge problem"
            if isinstance(self.training, RidgeMinimiser)
            else self.training.method.words(self.training)
        )
        return f"the same training without the removed records ({how}), followed by the same {after} steps"

    @property
    def words(self) -> Words:
        last = self.requests[-1].run
        said = f"{format_count(self.removed, 'record')} forgotten in {format_count(len(self.requests), 'request')}"
        return Words(
            f"{said}, the last in {last.steps} steps",
            by=f"against {self.reference}",
            charged=(f"{said}; compared with {self.reference}",),
        )

    def because(self, delta: float) -> tuple[str, ...]:
        return (
            f"Compared with {self.reference}.",
            "Theorem: shifted interpolation of one long run (Bok, Su, Altschuler 2024) in whose "
            "last steps the "
            "removed records have no part: docs/theorems/forgetting.",
        )

    def sources(self) -> tuple[tuple[Theorem, ...], tuple[str, ...]]:
        return (), ("forgetting",)


def format_count(count: float, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _request(data: Any) -> Continued:
    match data:
        case {"removed": int() as removed, "run": run, **rest} if not rest and not isinstance(
            removed, bool
        ):
            return Continued(Run.from_dict(run), removed)
        case _:
            raise InputError("requests", "must each hold removed and run", None)


def check_training(run: Run) -> None:
    """Refuse a training whose weights nothing keeps close to those without a record."""
    check_described(run)
    if minimiser_of(run.method) is not None:
        return _check_steps(run, (released_as_left, solved_objective))
    return _check_steps(run, STEPS)


def may_forget(run: Run) -> bool:
    """Whether ``check_training`` takes a run."""
    try:
        check_training(run)
    except (InputError, NotCertified):
        return False
    return True


def _check_steps(run: Run, assumptions: tuple[Assumption, ...]) -> None:
    check_described(run)
    reasons = (
        [
            checked.reason
            for checked in (one.check(run) for one in assumptions)
            if isinstance(checked, Violated)
        ]
        if type(run.method) is NoisySGD or minimiser_of(run.method)
        else ["its method follows more than its weights"]
    )
    if isinstance(run.loss, KnownConstants):
        reasons.append(
            "a network, or a loss known only by its constants, may move by any distance for one "
            "record: "
            "only linear models are known to forget"
        )
    if isinstance(run.step_size, RelativeToSmooth | StableSteps):
        reasons.append(
            "its steps follow what was measured on the records, so that none of them can be "
            "followed alone"
        )
    if run.rows_per_unit > 1 or run.rows_per_record > 1:
        raise InputError(
            "rows_per_unit",
            "must be 1 in a training that forgets: single rows are forgotten",
            max(run.rows_per_unit, run.rows_per_record),
            "train again without the person",
        )
    if reasons:
        raise NotCertified(
            "nothing says that this training forgets: " + "; ".join(dict.fromkeys(reasons))
        )
