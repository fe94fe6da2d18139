"""`forget`: from a trained model and records to remove to a model certified as if it never saw
them."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from lastiterate.accounting.certificate_subject import UNNAMED, format_rounded_up
from lastiterate.accounting.guarantee import Guarantee
from lastiterate.accounting.unlearning import Unlearning, format_count
from lastiterate.analysis.unlearning import Continued, Training
from lastiterate.data.schema import Schema
from lastiterate.engine import TrainedWeights, execute
from lastiterate.engine.preprocessing import SLICE, prepare_rows, target_offset
from lastiterate.engine.random import Key
from lastiterate.engine.streaming.execution import check_linear, continue_streaming
from lastiterate.engine.streaming.source import Source, check_streams, first_record
from lastiterate.errors import InputError, NotCertified
from lastiterate.lazy import accept_old_names
from lastiterate.ledger.ledger import Ledger
from lastiterate.planning.task import automatic_delta
from lastiterate.planning.unlearning_plans import PASSES, ForgettingPlan, plan_unlearning, private
from lastiterate.release.fitted_linear import FittedLinear, FittedUnlearned, run_for_scores
from lastiterate.release.fitted_linear import read as read
from lastiterate.release.folder import to_path
from lastiterate.release.ledger_charge import Charging, make_charging
from lastiterate.release.model_kinds import UNLEARNED
from lastiterate.release.pipeline import finish
from lastiterate.release.reduced_data import (
    ReducedSource,
    ZeroedSource,
    check_classes,
    check_classes_of,
    drop_records,
)
from lastiterate.release.released_model import ReleasedModel
from lastiterate.release.ridge_minimiser import read_minimiser, with_indices
from lastiterate.release.score_meaning import Answers, Labels, Scores
from lastiterate.release.training_request import (
    Budget,
    LazyRecords,
    Progress,
    TrainingRequest,
    is_source,
)
from lastiterate.release.verification import load
from lastiterate.run.preprocessing import columns
from lastiterate.run.run import Run
from lastiterate.run.validation import check_kept

# A trained model that is to forget: checks and continued training.


@dataclass(frozen=True, eq=False)
class ForgettingSource:
    """The model that is to forget, and the positions of the records that it forgets, in the data
    that are given."""

    model: TrainedWeights
    removed: tuple[int, ...]


def check(order: TrainingRequest) -> TrainingRequest:
    """Refuse checkpoints and seeds of streams, and data of another size than the remaining records
    of the training."""
    subject = _subject(order)
    order.charging.without_checkpoint("while a model forgets")
    in_pieces = is_source(order.data)
    if isinstance(order.data, LazyRecords):
        raise InputError(
            "data", "must be arrays or a source where a model forgets", None, "load them as arrays"
        )
    if isinstance(subject.training, Run) and subject.training.nominal:
        raise InputError(
            "model",
            "must not be trained under add-remove: it is compared with one of the same public "
            "number of records",
            subject.training.adjacency,
            "train with zero-out what is to forget",
        )
    data = order.data if in_pieces else tuple(map(np.asarray, order.data))
    named = len(set(order.model.removed)) if isinstance(order.model, ForgettingSource) else 0
    if named != subject.requests[-1].removed:
        raise InputError(
            "remove",
            f"must name the {format_count(subject.requests[-1].removed, 'record')} of the certificate",
            named,
        )
    left = subject.training.n - subject.removed + subject.requests[-1].removed
    forms = (
        (len(data),) * 2
        if in_pieces
        else (len(data[0]) if data[0].ndim == 2 else 0, *data[1].shape)
    )
    if forms != (left, left):
        raise InputError(
            "data",
            f"must hold the {left} records that are left of those that the model was trained on",
            len(data)
            if in_pieces
            else f"rows of shape {data[0].shape} and targets of shape {data[1].shape}",
            "give the same data, without the records that were removed before; where training kept "
            "one row of each person, keep the same rows (lastiterate forget --unit COLUMN, "
            "lastiterate.select_unit_rows)",
        )
    if in_pieces:
        check_linear(order.data)
        width, wanted = first_record(order.data)[0].shape[1], _features(order, subject)
        if width != wanted:
            raise InputError(
                "data",
                f"must have the {wanted} features of the model",
                width,
                "is it the data set that the model was trained on?",
            )
        check_streams(subject.requests[-1].run)
    return replace(order, data=data)


def _features(order: TrainingRequest, subject: Unlearning) -> int:
    """Features of a row before the model prepares it."""
    return (
        order.model.model.weights.shape[1] - 1 - columns(run_for_scores(subject).preprocessing, 0)
    )


def _subject(order: TrainingRequest) -> Unlearning:
    subject = order.certificate.subject
    if not isinstance(subject, Unlearning) or not isinstance(order.model, ForgettingSource):
        raise InputError(
            "certificate", "must be about forgetting", subject.word, "lastiterate.forget makes one"
        )
    return subject


def fit(order: TrainingRequest, key: Key | None) -> FittedUnlearned:
    """Continue from the weights on rows (m, d) and targets (m,), those of the removed records set
    to zero.

    **Guarantee:** a removed record's row and answer are 0 before anything is computed, and so is
    its gradient.
    """
    subject, before = _subject(order), order.model
    training, run = subject.training, subject.requests[-1].run
    if is_source(order.data):
        removed = np.array(before.removed)
        records = ZeroedSource(order.data, training, before.model.released, removed, run.n)
        weights = continue_streaming(
            run, records, before.model.weights, key, order.progress, order.scratch
        )
    else:
        weights = _continue_in_memory(order, training, run, key)
    assert order.answers is not None
    return FittedUnlearned(
        proof=order.certificate,
        delta=order.delta,
        schema=order.schema,
        run=run_for_scores(subject),
        released=TrainedWeights(weights, before.model.released),
        answers=order.answers,
        unlearning=subject,
    )


def _continue_in_memory(
    order: TrainingRequest, training: Training, run: Run, key: Key | None
) -> np.ndarray:
    before, (rows, target) = order.model, order.data
    if isinstance(training, Run):
        rows = np.array(rows)
        rows[list(before.removed)] = 0
        rows = _prepare_in_slices(rows, training, before.model.released)
        offset = target_offset(training, before.model.released)
        target = target if offset == 0 else target - offset
    rows, target, gone = zero_removed(rows, target, before.removed, run.n)
    return execute(
        run, rows, target, key, order.progress, absent=gone, initial=before.model.weights
    ).weights


def _prepare_in_slices(
    rows: np.ndarray, training: Run, released: tuple[np.ndarray, ...]
) -> np.ndarray:
    """Rows as training prepared them, as many at once as there: each of its parts makes copies."""
    prepared = np.empty((0, 0))
    for first in range(0, len(rows), SLICE):
        part = prepare_rows(rows[first : first + SLICE], training.preprocessing, released)
        if first == 0:
            prepared = np.empty((len(rows), part.shape[1]), part.dtype)
        prepared[first : first + SLICE] = part
    return prepared


def zero_removed(
    rows: np.ndarray, target: np.ndarray, removed: tuple[int, ...], n: int
) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Return rows and targets of ``n`` positions, zero where a record is removed or missing, and
    these positions."""
    empty = n - len(rows)
    gone = [*removed, *range(len(rows), n)]
    rows = np.concatenate((rows, np.zeros((empty, rows.shape[1]), rows.dtype)))
    target = np.concatenate((target, np.zeros(empty, target.dtype)))
    rows[gone], target[gone] = 0, 0
    return rows, target, gone


