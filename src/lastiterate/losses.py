"""Losses as the accountant sees them: constants derived from what the trainer enforces, no arrays.

A loss is ``mean over records of data term + ridge/2 |theta|^2``; the ridge is added once per step, outside
records and clipping. ``lipschitz`` and ``sensitivity`` speak of one record's data term only, ``smooth`` and
``strong`` of the whole objective, for every data set.
"""

# arguments are checked because callers are not
# pyright: reportUnnecessaryIsInstance=false
from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import lru_cache

from lastiterate.errors import InputError
from lastiterate.evidence import Evidence, Fact, mint

CHUNK = 256
"""Rows whose gradients the trainer may add in float32 before it goes on in float64."""

FLOAT_SLACK = 1.25 * 2.0**-7
"""Relative allowance of enforced sensitivities for float32 arithmetic.

Gradients are summed in float32 over chunks of at most 256 rows, and the chunks in float64. A neighbour differs in one
chunk, whose two computed sums are each within gamma_256 * 256 L of the exact ones (Higham 2002, section 3.1: gamma_m =
m u / (1 - m u), u = 2^-24, any order of summation): together less than 2^-7 (1 + 2^-15) L. Residuals are computed to a
few u of their bound, and float64 sums to n 2^-53; the remaining quarter of the allowance covers both with room.
"""


@dataclass(frozen=True, kw_only=True)
class LossFacts:
    """Constants of a loss; plain numbers become ``ASSUMED`` facts, ``None`` means unknown.

    ``sensitivity``: largest Euclidean change of the summed data gradient between neighbours of the run's own
    adjacency. ``lipschitz``: bound on one record's data gradient. ``smooth``, ``strong``: bounds on the Hessian of
    the objective, ``weak_convexity``: m with Hessian >= -m. ``log_sobolev``: a constant c such that all laws on
    the tracing diffusion of both neighbours satisfy a log-Sobolev inequality (Chourasia et al. 2021, Def. 3.2).
    ``hoelder``, ``hoelder_exponent``: H and l in (0, 1] with |g(x) - g(y)| <= H |x - y|^l for every record's data
    gradient g.
    """

    sensitivity: Fact | float | None = None
    lipschitz: Fact | float | None = None
    smooth: Fact | float | None = None
    strong: Fact | float | None = None
    weak_convexity: Fact | float | None = None
    log_sobolev: Fact | float | None = None
    hoelder: Fact | float | None = None
    hoelder_exponent: Fact | float | None = None

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if value is not None and not isinstance(value, Fact):
                object.__setattr__(self, item.name, value := Fact(value, f"{item.name} given by the caller"))
            if value is not None and not (value.value == 0 or 1e-30 <= value.value <= 1e30):
                raise InputError(item.name, "must be 0 or lie within 1e-30 .. 1e30", value.value, "choose other units")
        if self.fact("strong") > self.fact("smooth", math.inf):
            raise InputError("strong", f"cannot exceed smooth = {self.fact('smooth'):g}", self.fact("strong"),
                             "a Hessian's lower bound lies below its upper bound")
        if self.fact("strong") > 0 and self.fact("weak_convexity") > 0:
            raise InputError("weak_convexity", "must be absent or 0 where strong > 0",
                             self.fact("weak_convexity"), "keep the one that holds")

        if (self.hoelder is None) != (self.hoelder_exponent is None):
            raise InputError("hoelder", "and hoelder_exponent belong together", None, "state both")
        if not 0 < self.fact("hoelder_exponent", 1.0) <= 1:
            raise InputError("hoelder_exponent", "must lie in (0, 1]", self.fact("hoelder_exponent"))

    def fact(self, name: str, default: float = 0.0) -> float:
        """Value of a constant, or ``default`` when it is unknown."""
        found = getattr(self, name)
        return default if found is None else float(found.value)


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


MAGNITUDES = (1e-9, 1e9)
"""Row norms, intercepts, ridges and clips that are executed: their products stay far inside single precision."""


def executable(name: str, value: float, *, zero: bool = False) -> None:
    """Refuse a number that single precision could overflow or lose."""
    low, high = MAGNITUDES
    if not (low <= value <= high or (zero and value == 0)):
        rule = f"must {'be 0 or ' if zero else ''}lie between {low:g} and {high:g}"
        raise InputError(name, rule, value, "scale the features")


def _check_linear(row_norm: float, ridge: float, intercept: float) -> None:
    executable("row_norm", row_norm)
    executable("ridge", ridge, zero=True)
    executable("intercept", intercept, zero=True)
