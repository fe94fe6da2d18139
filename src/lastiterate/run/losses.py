"""Losses as the accountant sees them: constants derived from what the trainer enforces, no arrays.

A loss is ``mean over records of data term + ridge/2 |theta|^2``; the ridge is added once per step,
outside records and clipping. ``lipschitz`` and ``sensitivity`` speak of one record's data term
only, ``smooth`` and ``strong`` of the whole objective, for every data set.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, final

from lastiterate.errors import InputError
from lastiterate.run.facts import Evidence, LossFacts, downgrade_facts, mint
from lastiterate.run.serialization import normalise_fields, require
from lastiterate.run.validation import Weights, check_class_weights, check_integer, executable


class Objective(ABC):
    """The questions that every loss answers.

    ``outputs``: rows of the weight matrix, ``None`` where it is unknown. ``ridge``: what the
    trainer adds outside the records (0 where the loss is known only by its constants).
    ``scalar_residual``: whether a record's data gradient is a scalar times its row, so that
    clipping it keeps the loss convex and smooth. ``class_weights``: what a record of each class
    counts, at most 1; its contribution is clipped first, then weighted.
    """

    ridge: float
    class_weights: Weights
    scalar_residual: ClassVar[bool]

    @property
    @abstractmethod
    def outputs(self) -> int | None:
        """Rows of the weight matrix."""

    @property
    @abstractmethod
    def target_classes(self) -> int | None:
        """The number of classes of targets: 0 for numerical targets, ``None`` if unknown."""

    @abstractmethod
    def facts(self) -> LossFacts:
        """The constants of the loss, for every data set."""


@final
@dataclass(frozen=True, kw_only=True)
class Logistic(Objective):
    """Binary logistic regression with labels 0 and 1, on rows of bounded norm.

    Parameters
    ----------
    row_norm : float, default 1.0
        Public bound on the Euclidean norm of a row; longer rows are scaled down to it.
    ridge : float, default 0.0
        Coefficient of |theta|^2 / 2, the intercept included.
    intercept : float, default 1.0
        Constant that is added to every row as a column; 0 for no intercept.
    cap : float, optional
        Largest value of 1 - p_y, the probability of the other class, in a gradient. Beyond it the
        loss continues as a straight line, and stays convex and as smooth
        (docs/theorems/capped-losses).
    class_weights : tuple of float, optional
        Weight of every class, at most 1. A contribution is clipped first and then multiplied.

    Raises
    ------
    InputError
        If a value is out of range.

    See Also
    --------
    Softmax : More than two classes.

    Notes
    -----
    **Guarantee:** ``facts()`` are constants for every data set, because the trainer bounds the
    rows.

    Examples
    --------
    >>> import lastiterate as li
    >>> loss = li.Logistic(row_norm=1.0, intercept=0.0, ridge=0.1)
    >>> loss.facts().lipschitz.value, loss.facts().smooth.value
    (1.0, 0.35)
    """

    row_norm: float = 1.0
    ridge: float = 0.0
    intercept: float = 1.0
    cap: float | None = None
    class_weights: Weights = None
    scalar_residual = True

    def __post_init__(self) -> None:
        _check_linear(self)
        _check_cap(self.cap)
        check_class_weights(self.class_weights, 2)

    @property
    def outputs(self) -> int:
        """Outputs of the model per record."""
        return 1

    @property
    def target_classes(self) -> int:
        return 2

    def facts(self) -> LossFacts:
        """Return the constants of the class of weight 1; smaller weights make them no larger."""
        b = math.hypot(self.row_norm, self.intercept)
        if self.cap is None:
            return _convex(
                b, b * b / 4, self.ridge, "|sigmoid - label| <= 1, its slope at most 1/4"
            )
        return _convex(
            self.cap * b,
            steepest(self.cap) * b * b,
            self.ridge,
            f"|sigmoid - label| capped at {self.cap:g}, its slope at most c (1 - c) (c at most "
            f"1/2)",
        )


@final
@dataclass(frozen=True, kw_only=True)
class Softmax(Objective):
    """Softmax regression with labels 0, ..., ``classes`` - 1, on rows of bounded norm.

    Parameters
    ----------
    classes : int
        Number of classes, at least 2.
    row_norm : float, default 1.0
        Public bound on the Euclidean norm of a row; longer rows are scaled down to it.
    ridge : float, default 0.0
        Coefficient of |theta|^2 / 2, the intercepts included.
    intercept : float, default 1.0
        Constant that is added to every row as a column; 0 for no intercepts.
    cap : float, optional
        Largest value of 1 - p_y, the probability of the other classes: the gradient by the scores
        is scaled by min(1, cap / (1 - p_y)). It is the gradient of a convex function that is as
        smooth as before, which clipping the vector is not (docs/theorems/capped-losses).
    class_weights : tuple of float, optional
        Weight of every class, at most 1. A contribution is clipped first and then multiplied.

    Raises
    ------
    InputError
        If a value is out of range.

    See Also
    --------
    Logistic : Two classes with one row of weights.

    Notes
    -----
    **Guarantee:** ``facts()`` are constants for every data set, because the trainer bounds the
    rows.

    Examples
    --------
    >>> import lastiterate as li
    >>> loss = li.Softmax(classes=10, row_norm=1.0, intercept=0.0)
    >>> loss.outputs, loss.facts().smooth.value
    (10, 0.5)
    """

    classes: int = field(metadata=require(check_integer, "classes", least=2, most=10**6))
    row_norm: float = 1.0
    ridge: float = 0.0
    intercept: float = 1.0
    cap: float | None = None
    class_weights: Weights = None
    scalar_residual = False

    def __post_init__(self) -> None:
        _check_linear(self)
        _check_cap(self.cap)
        check_class_weights(self.class_weights, self.classes)

    @property
    def outputs(self) -> int:
        """Outputs of the model per record."""
        return self.classes

    @property
    def target_classes(self) -> int:
        return self.classes

    def facts(self) -> LossFacts:
        b = math.hypot(self.row_norm, self.intercept)
        if self.cap is None:
            why = "|p - e_y| <= sqrt 2, Hessian of log-sum-exp <= 1/2"
            return _convex(math.sqrt(2) * b, b * b / 2, self.ridge, why)
        return _convex(
            math.sqrt(2) * self.cap * b,
            2 * steepest(self.cap) * b * b,
            self.ridge,
            f"1 - p_y capped at {self.cap:g}, Hessian by the scores at most 2 c (1 - c) (c at most "
            f"1/2)",
        )


def steepest(cap: float) -> float:
    """The largest p (1 - p) with p <= ``cap``."""
    return cap * (1 - cap) if cap < 0.5 else 0.25


@final
@dataclass(frozen=True, kw_only=True)
class HuberRidge(Objective):
    """Ridge regression with a clamped residual (a Huber loss), on rows of bounded norm.

    Parameters
    ----------
    row_norm : float, default 1.0
        Public bound on the Euclidean norm of a row; longer rows are scaled down to it.
    residual_clip : float, default 1.0
        Largest residual in a gradient, in units of the target.
    ridge : float, default 0.0
        Coefficient of |theta|^2 / 2, the intercept included.
    intercept : float, default 1.0
        Constant that is added to every row as a column; 0 for no intercept.

    Raises
    ------
    InputError
        If a value is out of range.

    Notes
    -----
    **Guarantee:** ``facts()`` are constants for every data set, because the trainer bounds rows and
    residuals.

    Examples
    --------
    >>> import lastiterate as li
    >>> loss = li.HuberRidge(residual_clip=0.5, intercept=0.0)
    >>> loss.facts().lipschitz.value, loss.facts().smooth.value
    (0.5, 1.0)
    """

    row_norm: float = 1.0
    residual_clip: float = field(default=1.0, metadata=require(executable, "residual_clip"))
    ridge: float = 0.0
    intercept: float = 1.0
    class_weights = None
    scalar_residual = True

    def __post_init__(self) -> None:
        _check_linear(self)

    @property
    def outputs(self) -> int:
        """Outputs of the model per record."""
        return 1

    @property
    def target_classes(self) -> int:
        return 0

    def facts(self) -> LossFacts:
        b = math.hypot(self.row_norm, self.intercept)
        return _convex(
            self.residual_clip * b, b * b, self.ridge, "residuals are clamped, slope at most 1"
        )


@final
@dataclass(frozen=True)
class KnownConstants(Objective):
    """Any other loss, known only through stated constants; unstated ones are unknown.

    It describes networks. Composition then needs a clipping norm or a stated sensitivity.

    Parameters
    ----------
    constants : LossFacts, default LossFacts()
        Known constants of the loss.
    class_weights : tuple of float, optional
        Weight of every class, at most 1, for records whose second part is their class. It does not
        go together with constants.

    Raises
    ------
    InputError
        If a value is out of range, or both are given.

    See Also
    --------
    lastiterate.audit.falsify : Search for counterexamples of stated constants.

    Notes
    -----
    **Guarantee:** constants are the caller's word (``ASSUMED``), even if they were known better of
    the loss that they were derived for. Constants that survived a search stay ``TESTED``.

    Examples
    --------
    >>> import lastiterate as li
    >>> loss = li.KnownConstants(li.LossFacts(lipschitz=1.0, smooth=4.0))
    >>> loss.facts().smooth.evidence.name
    'ASSUMED'
    """

    json_type: ClassVar[str] = "Abstract"

    constants: LossFacts = LossFacts()
    class_weights: Weights = None
    ridge = 0.0
    scalar_residual = False

    def __post_init__(self) -> None:
        normalise_fields(self)
        object.__setattr__(self, "constants", downgrade_facts(self.constants))
        if self.class_weights is None:
            return
        check_class_weights(self.class_weights, max(2, len(self.class_weights)))
        if self.constants != LossFacts():
            raise InputError(
                "class_weights",
                "must be left out where constants of the loss are given, which assume "
                "records of equal weight",
                self.class_weights,
                "leave the constants out",
            )

    def __setstate__(self, state: dict[str, Any]) -> None:
        object.__setattr__(self, "constants", state["constants"])
        object.__setattr__(self, "class_weights", state.get("class_weights"))
        self.__post_init__()

    @property
    def outputs(self) -> None:
        """Outputs of the model per record; ``None`` where the loss does not know."""
        return None

    @property
    def target_classes(self) -> None:
        return None

    def facts(self) -> LossFacts:
        return self.constants


def loss_from_facts(constants: LossFacts) -> KnownConstants:
    """Make a loss whose constants keep their evidence, for derivations of this library only."""
    loss = KnownConstants()
    object.__setattr__(loss, "constants", constants)
    return loss


LinearLoss = Logistic | Softmax | HuberRidge
"""Losses of linear models, whose gradients the trainer knows."""
Loss = LinearLoss | KnownConstants


@lru_cache(maxsize=256)  # asked for by every theorem
def _convex(lipschitz: float, curvature: float, ridge: float, why: str) -> LossFacts:
    enforced = Evidence.ENFORCED
    return LossFacts(
        lipschitz=mint(lipschitz, enforced, f"rows are clipped before training; {why}"),
        smooth=mint(
            curvature + ridge, enforced, f"rows are clipped before training; {why}; plus the ridge"
        ),
        strong=mint(
            ridge, Evidence.PROVED, "the data term is convex, the ridge adds its own curvature"
        ),
        weak_convexity=mint(0.0, Evidence.PROVED, "the data term is convex"),
    )


def data_curvature(smooth: float, ridge: float) -> float:
    """Return the curvature of the data's part of a loss that is ``smooth`` with its ridge.

    It is rounded up: the sum of both was rounded, by more than a curvature far below the ridge.
    """
    return smooth - ridge + (2.0**-52 * smooth if ridge > 0 else 0.0)


def _check_cap(cap: float | None) -> None:
    if cap is not None and not 1e-6 <= cap < 1:
        raise InputError(
            "cap", "must lie between 1e-6 and 1", cap, "without it gradients count in full"
        )


def _check_linear(loss: Logistic | Softmax | HuberRidge) -> None:
    normalise_fields(loss)
    executable("row_norm", loss.row_norm)
    executable("ridge", loss.ridge, zero=True)
    executable("intercept", loss.intercept, zero=True)