# ``forget``: a trained model and records to remove give a model that is certified as if it had
# never seen them.

NO_LEDGER = "nobody compared the data with those that the model was trained on: there is no ledger that knows them"


@dataclass(frozen=True, eq=False)
class TrainingHistory:
    """A model that may forget: how its weights came about, the weights, what was forgotten before."""

    training: Training
    weights: TrainedWeights
    answers: Answers
    earlier: tuple[Continued, ...] = ()
    schema: Schema | None = None
    model: FittedLinear | None = None


@accept_old_names("forget", passes="epochs")
def forget(
    model: object,
    x: ArrayLike | Source,
    y: ArrayLike | None = None,
    *,
    remove: Sequence[int] | np.ndarray,
    epsilon: float,
    delta: float | None = None,
    row_norm: float | None = None,
    epochs: int = PASSES[-1],
    ledger: Ledger | str | Path | None = None,
    dataset: str | None = None,
    seed: int | None = None,
    progress: Progress | None = None,
    scratch: str | Path | None = None,
) -> FittedUnlearned:
    """Continue a model without some records, until it is close to never having seen them.

    Parameters
    ----------
    model : Fitted, path, estimator, or pair of Run and array_like
        Linear model: from `train`, `load` or `forget`; its folder; a fitted estimator; a fitted
        ``sklearn.linear_model.LogisticRegression`` with a ridge and without an intercept; or a run
        and its weights (k, d + 1), with any noise or none.
    x : array_like, shape (m, d), or source of records
        Rows that it was trained on, in the same order, without those that it forgot before. A
        source, such as `lastiterate.data.stream` gives of a file larger than memory, holds rows and
        targets, and is read in pieces.
    y : array_like, shape (m,), optional
        Labels or class indices, as the training got them. A source has them.
    remove : sequence of int
        Positions of the rows to forget.
    epsilon : float
        Budget of the difference, in natural logarithms.
    delta : float, optional
        Budget of the difference; by default a power of ten of at most 1/(10 n).
    row_norm : float, optional
        Public bound on the norm of rows, for a scikit-learn model.
    epochs : int
        Most epochs over the remaining data.
    ledger : Ledger or path, optional
        Ledger that the training was charged to. The steps are charged for everybody who stays, and
        other data than the training's are refused.
    dataset : str, optional
        Name of the data set in the ledger.
    seed : int, optional
        Seed for tests only.
    progress : callable, optional
        ``progress(steps_done, steps, seconds)``, called from time to time.
    scratch : path, optional
        Folder for encrypted temporary files of a source.

    Returns
    -------
    FittedUnlearned
        Model with ``certificate``, ``predict`` and ``save``.

    Raises
    ------
    NotCertified
        If no theorem says that such a training forgets. Nothing is released.
    InputError
        If input is bad. Nothing is released.

    Notes
    -----
    **Guarantee:** the new weights are (epsilon, delta)-indistinguishable from those of the same
    training without the removed records, followed by the same steps. Earlier models stay as they
    are, and are not covered. See docs/theorems/forgetting for the theorem and its source.

    Examples
    --------
    >>> import numpy as np
    >>> import lastiterate as li
    >>> x = np.random.default_rng(0).normal(size=(200, 3))
    >>> y = (x[:, 0] > 0).astype(int)
    >>> run = li.Run(n=200, steps=10, step_size=0.5, loss=li.Logistic(row_norm=2.0, ridge=0.1))
    >>> model = li.train(run, (x, y), epsilon=1.0, delta=1e-4)
    >>> after = li.forget(model, x, y, remove=[3], epsilon=0.5, delta=1e-4)
    >>> after.certificate.epsilon(1e-4) <= 0.5
    True
    """
    if is_source(x) != (y is None):
        raise InputError(
            "y",
            "must be left out where x is a source, which has the targets, and be given otherwise",
            None if y is None else type(y).__name__,
            "give forget(model, x, y, remove=...), or forget(model, source, remove=...)",
        )
    model = load(model) if isinstance(model, str | Path) else getattr(model, "fitted_", model)
    data: Any = x
    if y is None:
        gone = find_places(remove, len(data))
        check_forgets(model, len(gone), delta)
        before = _read_training_of_source(model, data)
        check_classes_of(data, gone, before.training.loss.target_classes or 0)
    else:
        check_kept("data", (x, y))
        rows, target = np.asarray(x), np.asarray(y)
        check_forgets(model, len(find_places(remove, len(target))), delta)
        before = read_training(model, rows, target, row_norm)
        data, gone = (rows, with_indices(model, target)), find_places(remove, len(rows))
        check_classes(data[1], gone, before.training.loss.target_classes or 0)
    stated = automatic_delta(before.training.n) if delta is None else delta
    plan = plan_forgetting(before, len(gone), epsilon=epsilon, delta=stated, most=epochs)
    charging = make_charging(ledger=ledger, dataset=dataset, purpose="forget")
    place = None if scratch is None else to_path(scratch, "scratch")
    after = finish(
        UNLEARNED,
        make_order(
            before,
            plan,
            data,
            gone,
            epsilon,
            stated,
            charging,
            seed,
            progress,
            scratch=place,
        ),
    )
    assert isinstance(after, FittedUnlearned)
    return after


