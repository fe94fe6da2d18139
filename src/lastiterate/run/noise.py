"""Noise: the canonical quantity is the standard deviation per coordinate of the noise on the mean gradient.

``stds`` is the only place that knows it. It gets what it may need of the run: the schedule of step sizes, the number
that a noise multiplier multiplies, and the public divisor of summed gradients.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Self, final

import numpy as np

from lastiterate.errors import InputError
from lastiterate.run.arrays import Array, frozen, repeated
from lastiterate.run.fields import settle
from lastiterate.run.step_sizes import Schedule
from lastiterate.run.validate import all_positive, executable, positive, whole


class Perturbation(ABC):
    """The questions that every description of noise answers.

    ``of_steps``: whether every step has noise of its own, of a size that is known beforehand: what ``stds`` gives.
    """

    of_steps: ClassVar[bool] = True

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
            raise InputError("noise_multiplier", "needs a clip or a lipschitz constant to multiply", self.z,
                             "give --clip, --lipschitz, or the noise itself with --noise-std")
        return repeated(self.z * unit / divisor, last - first)

    def constant(self, schedule: Schedule) -> bool:
        return True

    def scaled(self, factor: float) -> NoiseMultiplier:
        return NoiseMultiplier(self.z * factor)

    def with_unit(self) -> NoiseMultiplier:
        return NoiseMultiplier(1.0)


@final
@dataclass(frozen=True)
class ObjectiveNoise(Perturbation):
    """Noise drawn once: a random linear term of the objective, whose minimiser is released (docs/theorems).

    The objective summed over records gets <b, theta>, b ~ N(0, (z L)^2 I) with L the loss's Lipschitz constant.
    ``parameters``: how many weights the model has, intercepts included. ``last``: the minimiser, which is found up to
    a public tolerance, gets noise of standard deviation ``last`` z L / (n smooth) before it is released: a part of the
    least that b leaves in any direction, for n records and an objective that is ``smooth`` on average.
    """

    z: float
    parameters: int
    last: float = 0.05
    of_steps: ClassVar[bool] = False

    def __post_init__(self) -> None:
        settle(self)
        positive("noise_multiplier", self.z)
        whole("parameters", self.parameters, most=10**9)
        executable("last", self.last)

    def stds(self, first: int, last: int, schedule: Schedule, unit: float | None, divisor: float) -> Array:
        raise InputError("noise", "is drawn once, as a linear term of the objective: no step has noise of its own",
                         "ObjectiveNoise", "read it from the description")

    def constant(self, schedule: Schedule) -> bool:
        return False

    def scaled(self, factor: float) -> ObjectiveNoise:
        return replace(self, z=self.z * factor)

    def with_unit(self) -> ObjectiveNoise:
        return replace(self, z=1.0)


@final
@dataclass(frozen=True)
class SnapshotNoise(Perturbation):
    """Noise of variance-reduced steps on a linear model (DP-SVRG): it shrinks with the way since the last snapshot.

    Step k = 0, ``every``, 2 ``every``, ... takes a snapshot: the mean gradient of all n records at the iterate, with
    noise of standard deviation ``snapshot`` z L / n per coordinate, which it follows. All other steps follow the same
    noisy mean, and the mean over a batch of what every record's gradient has moved since: vectors that are clipped to
    c = min(2 L, beta |theta - snapshot|), with noise of z c / divisor. L and beta are the loss's Lipschitz constant and
    the smoothness of its data term (docs/theorems/variance-reduction).
    """

    z: float
    every: int
    snapshot: float
    of_steps: ClassVar[bool] = False

    def __post_init__(self) -> None:
        settle(self)
        positive("noise_multiplier", self.z)
        whole("every", self.every, least=2, most=10**9)
        executable("snapshot", self.snapshot)

    def stds(self, first: int, last: int, schedule: Schedule, unit: float | None, divisor: float) -> Array:
        raise InputError("noise", "must be of a size that is known before a step, and between snapshots it follows the "
                         "hidden parameters", "SnapshotNoise", "use NoiseMultiplier or GradientNoise")

    def constant(self, schedule: Schedule) -> bool:
        return False

    def scaled(self, factor: float) -> SnapshotNoise:
        return replace(self, z=self.z * factor)

    def with_unit(self) -> SnapshotNoise:
        return replace(self, z=1.0)


Noise = GradientNoise | Langevin | NoiseMultiplier | ObjectiveNoise | SnapshotNoise
