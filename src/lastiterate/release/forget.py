"""``forget``: from a trained model and records that are to go, to a model that is certified as if it never saw them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from lastiterate.accounting.guarantee import Guarantee
from lastiterate.accounting.unlearning import Unlearning
from lastiterate.accounting.wording import rounded_up
from lastiterate.analysis.forgotten import Continued, Training
from lastiterate.data.schema import Schema
from lastiterate.engine import Model
from lastiterate.errors import InputError, NotCertified
from lastiterate.ledger.store import Ledger
from lastiterate.planning.task import automatic_delta
from lastiterate.planning.unlearning_plans import PASSES, Forgetting, planned, private
from lastiterate.release.answers import Labels, Range, Scores
from lastiterate.release.charging import Charging, charging_of
from lastiterate.release.fitted import Fitted
from lastiterate.release.fitted_linear import FittedLinear
from lastiterate.release.kinds import UNLEARNED
from lastiterate.release.loading import load
from lastiterate.release.minimised_estimator import minimised, with_indices
from lastiterate.release.order import Order, Progress
from lastiterate.release.pipeline import finish
from lastiterate.release.unlearned_model import Before, FittedUnlearned
from lastiterate.run.arrays import check_kept
from lastiterate.run.run import Run

NO_LEDGER = "nobody compared the data with those that the model was trained on: there is no ledger that knows them"


@dataclass(frozen=True, eq=False)
class Trained:
    """A model that may forget: how its weights came about, the weights, what was forgotten before."""

    training: Training
    weights: Model
    answers: Labels | Range | Scores
    earlier: tuple[Continued, ...] = ()
    schema: Schema | None = None
    model: FittedLinear | None = None


def forget(
    model: object,
    x: ArrayLike,
    y: ArrayLike,
    *,
    remove: Sequence[int] | np.ndarray,
    epsilon: float,
    delta: float | None = None,
    row_norm: float | None = None,
    passes: int = PASSES[-1],
    ledger: Ledger | str | Path | None = None,
    dataset: str | None = None,
    seed: int | None = None,
    progress: Progress | None = None,
) -> FittedUnlearned:
    """Continue ``model`` without the records ``remove``, until it is (epsilon, delta)-close to never having seen them.

    ``model``: a linear model that ``train``, ``load`` or ``forget`` gave, its folder, or its estimator; a fitted
    ``sklearn.linear_model.LogisticRegression`` with a ridge and no intercept of its own, on rows of norm at most
    ``row_norm``; or a pair of a ``Run`` and the weights (k, d + 1) that it gave, with any noise or none. ``x``, ``y``:
    the records that it was trained on, in the same order, without those that it forgot before; rows (m, d), and labels
    or class indices as it was given them. ``remove``: their places. ``delta``: by default a power of ten at most
    1/(10 n). ``passes``: over the data, at most. ``ledger``, ``dataset``: what the training was charged to; the steps
    are charged to it for everybody who stays, and other data than the training's are refused. ``seed``: for tests only.

    Returns a model with ``certificate``, ``predict`` and ``save``. Errors: ``NotCertified`` where nothing says that
    such a training forgets, with the reasons; ``InputError`` for bad input. Nothing is released then.

    **Guarantee:** that of ``Unlearning``: the new weights against those that the same training without the removed
    records, followed by the same steps, gives. Nothing about earlier models, which stay what they are.
    """
    check_kept("data", (x, y))
    model = load(model) if isinstance(model, str | Path) else getattr(model, "fitted_", model)
    check_forgets(model, len(places(remove, len(np.asarray(y)))), delta)
    before = trained(model, x, y, row_norm)
    rows, target, gone = np.asarray(x), with_indices(model, np.asarray(y)), places(remove, len(np.asarray(x)))
    stated = automatic_delta(before.training.n) if delta is None else delta
    check_classes(target, gone)
    plan = planned_for(before, len(gone), epsilon=epsilon, delta=stated, most=passes)
    charging = charging_of(ledger=ledger, dataset=dataset, purpose="forget")
    after = finish(UNLEARNED, ordered(before, plan, (rows, target), gone, epsilon, stated, charging, seed,
                                       progress))
    assert isinstance(after, FittedUnlearned)
    return after


def planned_for(before: Trained, removed: int, *, epsilon: float, delta: float, most: int) -> Forgetting:
    """The plan for a model; where nothing says that it forgets, what its own differential privacy says."""
    features = before.weights.weights.shape[1] - 1
    try:
        return planned(before.training, before.earlier, removed, features, epsilon=epsilon, delta=delta, most=most)
    except NotCertified as error:
        own = private(before.training) if isinstance(before.training, Run) and not before.earlier else None
        raise NotCertified(f"{error}{with_nothing_done(own, removed, delta)}; models that algorithm=\"forgetting-sgd\" "
                           "trained forget") from None


def with_nothing_done(own: Guarantee | None, removed: int | None, delta: float) -> str:
    """What a model's own differential privacy says of so many records (``None``: of any one of them)."""
    alone = None if own is None else own.under("zero-out")
    bound = math.inf if alone is None else alone.group(removed or 1, delta)
    which = "each of these records" if removed is None else "these records together"
    return "" if not math.isfinite(bound) else (f"; its own differential privacy gives epsilon {rounded_up(bound)} at "
                                                f"delta {delta:g} for {which}, with nothing done")