def plan_forgetting(
    before: TrainingHistory, removed: int, *, epsilon: float, delta: float, most: int
) -> ForgettingPlan:
    """The plan for a model; where nothing says that it forgets, what its own differential privacy
    says."""
    features = before.weights.weights.shape[1] - 1
    try:
        return plan_unlearning(
            before.training,
            before.earlier,
            removed,
            features,
            epsilon=epsilon,
            delta=delta,
            most=most,
        )
    except NotCertified as error:
        own = (
            private(before.training)
            if isinstance(before.training, Run) and not before.earlier
            else None
        )
        raise NotCertified(
            f"{error}{with_nothing_done(own, removed, delta)}; models that "
            f'algorithm="forgetting-sgd" '
            "trained forget"
        ) from None


def with_nothing_done(own: Guarantee | None, removed: int | None, delta: float) -> str:
    """What a model's own differential privacy says of so many records (``None``: of any one of
    them)."""
    alone = None if own is None else own.with_adjacency("zero-out")
    bound = math.inf if alone is None else alone.group(removed or 1, delta)
    which = "each of these records" if removed is None else "these records together"
    return (
        ""
        if not math.isfinite(bound)
        else (
            f"; its own differential privacy gives epsilon {format_rounded_up(bound)} at "
            f"delta {delta:g} for {which}, with nothing done"
        )
    )


