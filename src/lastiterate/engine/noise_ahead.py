"""Noise of several steps at once, by a program of its own: quicker than step by step, and the same bits.

A program of steps is given its noise, so that it is compiled without the cipher, and runs of as many parameters share
the program that draws.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lastiterate.engine.gaussian_noise import NOISE, Key, Number, gaussian, stream, streams

Draws = Callable[[int, int, int, tuple[int, ...]], np.ndarray]
"""Noise of the sums of steps first .. last - 1 for parameters of a shape; padded to as many steps as the third says."""
AT_ONCE, LONGEST = 2**16, 512
"""Numbers that are drawn at once, half a MB, which stays in the cache with what it is made of; and steps at most."""
MODELS_AT_ONCE = 2**22
"""Numbers that are drawn at once for many models."""


class Noise(NamedTuple):
    """Noise of steps ``first``, ``first`` + 1, ...; along the first axis, or the second for many models.

    ``units``: standard normal, which the plan scales. ``exact``: in its place, what is added to the sums of gradients.
    """

    first: Number
    units: Any = None
    exact: Any = None


@dataclass
class NoiseAhead:
    """Noise of one step after the other, ``many`` of them drawn at once by ``drawn(first)``."""

    drawn: Callable[[int], Noise]
    many: int
    _held: Noise | None = None

    @classmethod
    def normal(cls, key: Key, shape: tuple[int, ...]) -> NoiseAhead:
        """From a run's key, for parameters of ``shape``."""
        own, many = stream(key, NOISE), steps_ahead(shape)
        return cls(lambda first: Noise(first, normal(own, first, many, shape)), many)

    @classmethod
    def of_models(cls, keys: Key, shape: tuple[int, ...], steps: int) -> NoiseAhead:
        """From the keys (models, 4) of many models that make ``steps`` steps."""
        own, all_steps = streams(keys, NOISE), 1 << (steps - 1).bit_length()
        many = max(1, min(LONGEST, all_steps, MODELS_AT_ONCE // (len(keys) * int(np.prod(shape)))))
        return cls(lambda first: Noise(first, normal_of_models(own, first, many, shape)), many)

    @classmethod
    def exact(cls, draws: Draws, shape: tuple[int, ...], steps: int) -> NoiseAhead:
        """Of sums, as ``draws`` gives it."""
        many = steps_ahead(shape)
        return cls(lambda first: Noise(first, exact=draws(first, min(first + many, steps), many, shape)), many)

    def at(self, k: int) -> tuple[Noise, int]:
        """Noise of step k and of steps after it, and the first step that it does not reach."""
        if self._held is None or not self._held.first <= k < self._held.first + self.many:
            self._held = self.drawn(k)
        return self._held, int(self._held.first) + self.many


def steps_ahead(shape: tuple[int, ...]) -> int:
    """Steps whose noise is drawn at once."""
    return max(1, min(LONGEST, AT_ONCE // int(np.prod(shape))))


@partial(jax.jit, static_argnums=(2, 3))
def normal(key: Key, first: Number, many: int, shape: tuple[int, ...]) -> jax.Array:
    """Standard normal noise of ``many`` steps from ``first`` on, (many, *shape); ``key``: the stream of a run's noise.

    **Guarantee:** that of step k is ``gaussian(key, k, shape)``, whatever it is drawn with.
    """
    return jax.vmap(lambda k: gaussian(key, k, shape))(first + jnp.arange(many))


@partial(jax.jit, static_argnums=(2, 3))
def normal_of_models(keys: Key, first: Number, many: int, shape: tuple[int, ...]) -> jax.Array:
    """The same for every key of many models, (models, many, *shape)."""
    return jax.vmap(lambda key: normal(key, first, many, shape))(keys)
