"""Noise of several steps at once, by a program of its own: quicker than step by step, and the same bits.

A program of steps is given its noise, so that it is compiled without the cipher, and runs of as many parameters share
the program that draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lastiterate.engine.gaussian_noise import NOISE, PAIRS, Key, Number, gaussian, numbered, stream, streams

Draws = Callable[[int, int, int, tuple[int, ...]], np.ndarray]
"""Noise of the sums of steps first .. last - 1 for parameters of a shape; padded to as many steps as the third says."""
LONGEST = 512
"""Steps at most that are made with numbers that were drawn at once."""
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
        own, all_steps = np.asarray(streams(keys, NOISE)), 1 << (steps - 1).bit_length()
        many = max(1, min(LONGEST, all_steps, steps_ahead(shape), MODELS_AT_ONCE // (len(keys) * math.prod(shape))))
        return cls(lambda first: Noise(first, normal_of_models(own, first, many, shape)), many)

    @classmethod
    def exact(cls, draws: Draws, shape: tuple[int, ...], steps: int) -> NoiseAhead:
        """Of sums, as ``draws`` gives it."""
        many = steps_ahead(shape)
        return cls(lambda first: Noise(first, exact=draws(first, min(first + many, steps), many, shape)), many)

    def at(self, k: int) -> tuple[Noise, int]:
        """Noise of step k and of steps after it, and the first step that is not to be made with it."""
        if self._held is None or not self._held.first <= k < self._held.first + self.many:
            self._held = self.drawn(k)
        return self._held, min(int(self._held.first) + self.many, k + LONGEST)


def steps_ahead(shape: tuple[int, ...]) -> int:
    """Steps whose noise is drawn at once."""
    return max(1, PAIRS // _pairs(shape))


def _pairs(shape: tuple[int, ...]) -> int:
    return (math.prod(shape) + 1) // 2


def normal(key: Key, first: Number, many: int, shape: tuple[int, ...]) -> jax.Array:
    """Standard normal noise of ``many`` steps from ``first`` on, (many, *shape); ``key``: the stream of a run's noise.

    ``many``: at most ``steps_ahead(shape)``. **Guarantee:** the noise of step k is ``gaussian(key, k, shape)``.
    """
    pairs = _pairs(shape)
    if pairs > PAIRS:
        return gaussian(key, first, shape)[None]
    return _of_steps(numbered(key, *_blocks(pairs, PAIRS, PAIRS), _u64(first)), (many,), shape)


def _u64(step: Number) -> jax.Array:
    return jnp.asarray(step, jnp.uint64)


def drawing_program(key: Key, shape: tuple[int, ...]) -> Any:
    """The program that ``normal`` calls, not compiled yet."""
    pairs = _pairs(shape)
    return (gaussian.lower(key, 0, shape) if pairs > PAIRS
            else numbered.lower(key, *_blocks(pairs, PAIRS, PAIRS), _u64(0)))


def normal_of_models(keys: np.ndarray, first: Number, many: int, shape: tuple[int, ...]) -> jax.Array:
    """The same for every key of many models (models, 4): (models, many, *shape)."""
    pairs = _pairs(shape)
    if pairs > PAIRS:
        return jnp.stack([normal(key, first, many, shape) for key in keys])
    blocks, together = _blocks(pairs, many, PAIRS), PAIRS // (many * pairs)
    halves = [numbered(_of_each(keys[begin:begin + together], many * pairs), *blocks, _u64(first))
              for begin in range(0, len(keys), together)]
    return jnp.asarray(np.concatenate([_arranged(np, half, (min(together, len(keys) - i * together), many), shape)
                                       for i, half in enumerate(halves)]))


def _of_each(keys: np.ndarray, times: int) -> np.ndarray:
    """The words of every key as often as it is used, and some of the last ones again: (4, PAIRS)."""
    return np.ascontiguousarray(keys.repeat(times, 0).take(np.arange(PAIRS), 0, mode="clip").T)


@lru_cache(maxsize=16)
def _blocks(pairs: int, many: int, count: int) -> tuple[jax.Array, jax.Array]:
    """Places of ``pairs`` in each of ``many`` steps, and these steps, one after the other and over again."""
    number = np.arange(count, dtype=np.uint64)
    with jax.enable_x64(True):
        return jnp.asarray(number % np.uint64(pairs)), jnp.asarray(number // np.uint64(pairs) % np.uint64(many))


def _arranged(numpy: Any, halves: tuple[jax.Array, jax.Array], lead: tuple[int, ...], shape: tuple[int, ...]) -> Any:
    """Noise of parameters of ``shape`` for all of ``lead``, from the first and the second numbers of pairs."""
    pairs = _pairs(shape)
    parts = [numpy.asarray(half)[:math.prod(lead) * pairs].reshape(*lead, pairs) for half in halves]
    return numpy.concatenate(parts, -1)[..., :math.prod(shape)].reshape(*lead, *shape)


# compiled without the cipher, and steps do not wait for it
_of_steps = jax.jit(partial(_arranged, jnp), static_argnums=(1, 2))