def check_forgets(
    model: object,
    removed: int | None = None,
    delta: float | None = None,
    *,
    data: str = "FILE",
) -> None:
    """Refuse trained models of other kinds than those that may forget: with the reason, and with
    what holds anyway. ``data``: the data file, for the command that trains again."""
    if isinstance(model, FittedLinear) and not isinstance(model, FittedUnlearned):
        _check_one_row(model, delta, data)
    if isinstance(model, ReleasedModel) and not isinstance(model, FittedLinear | FittedUnlearned):
        own = with_nothing_done(model.certificate, removed, model.delta if delta is None else delta)
        raise NotCertified(
            f"nothing says that a {model.kind} model forgets: steps on the records that stay bring "
            f"two "
            "trainings together where losses are convex, with a ridge or in a bounded domain, and "
            "two "
            "trainings of a network may stay as far apart as they are; train again without "
            f"them{own}"
        )


def _check_one_row(model: FittedLinear, delta: float | None, data: str) -> None:
    """Refuse a model that protects several rows of a person together."""
    rows = max(model.run.rows_per_unit, model.run.rows_per_record)
    if rows == 1:
        return
    stated = model.delta if delta is None else delta
    alone = model.certificate.with_adjacency("zero-out")
    bound = math.inf if alone is None else alone.epsilon(stated)
    own = (
        ""
        if not math.isfinite(bound)
        else (
            "; with nothing done, its own differential privacy gives epsilon "
            f"{format_rounded_up(bound)} at delta {stated:g} for each of them"
        )
    )
    whose = model.certificate.unit or UNNAMED
    column = "COLUMN" if whose == UNNAMED else shlex.quote(whose)
    raise InputError(
        "model",
        f"must use one row of each {whose}, since only single rows are forgotten; this one uses up "
        f"to {rows}",
        None,
        f"train again without them: delete all of their rows, then lastiterate train "
        f"{shlex.quote(data)} --unit {column} --rows-per-unit {rows} --epsilon EPSILON, which is one "
        f"more release (--ledger charges it){own}",
    )


