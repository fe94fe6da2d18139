"""A posterior sample of linear regression as a released model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from lastiterate.accounting.certificate import Certificate
from lastiterate.bayes.linear import ClippedRows, LinearModel, Neighbours, least_prior
from lastiterate.bayes.posterior_subject import (
    LinearPosterior,
    Posterior,
    Problem,
    RidgePosterior,
    certify,
    problem_from_dict,
    sample_posterior,
)
from lastiterate.data.schema import Schema
from lastiterate.errors import InputError
from lastiterate.release.folder import StoredModel
from lastiterate.release.released_model import SelfContainedModel
from lastiterate.release.score_meaning import Range, Scores, as_json, check_answers, from_json
from lastiterate.release.signatures import SYSTEM, ProvenanceRecord
from lastiterate.release.training_request import TrainingRequest
from lastiterate.run.validation import Array, check_kept, positive

if TYPE_CHECKING:
    from lastiterate.engine.random import Key

GUESSES = tuple(float(b) for b in np.geomspace(1e-3, 10, 9))
"""Noise precisions that the plan chooses from, for labels in [-1, 1]."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class FittedSample(SelfContainedModel):
    """One sample of theta, shape (d,), from the posterior of ``problem``.

    ``column``: rows are scaled down to this norm and get a constant column (``None``: they are used
    as the problem has them).
    """

    kind: ClassVar[str] = "posterior-sample"
    generator: ClassVar[str] = SYSTEM
    problem: Problem
    value: Array
    answers: Range | Scores = Scores()
    column: float | None = None

    @property
    def features(self) -> int:
        return len(self.value) - (self.column is not None)

    def predict(self, x: ArrayLike) -> np.ndarray:
        """The line that was sampled, at x of shape (n, d) (for one feature: (n,)); shape (n,)."""
        check_kept("x", x)
        rows, wide = np.asarray(x, dtype=np.float64), self.features
        if isinstance(self.problem, LinearPosterior):
            rows = rows.reshape(-1, 1)
        if rows.ndim != 2 or rows.shape[1] != wide:
            raise InputError("x", f"must have {wide} features like the model", rows.shape)
        if self.column is not None:
            rows = with_constant(rows, self.column)
        elif isinstance(self.problem, RidgePosterior):
            rows = clip_features(rows, self.problem.domain.row_norm)
        return self.answers.of((rows @ self.value)[:, None])

    def contents(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        model = {
            "problem": self.problem.to_dict(),
            "answers": as_json(self.answers),
            "column": self.column,
        }
        return model, {"weights": np.asarray(self.value, dtype=np.float64)}

    def summary(self) -> str:
        return f"one sample of {len(self.value)} coefficients given {self.problem.domain.n} records"


def read(stored: StoredModel, like: object = None) -> FittedSample:
    """The sample in a folder."""
    if like is not None:
        raise InputError(
            "like",
            "is for networks; a posterior sample needs none",
            type(like).__name__,
            "leave it out",
        )
    problem, tensors = problem_from_dict(stored.model["problem"]), stored.tensors()
    wide = problem.domain.features if isinstance(problem, RidgePosterior) else 1
    if (
        set(tensors) != {"weights"}
        or tensors["weights"].shape != (wide,)
        or tensors["weights"].dtype != np.float64
    ):
        raise InputError(
            "model", f"must hold {wide} weights in double precision", sorted(tensors), "train again"
        )
    column, answers = stored.model.get("column"), from_json(stored.model.get("answers"))
    if column is not None:
        positive("column", column)
    if not isinstance(answers, Range | Scores):
        raise InputError(
            "answers", "must be a range of numbers for a posterior sample", type(answers).__name__
        )
    schema = (
        None if stored.model.get("schema") is None else Schema.from_dict(stored.model["schema"])
    )
    check_answers(schema, answers)
    return FittedSample(
        proof=ProvenanceRecord(stored.certificate),
        delta=stored.certificate["delta"],
        schema=schema,
        problem=problem,
        value=tensors["weights"],
        answers=answers,
        column=column,
    )


def check(order: TrainingRequest) -> TrainingRequest:
    """Refuse answers that are no numbers, and a certificate of something else."""
    if not isinstance(order.certificate.subject, Posterior):
        raise InputError(
            "certificate",
            "must be about a posterior",
            order.certificate.subject.word,
            "posterior.certify_plan makes one",
        )
    if not isinstance(order.answers, Range):
        raise InputError(
            "model",
            "needs a target that is a range of numbers",
            FittedSample.kind,
            "use logistic for classes",
        )
    order.charging.without_checkpoint("of a posterior, which has no steps")
    return order


def fit(order: TrainingRequest, key: Key | None) -> FittedSample:
    """Return the certified sample for rows (n, d), scaled to the norm ``order.model`` and extended
    by a constant column, and targets (n,) in [-1, 1]."""
    subject, (features, target) = order.certificate.subject, order.data
    assert isinstance(subject, Posterior) and isinstance(order.answers, Range)
    made = sample_posterior(
        subject.problem, with_constant(features, order.model), target, adjacency=subject.neighbours
    )
    return FittedSample(
        proof=order.certificate,
        delta=order.delta,
        schema=order.schema,
        problem=subject.problem,
        value=made.value,
        answers=order.answers,
        column=order.model,
    )


def certify_plan(
    n: int, features: int, *, row_norm: float, epsilon: float, delta: float, adjacency: Neighbours
) -> Certificate:
    """The certificate of the planned sample, from public numbers only."""
    domain = ClippedRows(
        n=n, features=features + 1, row_norm=math.hypot(row_norm, 1.0) * (1 + 1e-12)
    )
    return certify(
        RidgePosterior(plan_sample(domain, epsilon=epsilon, delta=delta), domain), adjacency
    )


def plan_sample(domain: ClippedRows, *, epsilon: float, delta: float) -> LinearModel:
    """The model within the budget with the least predicted error, from public numbers only.

    The prediction is for isotropic rows and labels of which 1/4 of the variance is explained: with
    m = beta n row_norm^2 / d it is (alpha / (alpha + m))^2 / 4 for the prior's bias and row_norm^2
    / (alpha + m) for the sample.
    """

    def risk(model: LinearModel) -> float:
        alpha = model.prior_precision
        total = alpha + model.noise_precision * domain.n * domain.row_norm**2 / domain.features
        return (alpha / total) ** 2 / 4 + domain.row_norm**2 / total

    return min(
        (
            least_prior(domain, epsilon=epsilon, delta=delta, noise_precision=beta)
            for beta in GUESSES
        ),
        key=risk,
    )


def with_constant(features: ArrayLike, norm: float) -> Array:
    """Rows scaled down to ``norm``, shape (n, d), with a constant column: shape (n, d + 1)."""
    rows = clip_features(features, norm)
    return np.column_stack([rows, np.ones(len(rows))])


def clip_features(features: ArrayLike, norm: float) -> Array:
    n, d = np.shape(features)
    return ClippedRows(n=n, features=d, row_norm=norm).clip(features, np.zeros(n))[0]
