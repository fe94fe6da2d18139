"""Which estimators of scikit-learn may fit one of ours, by the functions that are calling it.

A certificate counts every record once, with weight 1, in a data set whose size is public. What
resamples or weights records, chooses them by what others look like, or seeds a fit breaks that, and
nothing shows it in the rows that are handed on: equal rows may be equal people. The functions of
scikit-learn that are calling ``fit`` show it, in its worker processes and threads too. The table
says what is known to be sound, and every other module of scikit-learn is refused.

It cannot be noticed what other libraries do in plain functions, rows that were resampled before
``fit`` was called, and a splitter of the caller's own that names a record twice outside of
scikit-learn's cross-validation.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, cast

import numpy as np
from sklearn.base import BaseEstimator  # pyright: ignore

from lastiterate.errors import InputError

KNOWN = (
    "sklearn.base",
    "sklearn.utils",
    "sklearn.pipeline",
    "sklearn.compose",
    "sklearn.frozen",
    "sklearn.callback",
    "sklearn.model_selection",
    "sklearn.feature_selection",
    "sklearn.multioutput",
    "sklearn.multiclass",
    "sklearn.ensemble._voting",
    "sklearn.ensemble._stacking",
    "sklearn.ensemble._base",
    "sklearn.calibration",
)
"""Modules of scikit-learn that hand every record on once, in every fit."""
HANDED_ON = ("sklearn.base", "sklearn.utils", "sklearn.pipeline", "sklearn.compose")
"""Modules that hand parameters on which somebody else sets."""
REFUSED = {
    "sklearn.ensemble._bagging": "draws records several times into one fit, and the seed of every "
    "fit from 31 bits",
    "sklearn.ensemble._weight_boosting": "weights records by the errors of earlier fits, and draws "
    "seeds from 31 bits",
    "sklearn.linear_model._ransac": "chooses records by what a model of others says of them",
    "sklearn.semi_supervised._self_training": "chooses records, and how many, by what a model says "
    "of them",
    "sklearn.impute._iterative": "fills cells of a record in from other records",
}
"""Those that are known not to, and why not."""
REFUSED_FUNCTIONS = {"_fit_ovo_binary": "fits the records of two labels, whose number is private"}
"""Functions of a known module that do not."""
TRAINED_ON = ("train", "train_idx")
"""What scikit-learn's functions call the positions of the records of one fold."""
LEARNERS = {
    "sklearn.calibration": "CalibratedClassifierCV",
    "sklearn.model_selection._classification_threshold": "TunedThresholdClassifierCV",
    "sklearn.ensemble._stacking": "a stack's final estimator",
    "sklearn.ensemble._gb": "gradient boosting",
    "sklearn.ensemble._weight_boosting": "boosting",
    "sklearn.semi_supervised._self_training": "SelfTrainingClassifier",
    "sklearn.linear_model._ransac": "RANSACRegressor",
    "sklearn.multioutput": "a chain's next link",
}
"""Modules whose fits learn from what a fitted model predicts, and who that is."""
RECODED = ("predict_proba", "predict_log_proba", "decision_function")
"""Methods for which cross_val_predict gives labels as 0 to k - 1."""


def check_callers(estimator: object) -> None:
    """Refuse a fit by an estimator of scikit-learn that is not known to hand every record on once
    and unweighted."""
    for frame in callers():
        module, function = _module(frame), frame.f_code.co_name
        if not module.startswith("sklearn."):
            _check_steps(frame)
            continue
        why = REFUSED.get(module, REFUSED_FUNCTIONS.get(function))
        if why is None and not _below(module, KNOWN):
            why = "is not known to hand every record on once, with weight 1"
        if why is None and any(_twice(frame.f_locals.get(name)) for name in TRAINED_ON):
            why = "is given a splitter that names a record twice"
        if why is not None:
            raise _refusal(type(estimator).__name__, _name(frame), why)
        _check_steps(frame)


def learner_from_predictions() -> str | None:
    """What is being fitted, by scikit-learn, on what a fitted estimator predicts; None where
    nothing is."""
    for frame in callers():
        name = LEARNERS.get(_module(frame))
        if (
            name is not None
            and "fit" in frame.f_code.co_name
            and _name(frame) != "FixedThresholdClassifier"
        ):
            return _name(frame) if isinstance(frame.f_locals.get("self"), BaseEstimator) else name
    return None


