"""Noise on sums of steps by strategies of correlated noise, in units of what one record can move."""

from __future__ import annotations

import math

import numpy as np

from lastiterate.analysis.shifts import shift_in_draws
from lastiterate.planning.task import inverse_column, of_draws
from lastiterate.run.noise import Correlated


def seasonal(power: float, season: float, blocks: int, passes: int) -> Correlated:
    """The first coefficients of (1 - x)^-power (1 - x^blocks)^season, as many as so many passes
    have steps.

    The second factor takes from a record's later columns what they share with its earlier ones, so
    that its contributions hardly add up; the noise is still taken back over several passes.
    (Seasonal fractional differencing: Porter-Hudak 1990.)
    """
    every, back = Correlated(1.0, blocks * passes, power).entries, np.zeros(blocks * passes)
    k = np.arange(1, passes)
    back[::blocks] = np.cumprod([1.0, *((k - 1 - season) / k)])
    return Correlated(1.0, tuple(np.convolve(every, back)[: len(every)].tolist()))


def at_the_end(noise: Correlated, blocks: int, response: np.ndarray) -> float:
    """Standard deviation of the noise on the sum of ``response`` times every step, for mu = 1 and
    contributions of 1.

    ``response``: (T,). Ones: the sum of all steps, of which one release would need the number of
    passes.
    """
    return shift_in_draws(noise, blocks, len(response)) * float(
        np.linalg.norm(of_draws(noise, response))
    )


def on_the_way(noise: Correlated, blocks: int, steps: int) -> float:
    """Its root mean square over all partial sums."""
    sums = np.cumsum(inverse_column(noise, steps))
    return shift_in_draws(noise, blocks, steps) * math.sqrt(float(np.cumsum(sums**2).mean()))
