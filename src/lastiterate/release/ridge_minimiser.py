"""scikit-learn's ridge logistic regression as an exact minimiser: its description, and weights that
are moved to the minimum."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from lastiterate.engine import TrainedWeights
from lastiterate.errors import InputError
from lastiterate.release.score_meaning import Labels
from lastiterate.run.losses import Logistic, Softmax
from lastiterate.run.methods import NORM_SLACK, RidgeMinimiser

RESIDUAL = 0.01
"""The gradient that is left at the minimiser, relative to what one record can do to it."""
MOST_STEPS = 2000
FAR = 0.1
"""A part of the gradient at weights of 0: fitted weights with a larger one are no minimiser of
these data."""


def _is_logistic(model: object) -> bool:
    return type(model).__name__ == "LogisticRegression" and type(model).__module__.startswith(
        "sklearn.linear_model"
    )


def read_minimiser(
    model: Any, x: np.ndarray, y: np.ndarray, row_norm: float | None
) -> tuple[RidgeMinimiser, TrainedWeights, Labels]:
    """What a fitted ``LogisticRegression`` minimised, its weights (k, d + 1) and its labels.

    scikit-learn minimises C sum_i loss_i + |w|^2 / 2: the mean with a ridge of 1 / (C n). Its
    weights are moved to where the gradient is at most a hundredth of what one record can add to it;
    the bound counts with that. Errors: another estimator, an intercept (which has no ridge),
    weights of classes, rows longer than ``row_norm``, weights that are far from the minimum on
    these data.
    """
    if not _is_logistic(model):
        raise InputError(
            "model",
            "must be a linear model of lastiterate, a pair (run, weights) or a fitted "
            "sklearn.linear_model.LogisticRegression",
            type(model).__name__,
        )
    if not hasattr(model, "coef_"):
        raise InputError("model", "must be fitted", None)
    settings = model.get_params()
    wanted = {
        "fit_intercept": (False,),
        "class_weight": (None,),
        "penalty": ("l2", "deprecated"),
        "l1_ratio": (None, 0, 0.0),
        "dual": (False,),
    }
    for name, allowed in wanted.items():
        if settings.get(name, allowed[0]) not in allowed:
            raise InputError(
                f"{name} of the model",
                f"must be {allowed[0]}",
                settings[name],
                "fit it on rows with a constant column: an intercept has no ridge, and may move far"
                if name == "fit_intercept"
                else "fit it without",
            )
    longest = float(np.linalg.norm(np.asarray(x, np.float64), axis=1).max())
    if row_norm is None or not longest <= row_norm * (1 + NORM_SLACK):
        raise InputError(
            "row_norm",
            "must be a public bound on the norm of every row that the model was fitted on",
            row_norm,
            "scale rows to norm 1 before they are fitted, and state row_norm=1",
        )
    n, labels = len(x), tuple(value.item() for value in model.classes_)
    ridge = 1 / (float(settings["C"]) * n)
    loss = (
        Logistic(row_norm=row_norm, ridge=ridge, intercept=0.0)
        if len(labels) == 2
        else Softmax(classes=len(labels), row_norm=row_norm, ridge=ridge, intercept=0.0)
    )
    training = RidgeMinimiser(
        n=n, loss=loss, residual=RESIDUAL * loss.facts().fact("lipschitz") / n
    )
    rows, target, coefficients = (
        np.asarray(x, np.float64),
        with_indices(model, y),
        np.asarray(model.coef_, np.float64),
    )
    slope, first = (
        float(np.linalg.norm(mean_loss(training, rows, target, at)[1]))
        for at in (coefficients, np.zeros_like(coefficients))
    )
    if not slope <= max(FAR * first, training.residual / RESIDUAL):
        raise _no_minimiser()
    weights = polish_weights(training, rows, target, coefficients)
    return (
        training,
        TrainedWeights(np.column_stack((weights, np.zeros(len(weights))))),
        Labels(labels),
    )


def with_indices(model: Any, y: np.ndarray) -> np.ndarray:
    """Labels as indices of the classes of an estimator; others as they are."""
    if not _is_logistic(model):
        return y
    if not np.isin(y, model.classes_).all():
        raise InputError(
            "y", "must hold labels that the model was fitted on", None, "is it the same data set?"
        )
    return np.searchsorted(model.classes_, y)


def polish_weights(
    training: RidgeMinimiser, x: np.ndarray, y: np.ndarray, coefficients: np.ndarray
) -> np.ndarray:
    """Weights (k, d) with a gradient of at most ``training.residual``, from those that a solver
    stopped at."""
    from scipy.optimize import minimize  # pyright: ignore

    shape, size = coefficients.shape, float(np.abs(coefficients).max()) + 1.0

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        return mean_loss(training, x, y, flat.reshape(shape))

    weights: np.ndarray = coefficients.ravel()
    for _ in range(3):
        if np.linalg.norm(objective(weights)[1]) <= training.residual:
            return weights.reshape(shape)
        weights = np.asarray(
            cast(
                Any,
                minimize(
                    objective,
                    weights,
                    jac=True,
                    method="L-BFGS-B",
                    options={
                        "maxiter": MOST_STEPS,
                        "maxfun": 2 * MOST_STEPS,
                        "gtol": training.residual / (2 * weights.size**0.5),
                        "ftol": 1e-17 * size,
                        "maxcor": 30,
                    },
                ),
            ).x
        )
    if np.linalg.norm(objective(weights)[1]) <= training.residual:  # after the last of them
        return weights.reshape(shape)
    raise _no_minimiser()


def _no_minimiser() -> InputError:
    return InputError(
        "model",
        "must be the minimiser of its objective on these data, up to rounding",
        None,
        "fit it on the data that are given, with a larger max_iter or a larger ridge",
    )


def mean_loss(
    training: RidgeMinimiser, x: np.ndarray, y: np.ndarray, weights: np.ndarray
) -> tuple[float, np.ndarray]:
    """The objective at weights (k, d), and its gradient, flat."""
    from scipy.special import expit, log_softmax  # pyright: ignore

    scores, ridge = x @ weights.T, training.loss.ridge
    penalty = ridge / 2 * float((weights**2).sum())
    if weights.shape[0] == 1:
        value = float((np.logaddexp(0, scores[:, 0]) - y * scores[:, 0]).mean())
        residual = (expit(scores[:, 0]) - y)[:, None]
    else:
        logs: Any = log_softmax(scores, axis=1)
        value, residual = -float(logs[np.arange(len(y)), y].mean()), np.exp(logs)
        residual[np.arange(len(y)), y] -= 1
    return value + penalty, (residual.T @ x / len(x) + ridge * weights).ravel()
