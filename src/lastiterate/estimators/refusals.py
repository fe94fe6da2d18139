"""What a fit refuses, and what a refused one leaves behind."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from lastiterate.errors import InputError

Given = ParamSpec("Given")
Fitted = TypeVar("Fitted")


class Absent:
    """A method of scikit-learn's estimators that these do not have: ``hasattr`` is false, and asking says why."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        raise AttributeError(self._why)


def as_before_if_refused(fit: Callable[Concatenate[Any, Given], Fitted]) -> Callable[Concatenate[Any, Given], Fitted]:
    """A ``fit`` that leaves its estimator as it was where it ends with an error: no labels of one fit beside weights of
    another."""

    @wraps(fit)
    def whole(estimator: object, *given: Given.args, **named: Given.kwargs) -> Fitted:
        before = dict(vars(estimator))
        try:
            return fit(estimator, *given, **named)
        except BaseException:
            vars(estimator).clear()
            vars(estimator).update(before)
            raise

    return whole


WHY_NOT = {
    "sample_weight": "a weight would multiply what one record contributes beyond the bound that the noise hides",
    "coef_init": "first parameters that were fitted on the data would have to be paid for",
    "intercept_init": "first parameters that were fitted on the data would have to be paid for",
}
"""What scikit-learn's estimators take and these refuse."""


def refuse(unsupported: dict[str, Any]) -> None:
    """Refuse arguments of ``fit`` that privacy does not allow, or that do not exist."""
    for name, value in unsupported.items():
        if value is not None:
            raise InputError(name, "is not supported", None, WHY_NOT.get(name, "fit takes X, y and progress"))
