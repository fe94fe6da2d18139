"""A warning where something of scikit-learn's around an estimator learns from the private rows and is not paid for."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from types import FrameType
from typing import Any, cast

from sklearn.base import BaseEstimator  # pyright: ignore
from sklearn.pipeline import Pipeline  # pyright: ignore
from sklearn.utils import get_tags  # pyright: ignore

from lastiterate.errors import outside
from lastiterate.estimators.meta_estimators import check_callers, learner_from_predictions

DEPTH = 60
"""Callers that are looked at."""
LEARNERS = ("CalibratedClassifierCV", "TunedThresholdClassifierCV", "StackingClassifier", "StackingRegressor")
"""Estimators that learn something of their own of the rows that they hand on, or of their targets."""


class UnpaidStepWarning(UserWarning):
    """What was learned from private rows around an estimator is not covered by its certificate."""


def warn_of_learned_steps(estimator: object) -> None:
    """Name the steps of the pipelines that are fitting ``estimator``, and what else is, that learn from rows.

    Whether a step learns is what it says itself (scikit-learn's tag ``requires_fit``). Steps that were applied outside
    a pipeline cannot be noticed. Errors: who is fitting it makes the certificate false (``check_callers``).
    """
    check_callers(estimator)
    for caller in _fitting(estimator):
        if not type(caller).__module__.startswith(("sklearn.", "lastiterate.")):
            warnings.warn(f"{type(caller).__name__} is fitting the estimator: the certificate holds only if it hands "
                          "on every record once, with weight 1, and learns nothing from them", UnpaidStepWarning,
                          stacklevel=outside())
    names = list(dict.fromkeys(name for caller in _fitting(estimator) for name in _around(caller)))
    if names:
        warnings.warn(f"the certificate does not cover {', '.join(names)}: what it learned from the private rows was "
                      "not paid for; public ranges in a schema (SchemaTransformer) take the place of scaling",
                      UnpaidStepWarning, stacklevel=outside())


def warn_of_predictions() -> None:
    """Name what scikit-learn is fitting on predictions of an estimator that is fitted, such as a frozen one."""
    name = learner_from_predictions()
    if name is not None:
        warnings.warn(f"the certificate does not cover {name}: what it learns from predictions on private rows is not "
                      "paid for; fit it on public rows", UnpaidStepWarning, stacklevel=outside())


def _fitting(estimator: object) -> Iterator[Any]:
    """Estimators that are fitting ``estimator``, one inside of the other; of pipelines those whose last step it is."""
    inside = {id(estimator)}
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    for _ in range(DEPTH):
        if frame is None:
            return
        caller = frame.f_locals.get("self")
        if isinstance(caller, BaseEstimator) and id(caller) not in inside:
            if not isinstance(caller, Pipeline) or id(caller.steps[-1][1]) in inside:  # pyright: ignore
                yield caller
            inside.add(id(caller))
        frame = frame.f_back


def _around(caller: Any) -> Iterator[str]:
    """What learns of the rows besides the estimator that ``caller`` is fitting."""
    if isinstance(caller, Pipeline):
        for name, step in cast("list[tuple[str, object]]", caller.steps[:-1]):  # pyright: ignore
            yield from _learned(name, step)
    elif type(caller).__name__ == "TransformedTargetRegressor":
        yield from _learned("the target's transformer", caller.transformer)
    elif type(caller).__name__ in LEARNERS:
        yield type(caller).__name__


def _learned(name: str, step: object) -> Iterator[str]:
    """The step itself, or those of its parts, that learn."""
    inner = [(f"{name}.{part[0]}", part[1]) for attribute in ("steps", "transformers", "transformer_list")
             for part in vars(step).get(attribute, ())] if not isinstance(step, str) and step is not None else []
    if inner:
        for part, one in inner:
            yield from _learned(part, one)
    elif step is not None and not isinstance(step, str) and get_tags(step).requires_fit:
        yield name
