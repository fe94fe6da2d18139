"""The kinds of noise: of one size, of one temperature, in units of the clipping norm, and noise that cancels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from lastiterate.run.arrays import Array, frozen, repeated
from lastiterate.run.correlated_noise import Correlated
from lastiterate.run.fields import settle
from lastiterate.run.perturbation import Multiplied, Perturbation
from lastiterate.run.step_sizes import Schedule
from lastiterate.run.validate import all_positive, positive


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
class NoiseMultiplier(Multiplied):
    """Noise of ``z`` clipping norms on the *sum* of gradients: z clip / divisor per coordinate of the mean gradient.

    Without a clipping norm the loss's Lipschitz constant takes its place. The "noise multiplier" of other libraries.
    """

    def __post_init__(self) -> None:
        settle(self)
        positive("noise_multiplier", self.z, zero=True)

    @property
    def words(self) -> str:
        return f"noise multiplier {self.z:.4g}"


Noise = GradientNoise | Langevin | NoiseMultiplier | Correlated
