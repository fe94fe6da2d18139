"""Strategies of correlated noise, weighed by what reaches the last iterate, in units of what one record can move."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lastiterate.analysis.matrix_columns import moved_draws
from lastiterate.run.correlated_noise import Correlated
from lastiterate.run.perturbation import Perturbation

POWERS = tuple(k / 20 for k in range(8, 18))
"""Of the series that are compared: the square root is best for one pass, larger ones for many."""


@dataclass
class TakenBack:
    """What the last iterate has of every draw, from what it has of every step's noise: C^{-T} times that, backwards."""

    entries: np.ndarray  #: c_1, ..., c_{p-1}
    decay: float
    later: np.ndarray  #: (p - 1, directions), of the steps behind: the next one first
    next: np.ndarray

    @classmethod
    def of(cls, noise: Perturbation, directions: int) -> TakenBack:
        """For the noise of a run; independent noise is its draws."""
        decay = noise.decay if isinstance(noise, Correlated) else 0.0
        rest = np.array(noise.entries[1:] if isinstance(noise, Correlated) else ())
        return cls(rest, decay, np.zeros((rest.size, directions)), np.zeros(directions))

    def of_draw(self, response: np.ndarray) -> np.ndarray:
        """Of the draw of step k, ``response`` that of what step k adds."""
        if not self.entries.size and not self.decay:
            return response
        kept, self.next = response - self.decay * self.next, response
        draw = kept - self.entries @ self.later
        self.later = np.vstack((draw, self.later))[: self.entries.size]
        return draw


def at_the_end(noise: Correlated, blocks: int, response: np.ndarray) -> float:
    """Standard deviation of the noise on the sum of ``response`` times every step, for mu = 1 and contributions of 1.

    ``response``: (T,). Ones: the sum of all steps, of which one release would need the number of passes.
    """
    back, variance = TakenBack.of(noise, 1), 0.0
    for one in response[::-1]:
        variance += float(back.of_draw(np.array([one]))[0]) ** 2
    return moved_draws(noise, blocks, len(response)) * math.sqrt(variance)


def on_the_way(noise: Correlated, blocks: int, steps: int) -> float:
    """Its root mean square over all partial sums."""
    sums = np.cumsum(added(noise, steps))
    return moved_draws(noise, blocks, steps) * math.sqrt(float(np.cumsum(sums**2).mean()))


def added(noise: Correlated, steps: int) -> np.ndarray:
    """What a draw at step 0 adds at all steps, (steps,): the first column of C^{-1}."""
    back = TakenBack.of(noise, 1)
    unit = np.zeros(steps)
    unit[0] = 1.0
    return np.array([back.of_draw(np.array([one]))[0] for one in unit])
