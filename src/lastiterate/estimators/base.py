"""What both estimators share: plan, certify, execute; scikit-learn's protocol around it."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from lastiterate.accounting.calibration import calibrate
from lastiterate.accounting.certificate import Certificate
from lastiterate.engine import execute, scores, seeded_key
from lastiterate.errors import InputError
from lastiterate.estimators import repeated
from lastiterate.planning.planner import Choice, Task, automatic_delta, consider
from lastiterate.run.adjacency import check_same
from lastiterate.run.losses import HuberRidge, Logistic, Softmax
from lastiterate.run.run import Run

SEED_CAVEAT = "the caller gave the seed: whoever knows it can subtract the noise"
CLASSES_CAVEAT = "the set of labels was taken from the data and is treated as public"


class PrivateLinear(BaseEstimator):
    """Budget handling, training and the released state; subclasses add targets and predictions."""

    epsilon: float
    delta: Any
    row_norm: float
    adjacency: Any
    random_state: int | None
    time_budget: float
    run: Run | None

    def _train(self, features: np.ndarray, target: np.ndarray, classes: int, caveats: list[str], progress: Any) -> None:
        delta = automatic_delta(len(features)) if self.delta == "auto" else self.delta
        if isinstance(delta, str):
            raise InputError("delta", "must be a number in (0, 1) or \"auto\"", delta)
        task = Task(len(features), features.shape[1], classes, self.row_norm)
        self.choice_: Choice | None = None
        if self.run is None:
            self.choice_ = consider(task, epsilon=self.epsilon, delta=delta, adjacency=self.adjacency,
                                    time_budget=self.time_budget)
            certificate = self.choice_.best.certificate
        else:
            check_run(self.run, task, self.adjacency)
            certificate = calibrate(self.run, epsilon=self.epsilon, delta=delta)
        if self.random_state is not None:
            caveats.append(SEED_CAVEAT)
        seeded = self.random_state is not None
        key = seeded_key(int(check_random_state(self.random_state).randint(2**31))) if seeded else None
        rows = repeated.REMINDER.sketch(features)
        repeated.REMINDER.before(rows)
        self.model_ = execute(certificate.run, features, target, key, progress)
        self.run_ = certificate.run
        self.delta_ = delta
        self.certificate_ = Certificate(run=certificate.run, verdicts=certificate.verdicts,
                                        at_least=certificate.at_least, preparation=certificate.preparation,
                                        caveats=tuple(caveats))
        self.n_iter_ = certificate.run.steps
        repeated.REMINDER.after(rows)

    def _scores(self, features: Any) -> np.ndarray:
        check_is_fitted(self, "model_")
        rows = validate_data(self, features, reset=False, dtype=[np.float64, np.float32])
        return scores(self.run_, self.model_, rows)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = self.random_state is None
        return tags


def check_run(run: Run, task: Task, adjacency: str) -> None:
    """Refuse a run that describes other data than these."""
    loss = run.loss
    kinds = {0: HuberRidge, 2: Logistic}
    if run.n != task.n:
        raise InputError("run", f"must describe these n = {task.n} records", run.n)
    if not isinstance(loss, kinds.get(task.classes, Softmax)) or getattr(loss, "classes", task.classes) != task.classes:
        wanted = kinds.get(task.classes, Softmax).__name__
        raise InputError("run", f"must have the loss of this task, {wanted} of {task.classes} classes",
                         type(loss).__name__)
    check_same(run.adjacency, adjacency)
    if run.release != "last":
        raise InputError("release", "must be 'last' for an estimator, which predicts with one model", run.release,
                         "use lastiterate.engine.execute for all iterates")


def public_labels(classes: Any, seen: np.ndarray, caveats: list[str]) -> np.ndarray:
    """The public label set: given, or taken from the data with a warning and a caveat."""
    if classes is None:
        warnings.warn("classes=None: the labels found in y are treated as public; pass classes= to avoid it",
                      UserWarning, stacklevel=3)
        caveats.append(CLASSES_CAVEAT)
        return seen
    labels = np.unique(np.asarray(classes))
    unknown = np.setdiff1d(seen, labels)
    if unknown.size:
        raise InputError("y", "must hold only the public classes", None, "add the missing label to classes=")
    return labels
