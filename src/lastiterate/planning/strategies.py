"""Strategies of correlated noise: what they add at every step, and what the last iterate has of every draw."""

from __future__ import annotations

from typing import cast

import numpy as np

from lastiterate.run.correlated_noise import Correlated
from lastiterate.run.perturbation import Perturbation

POWERS = tuple(k / 20 for k in range(8, 18))
"""Of the series that are compared: the square root is best for one pass, larger ones for many."""


def of_draws(noise: Perturbation, responses: np.ndarray) -> np.ndarray:
    """What the last iterate has of every draw, (T, ...), from what it has of every step's noise: C^{-T} times that.

    Independent noise is its draws.
    """
    if not isinstance(noise, Correlated):
        return responses
    column = added(noise, len(responses)).reshape(-1, *(1,) * (responses.ndim - 1))
    return _product(column, responses[::-1])[::-1]


def added(noise: Correlated, steps: int) -> np.ndarray:
    """What a draw at step 0 adds at all steps, (steps,): the first column of C^{-1}.

    A power series, whose inverse has twice as many right terms after every step of Newton's method.
    """
    series, inverse = np.zeros(steps), np.ones(1)
    series[:len(noise.entries)] = noise.entries[:steps]
    while len(inverse) < steps:
        longer = np.zeros(min(2 * len(inverse), steps))
        longer[:len(inverse)] = inverse
        inverse = 2 * longer - _product(longer, _product(longer, series[:len(longer)]))
    return _product(np.array([1.0, -noise.decay]), inverse)[:steps]


def _product(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    """Of two power series along the first axis, as many terms as the second has."""
    from scipy.signal import fftconvolve  # pyright: ignore

    return cast(np.ndarray, fftconvolve(one, two, axes=0))[:len(two)]
