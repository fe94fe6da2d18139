"""How correlated noise is made: every step from its own draw and what the last steps made of theirs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import jax
import jax.numpy as jnp
import numpy as np

from lastiterate.engine.gaussian_noise import Number
from lastiterate.engine.structure import numbered
from lastiterate.run.correlated_noise import Correlated
from lastiterate.run.run import Run

Recent = tuple[jax.Array, ...]
"""Nothing, or (m, ...): w of the last m steps, that of step k at place k mod m."""


@final
@numbered
@dataclass(frozen=True)
class NoiseRecursion:
    """Step k adds w_k - decay w_{k-1}, w_k = Z_k - sum_i taps[i - 1] w_{k-i}; before step 0 all are 0.

    ``taps``: (m,) float64.

    **Guarantee:** all of the noise is a function of the draws Z_k alone, and Z_k that of step k of the run's one stream
    of noise: what is added over all steps is C^{-1} Z for the C of the description.
    """

    taps: np.ndarray
    decay: float

    @classmethod
    def of(cls, run: Run) -> NoiseRecursion | None:
        """Of a run's noise; ``None`` where every step adds its own draw."""
        noise = run.noise
        if not isinstance(noise, Correlated):
            return None
        taps = np.array(noise.entries[1:] or (0.0,) * (noise.decay > 0))
        return cls(taps, noise.decay) if taps.size else None

    def memory(self, theta: jax.Array) -> Recent:
        """What is remembered before the first step."""
        return (jnp.zeros((len(self.taps), *theta.shape), jnp.float64),)

    def made(self, recent: Recent, drawn: jax.Array, k: Number) -> tuple[jax.Array, Recent]:
        """What step k adds, in units of a draw, from its draw; and what is remembered after it."""
        (held,) = recent
        size = len(self.taps)
        ages = (k - 1 - jnp.arange(size)) % size  # of what stands at each place, without the last step's
        # both are read by one product: a second read would copy the band before a number of it is replaced
        by_age = jnp.stack((jnp.asarray(self.taps), self.decay * (jnp.arange(size) == 0)))
        undone, last = jnp.tensordot(by_age[:, ages], held, 1)
        return drawn - undone - last, (held.at[k % size].set(drawn - undone),)
