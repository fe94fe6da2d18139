"""What every description of noise answers.

The canonical quantity is the standard deviation per coordinate of what is drawn anew at a step, as noise on the mean
gradient. ``stds`` is the only place that knows it. It gets what it may need of the run: the schedule of step sizes, the
number that a noise multiplier multiplies, and the public divisor of summed gradients.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from lastiterate.errors import InputError
from lastiterate.run.arrays import Array, repeated
from lastiterate.run.step_sizes import Schedule


class Perturbation(ABC):
    """The questions that every description of noise answers.

    ``independent``: whether what is added at a step is independent of what all other steps add.
    """

    independent: ClassVar[bool] = True

    @abstractmethod
    def stds(self, first: int, last: int, schedule: Schedule, unit: float | None, divisor: float) -> Array:
        """Standard deviations at the steps first, ..., last - 1, read-only; shape (last - first,).

        ``unit``: clipping norm (or Lipschitz constant) of one record, ``None`` where the run has neither.
        """

    @abstractmethod
    def constant(self, schedule: Schedule) -> bool:
        """Whether it is the same at every step, by the form of the description."""

    @abstractmethod
    def scaled(self, factor: float) -> Self:
        """The same noise, all of its standard deviations multiplied by ``factor``."""

    @abstractmethod
    def with_unit(self) -> Self:
        """The same kind of noise with its number set to 1, the start of a search (a list is left as it is)."""

    def shortened(self, steps: int) -> Self:
        """The noise of the first ``steps`` steps."""
        return self

    def undetermined(self, unit: float | None) -> str | None:
        """Why the description does not determine its size, in words; ``None`` where it does.

        ``unit``: as for ``stds``.
        """
        return None

    def check(self, steps: int) -> None:  # noqa: B027  # most kinds are for any number of steps
        """Refuse a run of so many steps that the description does not fit."""

    def column(self, steps: int) -> Array:
        """The first column of C, without the zeros at its end: the steps add C^{-1} Z, Z of independent draws."""
        return repeated(1.0, 1)

    def largest_sum(self, blocks: int, steps: int) -> float:
        """How many contributions of one record a single draw hides, at most, in a run over so many blocks."""
        return 1.0

    def reach(self, steps: int) -> float:
        """How many times the longest draw what is added at a step can be, at most."""
        return 1.0

    @property
    def words(self) -> str:
        """It in words, where its own numbers say it; "" where its standard deviation has to."""
        return ""

    @property
    def length(self) -> int | None:
        """How many steps it describes, ``None`` for any number of them."""
        return None

    @property
    def temperature(self) -> float | None:
        """sigma^2 where the iterate gets sqrt(2 step) sigma N(0, I) at every step, by the form of the description."""
        return None


def nothing_to_multiply(z: float) -> InputError:
    """The refusal of a multiplier where nothing bounds a record."""
    return InputError("noise_multiplier", "needs a clip or a lipschitz constant to multiply", z,
                      "give clip=C, lipschitz=L, or the noise itself: noise=GradientNoise(std)")


@dataclass(frozen=True)
class Multiplied(Perturbation):
    """Noise of ``z`` clipping norms on the sum of gradients, the same at every step."""

    z: float

    def stds(self, first: int, last: int, schedule: Schedule, unit: float | None, divisor: float) -> Array:
        if unit is None:
            raise nothing_to_multiply(self.z)
        return repeated(self.z * unit / divisor, last - first)

    def constant(self, schedule: Schedule) -> bool:
        return True

    def scaled(self, factor: float) -> Self:
        return replace(self, z=self.z * factor)

    def with_unit(self) -> Self:
        return replace(self, z=1.0)

    def undetermined(self, unit: float | None) -> str | None:
        return str(nothing_to_multiply(self.z)) if unit is None else None