def make_order(
    before: TrainingHistory,
    plan: ForgettingPlan,
    data: Any,
    gone: tuple[int, ...],
    epsilon: float,
    delta: float,
    charging: Charging,
    seed: int | None = None,
    progress: Progress | None = None,
    of_persons: bool = False,
    scratch: Path | None = None,
) -> TrainingRequest:
    """What the pipeline executes; the ledger is charged for those who stay.

    ``data``: rows and targets, or a source of their pieces, with scratch files in the folder
    ``scratch``. ``of_persons``: whether the data hold one row of each person.
    """
    charged = None
    if charging.ledger is not None:
        charged = plan.everybody_else()
        if charged is None:
            raise InputError(
                "ledger",
                "cannot be charged for steps without noise, which keep nobody's privacy",
                None,
                "forget a model that was trained with noise, or leave the ledger out",
            )
        charging.compare(before.model, data)
    named = "" if before.model is None else before.model.certificate.unit
    in_pieces = is_source(data)
    count = len(data if in_pieces else data[0])
    return TrainingRequest(
        data=data,
        unit=np.arange(count) if of_persons or named else None,  # one row of each
        budget=Budget(epsilon, delta),
        proof=plan.certificate,
        delta=delta,
        model=ForgettingSource(before.weights, gone),
        seed=seed,
        progress=progress,
        charging=charging,
        answers=before.answers,
        schema=before.schema,
        charged=charged,
        kept=ReducedSource(data, np.array(gone)) if in_pieces else drop_records(data, gone),
        scratch=scratch,
        caveats=(NO_LEDGER,) if charging.ledger is None else (),
    )


def read_training(
    model: object, x: ArrayLike, y: ArrayLike, row_norm: float | None
) -> TrainingHistory:
    """How the weights of a model came about; what cannot be known is refused."""
    if isinstance(model, FittedUnlearned):
        known = model.unlearning
        check_certified(known, model.certificate.subject)
        return TrainingHistory(
            known.training, model.released, model.answers, known.requests, model.schema, model
        )
    if isinstance(model, FittedLinear):
        if type(model) is not FittedLinear or model.exact:
            raise InputError(
                "model",
                "must be a linear model that was trained once, without exact noise",
                model.form,
            )
        check_certified(model.run, model.certificate.run)
        return TrainingHistory(model.run, model.released, model.answers, (), model.schema, model)
    if isinstance(model, tuple) and len(model) == 2 and type(model[0]) is Run:  # pyright: ignore
        run, weights = model[0], np.asarray(model[1], np.float64)
        count = run.loss.target_classes
        return TrainingHistory(
            run, TrainedWeights(weights), Labels(tuple(range(count))) if count else Scores()
        )
    return TrainingHistory(*read_minimiser(model, np.asarray(x), np.asarray(y), row_norm))


def _read_training_of_source(model: object, source: Source) -> TrainingHistory:
    """``read_training`` of a model whose records come in pieces; refuses rows that another schema
    makes."""
    if type(model) is not tuple and not isinstance(model, FittedLinear):
        raise InputError(
            "model",
            "must be a linear model of lastiterate, or a pair (run, weights), where records are "
            "read in pieces",
            type(model).__name__,
            "give rows and labels as arrays: forget(model, x, y, remove=...)",
        )
    check_linear(source)
    before = read_training(cast(object, model), (), (), None)
    given, schema = getattr(source, "schema", None), before.schema
    if (
        schema is not None
        and isinstance(given, Schema)
        and replace(given, headed=schema.headed, header=schema.header) != schema
    ):
        raise InputError(
            "x",
            "must be read through the schema of the model",
            None,
            "give lastiterate.data.stream(path, model.schema)",
        )
    return before


def check_certified(described: Run | Unlearning, certified: object) -> None:
    """Refuse a model that says of itself what its certificate does not: more noise, or another
    training."""
    if described != certified:
        raise InputError(
            "model",
            "must be described as its certificate says",
            None,
            "load it again, or train again",
        )


def find_places(remove: Sequence[int] | np.ndarray, records: int) -> tuple[int, ...]:
    """Return the positions of removed records, each once, in order; refuse anything else."""
    given = np.asarray(remove)
    if given.ndim != 1 or given.size == 0 or given.dtype.kind not in "iu":
        raise InputError(
            "remove",
            "must be a list of integers, the positions of records",
            f"{given.dtype} of shape {given.shape}",
        )
    if given.min() < 0 or given.max() >= records:
        raise InputError(
            "remove",
            f"must name records of the data, 0 .. {records - 1}",
            None,
            "is it the data set that the model was trained on?",
        )
    gone = tuple(np.unique(given).tolist())
    if len(gone) == records:
        raise InputError("remove", "must leave some records", None, "delete the model instead")
    return gone
