"""Where a released sample's randomness comes from: the operating system, or a generator that the caller gave."""

from __future__ import annotations

import math
from random import SystemRandom
from typing import Protocol

import numpy as np

from lastiterate.run.arrays import Array

GIVEN = "the caller gave the generator: whoever knows its state can subtract the noise"
"""The caveat of a certificate whose sample was drawn from a caller's generator."""


class Source(Protocol):
    """What samplers draw from."""

    def normal(self, count: int) -> Array:
        """Standard normal numbers, shape (count,)."""
        ...

    def laplace(self, scale: float) -> float:
        """One centred Laplace number of density exp(-|x| / scale) / (2 scale)."""
        ...


class System:
    """The operating system's generator: every number from fresh secret bits, nothing kept between calls."""

    def normal(self, count: int) -> Array:
        # Box and Muller with 53 bits: no number beyond 8.6 standard deviations, a tail of 1e-17
        source = SystemRandom()
        radius = [math.sqrt(-2 * math.log1p(-source.random())) for _ in range(count)]
        return np.array([r * math.cos(2 * math.pi * source.random()) for r in radius])

    def laplace(self, scale: float) -> float:
        source = SystemRandom()
        return scale * (math.log1p(-source.random()) - math.log1p(-source.random()))


class Given:
    """A NumPy generator, for tests and audits."""

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator

    def normal(self, count: int) -> Array:
        return self._generator.standard_normal(count)

    def laplace(self, scale: float) -> float:
        return float(self._generator.laplace(0.0, scale))


def source_of(generator: np.random.Generator | None) -> tuple[Source, tuple[str, ...]]:
    """The source of randomness, and the caveat it brings (none for the operating system's)."""
    return (System(), ()) if generator is None else (Given(generator), (GIVEN,))
