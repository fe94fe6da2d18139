"""Noise: the canonical quantity is the standard deviation per coordinate of the noise on the mean gradient."""

from __future__ import annotations

from dataclasses import dataclass

from lastiterate.run.validate import positive


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
