"""What users call, audited as a whole: private preparation with its noise, planning, encoding, and the steps.

Models are trained one by one. What is attacked is everything that is released: weights, and what the preparation found.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from lastiterate.accounting.certificate import Certificate
from lastiterate.accounting.exact_steps import ExactRun
from lastiterate.audit.neighbours import Train
from lastiterate.engine import Model, execute
from lastiterate.engine.exact_sums import execute_exactly
from lastiterate.engine.gaussian_noise import Key
from lastiterate.engine.prepare import linear_loss
from lastiterate.engine.unit_arrays import UnitRecords
from lastiterate.engine.unit_gradients import execute_units
from lastiterate.errors import InputError
from lastiterate.run.preparation import TopEigenvalue
from lastiterate.run.run import Run
from lastiterate.run.stable import StableSteps

AT_ONCE = 64
"""Models in a batch, which are trained one after the other."""
QUICK = 50_000
"""Records times steps of runs whose models are trained one after the other."""
RECORDS, COLUMNS = 60, 3
"""Size of the made-up data where nothing is said."""


WHOLE = "the estimator's fit was attacked as a whole, under replace-one"
EXACT = "the exact noise was attacked as it is drawn, model by model"


def audited_whole(run: Run) -> bool:
    """Whether models are trained with their preparation: where that is quick enough for hundreds, and an absent record
    can be kept out of every part (the eigenvalue's intercept cannot)."""
    measured = any(isinstance(part, TopEigenvalue) for part in run.prelude)
    return run.n * run.steps * run.rows_per_record <= QUICK and type(run.step_size) is not StableSteps and not measured


def flat(model: Model) -> np.ndarray:
    """All released numbers, (p,)."""
    return np.concatenate([np.ravel(part).astype(np.float64) for part in (model.weights, *model.released)])


def alone(run: Run) -> bool:
    """Whether a run has more than steps on rows, so that its models are trained one by one."""
    return bool(run.prelude) or run.calibration is not None or run.rows_per_record > 1


def one_by_one(run: Run, *, exact: bool = False) -> Train:
    """The whole run, private preparation and calibration included; (models, p). A record that is a unit has its row in
    all of its places; ``exact``: on exact sums with exact noise."""
    def model(features: np.ndarray, target: np.ndarray, key: Key, absent: Sequence[int]) -> Model:
        if run.rows_per_record > 1:
            return execute_units(run, as_units(run, features, target, absent), key)
        return (execute_exactly if exact else execute)(run, features, target, key, absent=absent)

    def train(features: np.ndarray, target: np.ndarray, keys: np.ndarray, absent: Sequence[int] = ()) -> np.ndarray:
        return np.stack([flat(model(features, target, np.asarray(key), absent)) for key in keys])

    return train


def as_units(run: Run, features: np.ndarray, target: np.ndarray, absent: Sequence[int]) -> UnitRecords:
    """Records whose places hold one row each; those that are absent have no place."""
    present = np.ones((run.n, run.rows_per_record), bool)
    present[list(absent)] = False
    rows, answers = (np.repeat(np.asarray(part)[:, None], run.rows_per_record, axis=1) for part in (features, target))
    return UnitRecords(np.where(present[..., None], rows, 0), np.where(present, answers, 0), present)


@dataclass(frozen=True, eq=False)
class EndToEnd:
    """An estimator of this library on made-up data: its run, its certificate, and its ``fit`` as what is audited."""

    run: Run
    certificate: Certificate
    columns: int | None
    train: Train
    said: str


def exactly(subject: ExactRun, features: int | None) -> EndToEnd:
    """A linear run on exact sums with exact noise, one model after the other."""
    run = subject.run
    if run.n * run.steps > QUICK:
        raise InputError("exact noise", f"is audited for at most {QUICK} records times steps", run.n * run.steps,
                         "audit the same run with fewer records or steps")
    linear_loss(run)
    return EndToEnd(run, Certificate(subject), features, one_by_one(run, exact=True), EXACT)


def end_to_end(estimator: Any, n: int | None, features: int | None) -> EndToEnd:
    """``estimator`` as it is fitted on ``n`` records: planning, preparation, encoding and training.

    It is audited under replace-one: a record that is zeroed is no row that could be handed to ``fit``.
    """
    from sklearn.base import clone  # pyright: ignore

    if not hasattr(estimator, "fit") or not hasattr(estimator, "adjacency"):
        raise InputError("audit", "needs a Run or one of lastiterate's estimators", type(estimator).__name__,
                         "models and certificates have a .run, and lastiterate.load(folder).run is a folder's")
    n, columns = RECORDS if n is None else n, COLUMNS if features is None else features
    labels = None
    if hasattr(estimator, "classes"):
        if estimator.classes is None:
            raise InputError("classes", "must be given: labels taken from the data are no part of the claim", None,
                             "pass the public labels with classes=")
        labels = np.unique(np.asarray(estimator.classes))

    def fitted(rows: np.ndarray, target: np.ndarray, seed: int) -> Any:
        made = cast(Any, clone(estimator)).set_params(adjacency="replace-one", random_state=seed, ledger=None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return made.fit(rows, target if labels is None else labels[np.asarray(target)])

    def train(rows: np.ndarray, target: np.ndarray, keys: np.ndarray) -> np.ndarray:
        return np.stack([flat(fitted(rows, target, int(key[0]) >> 1).model_) for key in np.asarray(keys)])

    target = np.arange(n) % (1 if labels is None else len(labels))
    first = fitted(np.ones((n, columns)), target, 0)
    if type(first.run_) is not Run:
        raise InputError("estimator", "must plan a run of steps", type(first.run_).__name__, "give it run=")
    return EndToEnd(first.run_, first.certificate_, columns, train, WHOLE)
