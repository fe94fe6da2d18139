"""A linear model that forgot records: what is refused, how it continues without them, and back from a folder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from lastiterate.accounting.unlearning import Unlearning
from lastiterate.engine import Model, execute
from lastiterate.engine.gaussian_noise import Key
from lastiterate.engine.preparation import prepared
from lastiterate.engine.preparation.target_mean import target_offset
from lastiterate.errors import InputError
from lastiterate.release.fitted_linear import FittedLinear
from lastiterate.release.fitted_linear import read as read_linear
from lastiterate.release.folder import Stored
from lastiterate.release.order import Order, Unread
from lastiterate.release.statements import Written
from lastiterate.run.run import Run


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class FittedUnlearned(FittedLinear):
    """A linear model whose certificate compares it with one that never saw the removed records."""

    kind: ClassVar[str] = "unlearned"
    unlearning: Unlearning

    def contents(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        model, tensors = FittedLinear.contents(self)
        return model | {"unlearning": self.unlearning.description()}, tensors

    def summary(self) -> str:
        return f"{FittedLinear.summary(self)}, {self.unlearning.words.short}"


@dataclass(frozen=True, eq=False)
class Before:
    """The model that is to forget, and the places of the records that it forgets, in the data that are given."""

    model: Model
    removed: tuple[int, ...]


def scored_by(unlearning: Unlearning) -> Run:
    """The run whose preparation and rows its scores need."""
    last, training = unlearning.requests[-1].run, unlearning.training
    return replace(last, prelude=training.prelude) if isinstance(training, Run) else last


def check(order: Order) -> Order:
    """Refuse checkpoints and seeds of streams, and data of another size than what is left of the training's."""
    subject = _subject(order)
    order.charging.without_checkpoint("while a model forgets")
    if order.in_pieces or isinstance(order.data, Unread):
        raise InputError("data", "must be in memory where a model forgets", None, "load them as arrays")
    if isinstance(subject.training, Run) and subject.training.nominal:
        raise InputError("model", "must not be trained under add-remove: it is compared with one of the same public "
                         "number of records", subject.training.adjacency, "train with zero-out what is to forget")
    rows, target = (np.asarray(part) for part in order.data)
    named = len(set(order.model.removed)) if isinstance(order.model, Before) else 0
    if named != subject.requests[-1].removed:
        raise InputError("remove", f"must name the {subject.requests[-1].removed} records of the certificate", named)
    left = subject.training.n - subject.removed + subject.requests[-1].removed
    if rows.ndim != 2 or len(rows) != left or target.shape != (left,):
        raise InputError("data", f"must hold the {left} records that are left of those that the model was trained on",
                         rows.shape[:1], "give the same data, without the records that were removed before")
    return replace(order, data=(rows, target))


def _subject(order: Order) -> Unlearning:
    subject = order.certificate.subject
    if not isinstance(subject, Unlearning) or not isinstance(order.model, Before):
        raise InputError("certificate", "must be about forgetting", subject.word, "lastiterate.forget makes one")
    return subject


def fit(order: Order, key: Key | None) -> FittedUnlearned:
    """Go on from the weights on rows (m, d) and targets (m,), those of the removed records set to zero.

    **Guarantee:** a removed record's row and answer are 0 before anything is computed, and so is its gradient.
    """
    subject, before = _subject(order), order.model
    training, run = subject.training, subject.requests[-1].run
    rows, target = order.data
    if isinstance(training, Run):
        rows = np.array(rows)
        rows[list(before.removed)] = 0
        rows = prepared(rows, training.prelude, before.model.released)
        offset = target_offset(training, before.model.released)
        target = target if offset == 0 else target - offset
    rows, target, gone = without(rows, target, before.removed, run.n)
    weights = execute(run, rows, target, key, order.progress, absent=gone, initial=before.model.weights).weights
    assert order.answers is not None
    return FittedUnlearned(proof=order.certificate, delta=order.delta, schema=order.schema, run=scored_by(subject),
                           released=Model(weights, before.model.released), answers=order.answers, unlearning=subject)


def without(rows: np.ndarray, target: np.ndarray, removed: tuple[int, ...], n: int
            ) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Rows and targets of ``n`` places, zero where a record is removed or no record is left, and these places."""
    empty = n - len(rows)
    gone = [*removed, *range(len(rows), n)]
    rows = np.concatenate((rows, np.zeros((empty, rows.shape[1]), rows.dtype)))
    target = np.concatenate((target, np.zeros(empty, target.dtype)))
    rows[gone], target[gone] = 0, 0
    return rows, target, gone


def read(stored: Stored, like: object = None) -> FittedUnlearned:
    """The model in a folder."""
    model, unlearning = read_linear(stored, like), Unlearning.from_dict(stored.model["unlearning"])
    if model.run != scored_by(unlearning):
        raise InputError("model", "must be scored by the run of its certificate", None, "forget again")
    return FittedUnlearned(proof=Written(stored.certificate), delta=model.delta, schema=model.schema, run=model.run,
                           released=model.released, answers=model.answers, unlearning=unlearning)
