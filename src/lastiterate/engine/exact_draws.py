"""Exact noise for sums of whole numbers, one stream of bits for every step and for every part of the preparation."""

from __future__ import annotations

import math

import numpy as np

from lastiterate.engine.exact_noise import REACH, DiscreteGaussian
from lastiterate.engine.gaussian_noise import Key
from lastiterate.engine.noise_ahead import Draws
from lastiterate.engine.random_bits import Bits, derived
from lastiterate.run.run import Run

LARGEST = 2**51
"""Whole numbers that a sum and its noise stay below, in units of the grid: float64 adds them exactly in any order."""


def places_for(most: float, std: float) -> int:
    """Binary places for which sums of at most ``most`` with noise of deviation ``std`` stay exact: public numbers."""
    return math.floor(math.log2(LARGEST / (most + 2 * REACH * std)))


def draws_of(run: Run, grid: float, key: Key) -> Draws:
    """Discrete Gaussian noise of the sums, in multiples of ``grid``: a function of the key and the step."""
    secret = derived(np.asarray(key).tobytes(), "exact noise")

    def draws(first: int, last: int, space: int, shape: tuple[int, ...]) -> np.ndarray:
        noise = np.zeros((space, *shape))
        for k in range(first, last):
            sigma = float(run.noise_stds[k]) * run.divisor / grid
            noise[k - first] = DiscreteGaussian(sigma).sample(Bits(secret, k), math.prod(shape)).reshape(shape)
        return noise * grid

    return draws


def preparation_bits(key: Key, part: int) -> Bits:
    """The bits of one part of the preparation."""
    return Bits(derived(np.asarray(key).tobytes(), "exact preparation"), part)
