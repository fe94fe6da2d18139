"""What the estimators share: scikit-learn's protocol around a fitted linear model."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from lastiterate.accounting.certificate import Certificate
from lastiterate.engine import Model
from lastiterate.errors import InputError
from lastiterate.models import linear
from lastiterate.models.custody import custody
from lastiterate.models.linear import Answers, Budget, FittedLinear
from lastiterate.planning.planner import Choice, Task
from lastiterate.run.run import Run

CLASSES_CAVEAT = "the set of labels was taken from the data and is treated as public"


class PrivateLinear(BaseEstimator):
    """Budget handling, training and the released state; subclasses add targets and predictions.

    After ``fit``: ``fitted_`` is the released model (``fitted_.save(folder)``), ``certificate_``, ``run_`` and
    ``delta_`` are its own, ``choice_`` the plans that were considered.
    """

    epsilon: float
    delta: Any
    row_norm: float
    adjacency: Any
    random_state: int | None
    time_budget: float
    run: Run | None
    ledger: Any
    dataset: str | None

    def _train(self, features: np.ndarray, target: np.ndarray, classes: int, answers: Answers, caveats: list[str],
               progress: Any) -> None:
        task = Task(len(features), features.shape[1], classes, self.row_norm)
        budget = Budget(self.epsilon, self.delta, self.adjacency, self.time_budget)
        plan = linear.planned(task, budget, self.run)
        seed = None if self.random_state is None else int(check_random_state(self.random_state).randint(2**31))
        guard = custody(ledger=self.ledger, dataset=self.dataset, purpose=type(self).__name__)
        self.fitted_: FittedLinear = linear.fit(plan.certificate, features, target, delta=plan.delta, answers=answers,
                                                seed=seed, caveats=tuple(caveats), progress=progress, custody=guard)
        guard.finish(self.fitted_)
        self.choice_: Choice | None = plan.choice
        self.delta_ = plan.delta
        self.n_iter_ = self.run_.steps

    @property
    def certificate_(self) -> Certificate:
        """The certificate of the released model."""
        return self._released.certificate

    @property
    def run_(self) -> Run:
        """The run that was accounted and executed."""
        return self._released.run

    @property
    def model_(self) -> Model:
        """Weights and what the private preparation released."""
        return self._released.released

    @property
    def _released(self) -> FittedLinear:
        if "fitted_" not in vars(self):
            raise AttributeError(f"this {type(self).__name__} is not fitted")
        return self.fitted_

    def _rows(self, features: Any) -> np.ndarray:
        check_is_fitted(self, "fitted_")
        return np.asarray(validate_data(self, features, reset=False, dtype=[np.float64, np.float32]))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = self.random_state is None
        return tags


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
