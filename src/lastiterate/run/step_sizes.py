"""Step sizes and starting points: step k = 0, 1, ... produces iterate k + 1."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, cast, final

import numpy as np

from lastiterate.errors import InputError
from lastiterate.run.serialization import Checked, normalise_fields, require
from lastiterate.run.validation import (
    Array,
    all_positive,
    frozen,
    positive,
    repeat_value,
    to_floats,
)

# The start, which never depends on the data.


@final
@dataclass(frozen=True)
class FixedStart:
    """A start at 0, or at public parameters that the caller gives, chosen without the data.

    The start is projected onto the domain.

    Examples
    --------
    >>> import lastiterate as li
    >>> li.Run(n=100, steps=3, step_size=0.1).start
    FixedStart()
    """

    json_type: ClassVar[str] = "Fixed"

    @property
    def std(self) -> float:
        """Standard deviation of the start: it is known."""
        return 0.0


@final
@dataclass(frozen=True)
class GaussianStart(Checked):
    """A random start N(0, std^2 I), independent of the data and projected onto the domain.

    Parameters
    ----------
    std : float
        Standard deviation per coordinate, positive.

    Raises
    ------
    InputError
        If ``std`` is out of range.

    Examples
    --------
    >>> import lastiterate as li
    >>> li.Run(n=100, steps=3, step_size=0.1, start=li.GaussianStart(0.5)).start.std
    0.5
    """

    std: float = field(metadata=require(positive, "start std"))


Start = FixedStart | GaussianStart


# Step sizes: step k makes iterate k + 1; ``sizes`` alone computes them.


class Schedule(Checked, ABC):
    """The questions that every description of step sizes answers.

    ``constant``: whether all are the same. ``falls``: whether none is longer than the one before.
    ``length``: how many steps it describes, ``None`` for any number of them.
    """

    constant: ClassVar[bool] = False
    falls: ClassVar[bool] = True

    @property
    def length(self) -> int | None:
        """The number of described steps; ``None`` for any."""
        return None

    @abstractmethod
    def sizes(self, first: int, last: int) -> Array:
        """Step sizes of the steps first, ..., last - 1, read-only; shape (last - first,)."""

    def truncate(self, steps: int) -> StepSize:
        """The first ``steps`` steps."""
        return cast("StepSize", self)

    @abstractmethod
    def total(self, steps: int) -> float:
        """The sum of the first ``steps`` step sizes, rounded up."""


@final
@dataclass(frozen=True)
class Constant(Schedule):
    """The same step size at every step.

    Parameters
    ----------
    value : float
        Factor of the noisy mean gradient, positive. ``Run(step_size=0.1)`` makes it from a number.

    Raises
    ------
    InputError
        If ``value`` is out of range.

    Examples
    --------
    >>> import lastiterate as li
    >>> li.Run(n=100, steps=3, step_size=0.1).step_size
    Constant(value=0.1)
    """

    value: float = field(metadata=require(positive, "step_size"))
    constant = True

    def sizes(self, first: int, last: int) -> Array:
        return repeat_value(self.value, last - first)

    def total(self, steps: int) -> float:
        return self.value * steps


@final
@dataclass(frozen=True)
class InverseDecay(Schedule):
    """Step sizes ``1 / (2 beta + strong k / 2)`` at k = 0, 1, ...

    Parameters
    ----------
    beta : float
        Smoothness of the objective, positive.
    strong : float
        Strong convexity of the objective, at least 0.

    Raises
    ------
    InputError
        If a value is out of range.

    Notes
    -----
    Source: Ryffel, Bach and Pointcheval 2022, Corollary 3.2.

    Examples
    --------
    >>> import lastiterate as li
    >>> li.InverseDecay(beta=0.5, strong=2.0).sizes(0, 3).round(3).tolist()
    [1.0, 0.5, 0.333]
    """

    beta: float = field(metadata=require(positive, "beta of inverse-decay"))
    strong: float = field(metadata=require(positive, "strong of inverse-decay", zero=True))

    def sizes(self, first: int, last: int) -> Array:
        return frozen(
            1.0 / (2.0 * self.beta + self.strong * np.arange(first, last, dtype=np.float64) / 2.0)
        )

    def total(self, steps: int) -> float:
        """Bound the sum of step sizes from above by an integral.

        1/(2 beta + strong k/2) is convex in k, so each term after the first is at most the integral
        over [k - 1/2, k + 1/2]: together (2/strong) log(1 + strong (K - 1) / (4 beta + strong/2)).
        """
        first = float(self.sizes(0, 1)[0])
        if self.strong == 0:
            return first * steps
        return first + 2 / self.strong * math.log1p(
            self.strong * (steps - 1) / (4 * self.beta + self.strong / 2)
        )


@dataclass(frozen=True)
class _Listed(Schedule):
    """As many ``values`` as the run has steps."""

    values: tuple[float, ...] = field(metadata=require(all_positive, "every entry of step_size"))
    falls = False

    def sizes(self, first: int, last: int) -> Array:
        return frozen(np.array(self.values[first:last], dtype=np.float64))

    def truncate(self, steps: int) -> StepSize:
        return cast("StepSize", replace(self, values=self.values[:steps]))

    def total(self, steps: int) -> float:
        return math.fsum(self.values[:steps])

    @property
    def length(self) -> int:
        """The number of described steps."""
        return len(self.values)


@final
@dataclass(frozen=True)
class StepSchedule(_Listed):
    """One stated step size for every step.

    Parameters
    ----------
    values : tuple of float
        Step sizes, positive, as many as the run has steps. ``Run(step_size=[...])`` makes it from a
        list.

    Raises
    ------
    InputError
        If a value is out of range.

    Examples
    --------
    >>> import lastiterate as li
    >>> li.Run(n=100, steps=2, step_size=[0.2, 0.1]).step_size
    StepSchedule(values=(0.2, 0.1))
    """

    json_type: ClassVar[str] = "Steps"


LONGEST = 1.999
"""The largest step times smoothness: below 2, so that rounding keeps a step nonexpansive."""


@final
@dataclass(frozen=True)
class RelativeToSmooth(Schedule):
    """Step sizes in units of 1/smooth, for a smoothness that the preparation measures.

    Parameters
    ----------
    relative : float
        Step size times smoothness, within (0, 1.999].

    Raises
    ------
    InputError
        If ``relative`` is out of range; a run without a `TopEigenvalue` in its preprocessing refuses it.

    See Also
    --------
    TopEigenvalue : The measurement.

    Notes
    -----
    The run is certified before anything is measured, because theorems need only the relative step
    size. ``Run.with_top_eigenvalue`` gives the run that is executed.

    Examples
    --------
    >>> import lastiterate as li
    >>> li.RelativeToSmooth(1.9).constant
    True
    """

    relative: float
    constant = True

    def __post_init__(self) -> None:
        normalise_fields(self)
        if not 0 < self.relative <= LONGEST:
            raise InputError(
                "step_size relative to 1/smooth",
                f"must lie in (0, {LONGEST}]",
                self.relative,
                "1.9 is long and safe",
            )

    def sizes(self, first: int, last: int) -> Array:
        raise InputError(
            "step_size",
            "is relative to a smoothness that is not measured yet",
            None,
            "Run.with_top_eigenvalue gives the run that is executed",
        )

    def total(self, steps: int) -> float:
        return float(self.sizes(0, steps).sum())


@final
@dataclass(frozen=True)
class StableSteps(_Listed):
    """One step size per step, for heavy ball on rows that a `PrivateCovariance` whitens.

    Parameters
    ----------
    values : tuple of float
        Longest step sizes, positive, as many as the run has steps. Where the first is longer than
        what is stable for the released second moments, all are scaled down alike.

    Raises
    ------
    InputError
        If a value is out of range, or the run charges less than all of its steps.

    Notes
    -----
    The scale is a function of released numbers, so it costs no privacy. Every step must be charged
    in full, so that no guarantee depends on its length (docs/theorems/private-covariance).

    Examples
    --------
    >>> import lastiterate as li
    >>> li.StableSteps((0.5, 0.25)).length
    2
    """


StepSize = Constant | InverseDecay | StepSchedule | RelativeToSmooth | StableSteps


def to_step_size(given: Any) -> Any:
    """Describe a number as a constant step size and several as one per step; keep the rest."""
    if isinstance(given, int | float | np.number) and not isinstance(given, bool):
        return Constant(given)  # pyright: ignore[reportArgumentType]
    if isinstance(given, list | tuple | np.ndarray):
        return StepSchedule(to_floats("step_size", given))
    return given