def check_forgets(model: object, removed: int | None = None, delta: float | None = None) -> None:
    """Refuse trained models of other kinds than those that may forget: with the reason, and with what holds anyway."""
    if isinstance(model, Fitted) and not isinstance(model, FittedLinear | FittedUnlearned):
        own = with_nothing_done(model.certificate, removed, model.delta if delta is None else delta)
        raise NotCertified(f"nothing says that a {model.kind} model forgets: steps on the records that stay bring two "
                           "trainings together where losses are convex, with a ridge or in a bounded domain, and two "
                           f"trainings of a network may stay as far apart as they are; train anew without them{own}")


def ordered(before: Trained, plan: Forgetting, data: tuple[np.ndarray, np.ndarray], gone: tuple[int, ...],
            epsilon: float, delta: float, charging: Charging, seed: int | None = None, progress: Progress | None = None) -> Order:
    """What the pipeline executes; the ledger is charged for those who stay."""
    charged = None
    if charging.ledger is not None:
        charged = plan.everybody_else()
        if charged is None:
            raise InputError("ledger", "cannot be charged for steps without noise, which keep nobody's privacy", None,
                             "forget a model that was trained with noise, or leave the ledger out")
        charging.compare(before.model, data)
    return Order(certificate=plan.certificate, data=data, epsilon=epsilon, delta=delta, model=Before(before.weights, gone), seed=seed,
                 progress=progress, charging=charging, answers=before.answers, schema=before.schema, charged=charged,
                 kept=left(data, gone),
                 caveats=(NO_LEDGER,) if charging.ledger is None else ())


def trained(model: object, x: ArrayLike, y: ArrayLike, row_norm: float | None) -> Trained:
    """How the weights of a model came about; what cannot be known is refused."""
    if isinstance(model, FittedUnlearned):
        known = model.unlearning
        check_certified(known, model.certificate.subject)
        return Trained(known.training, model.released, model.answers, known.requests, model.schema, model)
    if isinstance(model, FittedLinear):
        if type(model) is not FittedLinear or model.exact:
            raise InputError("model", "must be a linear model that was trained once, without exact noise", model.form)
        check_certified(model.run, model.certificate.run)
        return Trained(model.run, model.released, model.answers, (), model.schema, model)
    if isinstance(model, tuple) and len(model) == 2 and type(model[0]) is Run:  # pyright: ignore
        run, weights = model[0], np.asarray(model[1], np.float64)
        count = run.loss.target_classes
        return Trained(run, Model(weights), Labels(tuple(range(count))) if count else Scores())
    return Trained(*minimised(model, np.asarray(x), np.asarray(y), row_norm))


def check_certified(described: Run | Unlearning, certified: object) -> None:
    """Refuse a model that says of itself what its certificate does not: more noise, or another training."""
    if described != certified:
        raise InputError("model", "must be described as its certificate says", None, "load it anew, or train again")


def places(remove: Sequence[int] | np.ndarray, records: int) -> tuple[int, ...]:
    """The places of removed records, each once, in order; anything else is refused."""
    given = np.asarray(remove)
    if given.ndim != 1 or given.size == 0 or given.dtype.kind not in "iu":
        raise InputError("remove", "must be a list of places of records, whole numbers", f"{given.dtype} of shape "
                         f"{given.shape}")
    if given.min() < 0 or given.max() >= records:
        raise InputError("remove", f"must name records of the data, 0 .. {records - 1}", None,
                         "is it the data set that the model was trained on?")
    gone = tuple(np.unique(given).tolist())
    if len(gone) == records:
        raise InputError("remove", "must leave some records", None, "delete the model instead")
    return gone


def check_classes(target: np.ndarray, gone: tuple[int, ...]) -> None:
    """Refuse to remove all records of a class: the model would go on to name a class that nobody is of."""
    if target.dtype.kind in "iu" and not set(np.unique(target)) <= set(np.unique(np.delete(target, list(gone)))):
        raise InputError("remove", "must leave a record of every class", None,
                         "train anew without the class, which is then no answer any more")


def left(data: tuple[np.ndarray, np.ndarray], gone: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The records that stay, in order: what the next request is made on."""
    rows, target = (np.delete(part, list(gone), axis=0) for part in data)
    return rows, target

