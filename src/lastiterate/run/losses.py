"""Losses as the accountant sees them: constants derived from what the trainer enforces, no arrays.

A loss is ``mean over records of data term + ridge/2 |theta|^2``; the ridge is added once per step, outside
records and clipping. ``lipschitz`` and ``sensitivity`` speak of one record's data term only, ``smooth`` and
``strong`` of the whole objective, for every data set.
"""

# arguments are checked because callers are not
# pyright: reportUnnecessaryIsInstance=false
from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from lastiterate.errors import InputError
from lastiterate.run.evidence import Evidence, mint
from lastiterate.run.facts import LossFacts
from lastiterate.run.validate import executable


@dataclass(frozen=True, kw_only=True)
class Logistic:
    """Binary logistic regression on rows clipped to ``row_norm``, with a penalised intercept column."""

    row_norm: float = 1.0
    ridge: float = 0.0
    intercept: float = 1.0

    def __post_init__(self) -> None:
        _check_linear(self.row_norm, self.ridge, self.intercept)

    @lru_cache(maxsize=256)  # noqa: B019 - a description of a few numbers, asked for at every step
    def facts(self) -> LossFacts:
        b = math.hypot(self.row_norm, self.intercept)
        return _convex(b, b * b / 4, self.ridge, "|sigmoid - label| <= 1, its slope at most 1/4")


@dataclass(frozen=True, kw_only=True)
class Softmax:
    """Softmax regression over ``classes`` on rows clipped to ``row_norm``."""

    classes: int
    row_norm: float = 1.0
    ridge: float = 0.0
    intercept: float = 1.0

    def __post_init__(self) -> None:
        _check_linear(self.row_norm, self.ridge, self.intercept)
        if not isinstance(self.classes, int) or isinstance(self.classes, bool) or self.classes < 2:
            raise InputError("classes", "must be a whole number >= 2", self.classes, "count the public classes")

    @lru_cache(maxsize=256)  # noqa: B019 - a description of a few numbers, asked for at every step
    def facts(self) -> LossFacts:
        b = math.hypot(self.row_norm, self.intercept)
        return _convex(math.sqrt(2) * b, b * b / 2, self.ridge, "|p - e_y| <= sqrt 2, Hessian of log-sum-exp <= 1/2")


@dataclass(frozen=True, kw_only=True)
class HuberRidge:
    """Ridge regression with the residual clamped to ``residual_clip`` (a Huber loss)."""

    row_norm: float = 1.0
    residual_clip: float = 1.0
    ridge: float = 0.0
    intercept: float = 1.0

    def __post_init__(self) -> None:
        _check_linear(self.row_norm, self.ridge, self.intercept)
        executable("residual_clip", self.residual_clip)

    @lru_cache(maxsize=256)  # noqa: B019 - a description of a few numbers, asked for at every step
    def facts(self) -> LossFacts:
        b = math.hypot(self.row_norm, self.intercept)
        return _convex(self.residual_clip * b, b * b, self.ridge, "residuals are clamped, slope at most 1")


@dataclass(frozen=True)
class Abstract:
    """Any other loss, known only through its constants."""

    constants: LossFacts = LossFacts()

    def facts(self) -> LossFacts:
        return self.constants


Loss = Logistic | Softmax | HuberRidge | Abstract


def _convex(lipschitz: float, curvature: float, ridge: float, why: str) -> LossFacts:
    enforced = Evidence.ENFORCED
    return LossFacts(
        lipschitz=mint(lipschitz, enforced, f"rows are clipped before training; {why}"),
        smooth=mint(curvature + ridge, enforced, f"rows are clipped before training; {why}; plus the ridge"),
        strong=mint(ridge, Evidence.PROVED, "the data term is convex, the ridge adds its own curvature"),
        weak_convexity=mint(0.0, Evidence.PROVED, "the data term is convex"),
    )


def _check_linear(row_norm: float, ridge: float, intercept: float) -> None:
    executable("row_norm", row_norm)
    executable("ridge", ridge, zero=True)
    executable("intercept", intercept, zero=True)
