"""The parts a run is made of: step sizes, noise, batches, starts, momentum, preludes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lastiterate.errors import InputError

RANGE = (1e-30, 1e30)
"""Magnitudes of a run's numbers: products and squares of three of them stay far inside double precision, so that no
variance overflows and no sensitivity underflows."""


def positive(name: str, value: float, *, zero: bool = False) -> None:
    """Refuse anything that is not a positive (or, with ``zero``, non-negative) number within ``RANGE``."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not good or value < 0 or (value == 0 and not zero):
        raise InputError(name, "must be a finite number " + (">= 0" if zero else "> 0"), value)
    if value != 0 and not RANGE[0] <= value <= RANGE[1]:
        raise InputError(name, f"must lie between {RANGE[0]:g} and {RANGE[1]:g}", value, "choose other units")


def whole(name: str, value: int, least: int = 1, most: int = 10**12) -> None:
    """Refuse anything that is not a whole number between ``least`` and ``most``."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InputError(name, f"must be a whole number between {least} and {most}", value)


# Step sizes: step k = 0, 1, ... produces iterate k + 1.


@dataclass(frozen=True)
class Constant:
    """The same step size at every step."""

    value: float

    def __post_init__(self) -> None:
        positive("step_size", self.value)

    def at(self, step: int) -> float:
        return self.value


@dataclass(frozen=True)
class InverseDecay:
    """Step sizes ``1 / (2 beta + strong k / 2)`` (Ryffel et al. 2022, Corollary 3.2)."""

    beta: float
    strong: float

    def __post_init__(self) -> None:
        positive("beta of inverse-decay", self.beta)
        positive("strong of inverse-decay", self.strong, zero=True)

    def at(self, step: int) -> float:
        return 1.0 / (2.0 * self.beta + self.strong * step / 2.0)


@dataclass(frozen=True)
class Steps:
    """One step size per step."""

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(self.values))
        for value in self.values:
            positive("every entry of step_size", value)

    def at(self, step: int) -> float:
        return self.values[step]


StepSize = Constant | InverseDecay | Steps

# Noise: the canonical quantity is the standard deviation per coordinate of the noise on the mean gradient.


@dataclass(frozen=True)
class GradientNoise:
    """Noise N(0, std^2 I) on the mean gradient; one number, or one per step."""

    std: float | tuple[float, ...]

    def __post_init__(self) -> None:
        if isinstance(self.std, list | tuple):
            object.__setattr__(self, "std", tuple(self.std))
        for value in self.std if isinstance(self.std, tuple) else (self.std,):
            positive("noise std", value, zero=True)


@dataclass(frozen=True)
class Langevin:
    """Noise sqrt(2 step) sigma N(0, I) on the iterate; sigma^2 is the temperature."""

    sigma: float

    def __post_init__(self) -> None:
        positive("sigma", self.sigma, zero=True)


@dataclass(frozen=True)
class NoiseMultiplier:
    """Noise of ``z`` times the clipping norm (or the Lipschitz constant) over the public divisor."""

    z: float

    def __post_init__(self) -> None:
        positive("noise_multiplier", self.z, zero=True)


Noise = GradientNoise | Langevin | NoiseMultiplier

# Batches.


@dataclass(frozen=True)
class FullBatch:
    """Every record at every step."""


@dataclass(frozen=True)
class _Sized:
    size: int

    def __post_init__(self) -> None:
        whole("batch size", self.size)


@dataclass(frozen=True)
class Cyclic(_Sized):
    """Contiguous blocks of ``size`` records in public order, the same every pass."""


@dataclass(frozen=True)
class Permuted(_Sized):
    """One secret uniform permutation of the records, then the same blocks every pass."""


@dataclass(frozen=True)
class Reshuffled(_Sized):
    """A fresh secret uniform permutation of the records before every pass, cut into blocks of ``size``."""


@dataclass(frozen=True)
class FixedSize(_Sized):
    """A fresh uniform subset of ``size`` records at every step."""


@dataclass(frozen=True)
class BallsInBins(_Sized):
    """Every record in one of ceil(n / size) secret batches, independently, the same every pass."""


@dataclass(frozen=True)
class Poisson:
    """Every record in every batch independently with probability ``rate``."""

    rate: float

    def __post_init__(self) -> None:
        if not 1e-9 <= self.rate <= 1:
            raise InputError("rate of poisson batches", "must lie in [1e-9, 1]", self.rate)


Batching = FullBatch | Cyclic | Permuted | Reshuffled | FixedSize | BallsInBins | Poisson

# Starts, momentum, preludes.


@dataclass(frozen=True)
class Fixed:
    """Start at 0, or at public parameters that the caller gives (projected onto the domain)."""


@dataclass(frozen=True)
class GaussianStart:
    """Start at N(0, std^2 I), projected onto the domain; independent of the data."""

    std: float

    def __post_init__(self) -> None:
        positive("start std", self.std)


Start = Fixed | GaussianStart


@dataclass(frozen=True)
class Nesterov:
    """Nesterov's momentum with the coefficient (k - 1) / (k + 2) at step k = 1, 2, ..."""


@dataclass(frozen=True)
class HeavyBall:
    """Polyak's momentum with a constant coefficient."""

    beta: float

    def __post_init__(self) -> None:
        if not 0 <= self.beta < 1:
            raise InputError("momentum", "must lie in [0, 1)", self.beta)


Momentum = Nesterov | HeavyBall


@dataclass(frozen=True)
class PrivateMean:
    """Centre the rows by their mean, estimated once with Gaussian noise.

    The sum of the rows, clipped to ``row_norm``, gets noise of ``noise_multiplier * row_norm`` per coordinate.
    """

    noise_multiplier: float
    row_norm: float

    def __post_init__(self) -> None:
        positive("noise_multiplier of the private mean", self.noise_multiplier)
        positive("row_norm of the private mean", self.row_norm)


Prelude = PrivateMean
