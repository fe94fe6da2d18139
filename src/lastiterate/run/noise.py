"""Noise: the canonical quantity is the standard deviation per coordinate of the noise on the mean gradient.

``stds`` is the only place that knows it. It gets what it may need of the run: the schedule of step sizes, the number
that a noise multiplier multiplies, and the public divisor of summed gradients.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Self, final

import numpy as np

from lastiterate.errors import InputError
from lastiterate.run.arrays import Array, frozen, repeated
from lastiterate.run.fields import settle
from lastiterate.run.step_sizes import Schedule
from lastiterate.run.validate import all_positive, positive


class Perturbation(ABC):
    """The questions that every description of noise answers."""

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


@final
@dataclass(frozen=True)
class GradientNoise(Perturbation):
    """Noise N(0, std^2 I) on the mean gradient.

    ``std``: standard deviation per coordinate, in units of the gradient; one number, or a tuple with one per step.
    """

    std: float | tuple[float, ...]

    def __post_init__(self) -> None:
        settle(self)
        all_positive("noise std", self.std if isinstance(self.std, tuple) else (self.std,), zero=True)

    def stds(self, first: int, last: int, schedule: Schedule, unit: float | None, divisor: float) -> Array:
        if isinstance(self.std, tuple):
            return frozen(np.array(self.std[first:last], dtype=np.float64))
        return repeated(self.std, last - first)

    def constant(self, schedule: Schedule) -> bool:
        return self.length is None

    def scaled(self, factor: float) -> GradientNoise:
        if isinstance(self.std, tuple):
            return GradientNoise(tuple(std * factor for std in self.std))
        return GradientNoise(self.std * factor)

    def shortened(self, steps: int) -> GradientNoise:
        return GradientNoise(self.std[:steps]) if isinstance(self.std, tuple) else self

    def with_unit(self) -> GradientNoise:
        return self if isinstance(self.std, tuple) else GradientNoise(1.0)

    @property
    def length(self) -> int | None:
        return len(self.std) if isinstance(self.std, tuple) else None


@final
@dataclass(frozen=True)
class Langevin(Perturbation):
    """Langevin noise: sqrt(2 step) ``sigma`` N(0, I) is added to the iterate; sigma^2 is the temperature.

    On the mean gradient that is a standard deviation of sigma sqrt(2 / step).
    """

    sigma: float

    def __post_init__(self) -> None:
        settle(self)
        positive("sigma", self.sigma, zero=True)

    @property
    def temperature(self) -> float:
        return self.sigma**2

    def stds(self, first: int, last: int, schedule: Schedule, unit: float | None, divisor: float) -> Array:
        if schedule.constant:
            return repeated(float(self.sigma * np.sqrt(2.0 / schedule.sizes(0, 1))[0]), last - first)
        return frozen(self.sigma * np.sqrt(2.0 / schedule.sizes(first, last)))

    def constant(self, schedule: Schedule) -> bool:
        return schedule.constant

    def scaled(self, factor: float) -> Langevin:
        return Langevin(self.sigma * factor)

    def with_unit(self) -> Langevin:
        return Langevin(1.0)


@final
@dataclass(frozen=True)
class NoiseMultiplier(Perturbation):
    """Noise of ``z`` clipping norms on the *sum* of gradients: z clip / divisor per coordinate of the mean gradient.

    Without a clipping norm the loss's Lipschitz constant takes its place. The "noise multiplier" of other libraries.
    """

    z: float

    def __post_init__(self) -> None:
        settle(self)
        positive("noise_multiplier", self.z, zero=True)

    def stds(self, first: int, last: int, schedule: Schedule, unit: float | None, divisor: float) -> Array:
        if unit is None:
            raise _nothing_to_multiply(self.z)
        return repeated(self.z * unit / divisor, last - first)

    def constant(self, schedule: Schedule) -> bool:
        return True

    def scaled(self, factor: float) -> NoiseMultiplier:
        return NoiseMultiplier(self.z * factor)

    def with_unit(self) -> NoiseMultiplier:
        return NoiseMultiplier(1.0)

    def undetermined(self, unit: float | None) -> str | None:
        return str(_nothing_to_multiply(self.z)) if unit is None else None

    @property
    def words(self) -> str:
        return f"noise multiplier {self.z:.4g}"


def _nothing_to_multiply(z: float) -> InputError:
    return InputError("noise_multiplier", "needs a clip or a lipschitz constant to multiply", z,
                      "give clip=C, lipschitz=L, or the noise itself: noise=GradientNoise(std)")


Noise = GradientNoise | Langevin | NoiseMultiplier