def check_seed(params: dict[str, Any]) -> None:
    """Refuse a ``random_state`` that an ensemble of scikit-learn sets: 31 bits, of NumPy's global
    generator where the ensemble has none, which repeat for whoever seeds that."""
    if params.get("random_state") is None:
        return
    for frame in callers():
        module = _module(frame)
        if not module.startswith("sklearn.") or _below(module, ("sklearn.model_selection",)):
            return  # the caller's own, or one of a grid that the caller gave
        if not _below(module, HANDED_ON):
            raise InputError(
                "random_state",
                "must not be set by an ensemble, which draws it from 31 bits of NumPy's "
                "generator: noise from it can be guessed, and repeats",
                _name(frame),
                "fit the estimator by itself",
            )


def check_recoded(given: np.ndarray, labels: np.ndarray, *, in_schema: bool) -> None:
    """Refuse labels as 0 to k - 1 that scikit-learn made of the user's own, which are ``labels``."""
    who, binary = None, False
    for frame in callers():
        module, method = _module(frame), frame.f_locals.get("method")
        binary = module == "sklearn.multiclass"
        if binary or module == "sklearn.ensemble._base":
            who = _name(frame)
        elif frame.f_code.co_name == "_fit_and_predict" and method in RECODED:
            who = f'cross_val_predict(method="{method}")'
        if who is not None:
            break
    if who is None or given.dtype.kind not in "iuf":
        return
    codes = list(range(len(labels)))
    if binary:
        codes = [-1, 1] if (given < 0).any() else [0, 1]
    if not np.isin(given, codes).all():
        return
    few = len(codes) < 10
    stated = f"classes={codes}" if few else f"classes=range({len(codes)})"
    if in_schema:
        texts = ", ".join(f'"{code}"' for code in (codes if few else codes[:2]))
        stated = f"a copy of the schema with classes = [{texts}{'' if few else ', ...'}]"
    listed = sorted(labels.tolist()) if few else "sorted(classes)"
    y = "as it is" if binary else f"as np.searchsorted({listed}, y)"
    raise InputError(
        "y",
        f"must hold the public classes, and {who} of scikit-learn hands them on as numbers "
        f"from {codes[0]} to {codes[-1]}",
        None,
        f"give the estimator {stated}, and y {y}",
    )


def show_labels_of_codes(labels: np.ndarray) -> str:
    """How codes 0 to k - 1 become the user's own ``labels``, as Python."""
    listed = labels.tolist() if len(labels) < 10 else "classes"
    return f"where y counts them from 0, np.array({listed})[np.asarray(y, int)]"


class OwnSeed:
    """An estimator whose seed no ensemble of scikit-learn may set."""

    def set_params(self, **params: Any) -> Any:
        """Set parameters of this estimator, as in scikit-learn.

        Parameters
        ----------
        **params : object
            Parameters by name.

        Returns
        -------
        object
            The estimator.

        Raises
        ------
        InputError
            If an ensemble of scikit-learn tries to set the seed.
        """
        check_seed(params)
        return super().set_params(**params)  # type: ignore[misc]


def callers() -> Iterator[FrameType]:
    """The functions outside of this library that are calling it, the last one first."""
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        if not _below(_module(frame), ("lastiterate",)):
            yield frame
        frame = frame.f_back


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


def _below(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == one or module.startswith(one + ".") for one in packages)


def _name(frame: FrameType) -> str:
    """Who is fitting: the class of which this frame, or the next one around it, is a method; in a
    worker the module."""
    around: FrameType | None = frame
    while around is not None and _module(around).startswith(("sklearn.", "joblib.")):
        if isinstance(around.f_locals.get("self"), BaseEstimator):
            return type(around.f_locals["self"]).__name__
        around = around.f_back
    return _module(frame)


def _twice(positions: object) -> bool:
    """Whether positions of records name one twice; masks cannot."""
    if not isinstance(positions, np.ndarray | list):
        return False
    numbers: Any = np.asarray(cast(Any, positions))
    return numbers.dtype != bool and len(np.unique(numbers)) < numbers.size


def _check_steps(frame: FrameType) -> None:
    """Refuse a pipeline, of another library, one of whose steps makes records."""
    caller = frame.f_locals.get("self")
    steps: Any = getattr(caller, "steps", ()) if isinstance(caller, BaseEstimator) else ()
    for step in steps:
        if isinstance(step, tuple) and len(step) == 2 and hasattr(step[1], "fit_resample"):  # pyright: ignore
            raise _refusal("the estimator", type(step[1]).__name__, "draws or makes records")  # pyright: ignore


def _refusal(ours: str, who: str, why: str) -> InputError:
    return InputError(
        "estimator",
        f"must be fitted on every record once, with weight 1, and {who} {why}: a "
        f"certificate of {ours} would not hold",
        None,
        f"fit {ours} by itself, on all records",
    )
