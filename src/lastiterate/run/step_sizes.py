"""Step sizes and starting points: step k = 0, 1, ... produces iterate k + 1."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast, final

import numpy as np

from lastiterate.errors import InputError
from lastiterate.run.serialization import settle
from lastiterate.run.validation import Array, all_positive, frozen, numbers, positive, repeated

# The start, which never depends on the data.


@final
@dataclass(frozen=True)
class Fixed:
    """Start at 0, or at public parameters that the caller gives, chosen without the data; projected
    onto the domain."""

    @property
    def std(self) -> float:
        """Standard deviation of the start: it is known."""
        return 0.0


@final
@dataclass(frozen=True)
class GaussianStart:
    """Start at N(0, std^2 I), projected onto the domain; ``std`` per coordinate, independent of the
    data."""

    std: float

    def __post_init__(self) -> None:
        settle(self)
        positive("start std", self.std)


Start = Fixed | GaussianStart


# Step sizes: step k makes iterate k + 1; ``sizes`` is the only place that knows them.


class Schedule(ABC):
    """The questions that every description of step sizes answers.

    ``constant``: whether all are the same. ``falls``: whether none is longer than the one before.
    ``length``: how many steps it describes, ``None`` for any number of them.
    """

    constant: ClassVar[bool] = False
    falls: ClassVar[bool] = True

    @property
    def length(self) -> int | None:
        """How many steps are described; ``None`` for any number."""
        return None

    @abstractmethod
    def sizes(self, first: int, last: int) -> Array:
        """Step sizes of the steps first, ..., last - 1, read-only; shape (last - first,)."""

    def shortened(self, steps: int) -> StepSize:
        """The first ``steps`` steps."""
        return cast("StepSize", self)

    @abstractmethod
    def total(self, steps: int) -> float:
        """The sum of the first ``steps`` step sizes, rounded up."""


@final
@dataclass(frozen=True)
class Constant(Schedule):
    """The same step size ``value`` at every step: the factor of the noisy mean gradient."""

    value: float
    constant = True

    def __post_init__(self) -> None:
        settle(self)
        positive("step_size", self.value)

    def sizes(self, first: int, last: int) -> Array:
        return repeated(self.value, last - first)

    def total(self, steps: int) -> float:
        return self.value * steps


@final
@dataclass(frozen=True)
class InverseDecay(Schedule):
    """Step sizes ``1 / (2 beta + strong k / 2)`` at k = 0, 1, ... (Ryffel et al. 2022, Corollary
    3.2)."""

    beta: float
    strong: float

    def __post_init__(self) -> None:
        settle(self)
        positive("beta of inverse-decay", self.beta)
        positive("strong of inverse-decay", self.strong, zero=True)

    def sizes(self, first: int, last: int) -> Array:
        return frozen(
            1.0 / (2.0 * self.beta + self.strong * np.arange(first, last, dtype=np.float64) / 2.0)
        )

    def total(self, steps: int) -> float:
        """1/(2 beta + strong k/2) is convex in k, so each term after the first is at most the
        integral over [k - 1/2, k + 1/2]: together (2/strong) log(1 + strong (K - 1) / (4 beta +
        strong/2))."""
        first = float(self.sizes(0, 1)[0])
        if self.strong == 0:
            return first * steps
        return first + 2 / self.strong * math.log1p(
            self.strong * (steps - 1) / (4 * self.beta + self.strong / 2)
        )


@dataclass(frozen=True)
class _Listed(Schedule):
    """As many ``values`` as the run has steps."""

    values: tuple[float, ...]
    falls = False

    def __post_init__(self) -> None:
        settle(self)
        all_positive("every entry of step_size", self.values)

    def sizes(self, first: int, last: int) -> Array:
        return frozen(np.array(self.values[first:last], dtype=np.float64))

    def shortened(self, steps: int) -> StepSize:
        return cast("StepSize", replace(self, values=self.values[:steps]))

    def total(self, steps: int) -> float:
        return math.fsum(self.values[:steps])

    @property
    def length(self) -> int:
        """How many steps are described."""
        return len(self.values)


@final
@dataclass(frozen=True)
class Steps(_Listed):
    """One step size per step: as many ``values`` as the run has steps."""


LONGEST = 1.999
"""The largest step times smoothness: below 2, so that rounding keeps a step nonexpansive."""


@final
@dataclass(frozen=True)
class RelativeToSmooth(Schedule):
    """Step sizes ``relative`` / smooth, smooth the bound that a ``TopEigenvalue`` of the
    preparation releases.

    What theorems read is known before anything is measured: every step is ``relative`` long in
    units of 1/smooth. The sizes themselves belong to ``Run.measured``, the run that is executed.
    """

    relative: float
    constant = True

    def __post_init__(self) -> None:
        settle(self)
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
            "Run.measured gives the run that is executed",
        )

    def total(self, steps: int) -> float:
        return float(self.sizes(0, steps).sum())


@final
@dataclass(frozen=True)
class StableSteps(_Listed):
    """One step size per step, for heavy ball on rows that a ``PrivateCovariance`` whitens.

    ``values`` are the longest that are taken. Where the first is longer than what is stable for the
    second moments that were released, all are scaled down alike (docs/theorems/private-covariance):
    a function of what was released, which costs nothing more. Every step must be charged in full,
    so that no guarantee depends on their length.
    """


StepSize = Constant | InverseDecay | Steps | RelativeToSmooth | StableSteps


def as_step_size(given: Any) -> Any:
    """A number is a constant step size, and several numbers are one per step; anything else is left
    as it is."""
    if isinstance(given, int | float | np.number) and not isinstance(given, bool):
        return Constant(given)  # pyright: ignore[reportArgumentType]
    if isinstance(given, list | tuple | np.ndarray):
        return Steps(numbers("step_size", given))
    return given
