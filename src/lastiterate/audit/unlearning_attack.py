"""An attack on unlearning: distinguish models that forgot synthetic records from models that never
saw them.

The synthetic records have their largest gradient, all in one direction, and the others the opposite
one. Every model is made as a release is: trained, and continued without the removed records by the
function that removes them for users. Pilot models give the direction in which the two kinds differ
and the threshold; the others count.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import numpy as np

from lastiterate.accounting.certificate import Certificate
from lastiterate.accounting.unlearning import Unlearning
from lastiterate.audit.report import AttackScores, AuditReport, Claim, conclude
from lastiterate.audit.statements import best_threshold
from lastiterate.audit.statistics import require_statement
from lastiterate.engine import Trainer, keys_from_seed
from lastiterate.engine.linear_gradients import linear_loss
from lastiterate.errors import InputError
from lastiterate.release import unlearning
from lastiterate.release.ridge_minimiser import polish_weights
from lastiterate.run.losses import LinearLoss
from lastiterate.run.methods import RidgeMinimiser
from lastiterate.run.run import Run

NAME = "forgotten-records"
TRIALS, PILOT = 1000, 300
"""Models of each kind that count, and that choose direction and threshold."""
FAR = 1e30
"""A target beyond every score."""
AT_ONCE = 2e7
"""Numbers of arranged records that a batch of models holds, about."""


@dataclass(frozen=True)
class PulledPair:
    """The pair that is attacked."""

    about: str


def audit_forgetting(
    certificate: Certificate,
    *,
    trials: int = TRIALS,
    pilot: int = PILOT,
    failure: float = 0.05,
    delta: float = 1e-5,
    seed: int | None = None,
) -> AuditReport:
    """Return a lower bound on the epsilon between forgotten and never seen, to be compared with the
    certificate's.

    ``trials``: models of each kind that count, ``pilot``: that choose the attack; ``failure``:
    probability that the report is wrong. A private preparation is not attacked. Errors:
    ``InputError`` for a certificate of something else.

    **Guarantee:** that of ``AuditReport``; nothing is chosen on the models that are counted.
    """
    subject = certificate.subject
    if not isinstance(subject, Unlearning):
        raise InputError("certificate", "must be about forgetting", subject.word)
    require_statement(trials, failure, delta, 1)
    seed = int.from_bytes(os.urandom(4), "little") if seed is None else seed
    kinds = [
        _make_models(subject, pilot + trials, seed + number, never=bool(number))
        for number in range(2)
    ]
    direction = kinds[0][:pilot].mean(axis=0) - kinds[1][:pilot].mean(axis=0)
    scores = [(kind * direction).sum(axis=(1, 2)) for kind in kinds]
    threshold, _ = best_threshold(Claim.of(certificate), scores[0][:pilot], scores[1][:pilot])
    pair = PulledPair(
        f"{subject.removed} records with one largest gradient, removed; the other models never saw "
        f"them"
    )
    judged = AttackScores(
        "projection", pair.about, (threshold,), 1.0, (scores[0][pilot:], scores[1][pilot:])
    )
    training = subject.training
    said = (
        ("the private preparation is not attacked",)
        if isinstance(training, Run) and training.preprocessing
        else ()
    )
    return conclude(
        certificate,
        [replace(judged, attack=NAME)],
        failure=failure,
        delta=delta,
        pilot=pilot,
        seed=seed,
        caveats=said,
    )


def _make_models(subject: Unlearning, models: int, seed: int, *, never: bool) -> np.ndarray:
    """The last weights of so many models, (models, k, d + 1); ``never``: of those that never saw
    the records."""
    rows, target = records(subject)
    size = max(1, int(AT_ONCE / rows.size))
    keys = keys_from_seed(seed, models * (1 + len(subject.requests)))
    weights: list[np.ndarray] = []
    for first in range(0, models, size):
        part = slice(first, min(first + size, models))
        weights.append(
            _some(
                subject,
                rows,
                target,
                [
                    keys[i * models : (i + 1) * models][part]
                    for i in range(1 + len(subject.requests))
                ],
                never,
            )
        )
    return np.concatenate(weights)


def _some(
    subject: Unlearning, rows: np.ndarray, target: np.ndarray, keys: list[np.ndarray], never: bool
) -> np.ndarray:
    n, training = subject.training.n, subject.training
    everyone = tuple(range(n - subject.removed, n))
    if never:  # by code of its own, so that a bug of what is attacked does not hide itself
        rows, target = rows.copy(), target.copy()
        rows[list(everyone)], target[list(everyone)] = 0, 0
    x, y, gone = rows, target, everyone if never else ()
    if isinstance(training, RidgeMinimiser):
        exact = polish_weights(
            training,
            x,
            y.astype(np.int64),
            np.zeros((linear_loss_of(training).outputs or 1, x.shape[1])),
        )
        weights = np.repeat(
            np.column_stack((exact, np.zeros(len(exact))))[None], len(keys[0]), axis=0
        )
    else:
        weights = Trainer(_alone(training)).fit_many(x, y, keys[0], absent=gone)
    place = n - subject.removed
    for part, own in zip(subject.requests, keys[1:], strict=True):
        place += part.removed
        if not never:
            removed = tuple(range(n - subject.removed, place))
            x, y, gone = unlearning.zero_removed(rows.copy(), target.copy(), removed, n)
        weights = Trainer(part.run).fit_many(x, y, own, absent=gone, initial=weights)
    return weights


def linear_loss_of(training: RidgeMinimiser | Run) -> LinearLoss:
    """The loss, which is a linear one."""
    return training.loss if isinstance(training, RidgeMinimiser) else linear_loss(training)


def _alone(run: Run) -> Run:
    return replace(run, preprocessing=(), counts=())


def records(subject: Unlearning) -> tuple[np.ndarray, np.ndarray]:
    """Rows (n, 1) and targets (n,): the last ones are to be removed, and have their largest
    gradient."""
    loss, n = linear_loss_of(subject.training), subject.training.n
    gone = slice(n - subject.removed, n)
    rows = np.full((n, 1), loss.row_norm)
    if loss.target_classes:
        target = np.zeros(n, np.int64)
        target[gone] = 1
        return rows, target
    target = np.where(np.arange(n) % 2, FAR, -FAR)
    rows[: n - subject.removed] = 0.0
    target[gone] = FAR
    return rows, target
