"""Noise of several steps at once, independent or correlated, computed while steps run.

Discrete noise is made in ``exact_noise.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple, TypeVar, final

import jax
import jax.numpy as jnp
import numpy as np

from lastiterate.engine.random import NOISE, PAIRS, Key, Number, gaussian, stream, streams
from lastiterate.engine.random import draw_normal_pairs as numbered_normals
from lastiterate.run.noise import Correlated
from lastiterate.run.run import Run

# The next item is made in a thread while the last one is used.

Item = TypeVar("Item")


def ahead(items: Iterator[Item]) -> Generator[Item, None, None]:
    """The same items: one is in use, and one is made or ready, so that two buffers serve.

    An error of ``items`` is raised where the item would have come; a caller that stops waits for
    the one in the making.
    """
    end = object()
    with ThreadPoolExecutor(1, "lastiterate-reads-ahead") as thread:
        made = thread.submit(next, items, end)
        try:
            while (item := made.result()) is not end:
                made = thread.submit(next, items, end)
                yield item  # type: ignore[misc]
        finally:
            made.exception()
            close = getattr(items, "close", None)
            if close is not None:
                close()


# Noise of several steps at once, by a program of its own: quicker than step by step, and the same
# bits. A program of steps is given its noise, so that it is compiled without the cipher, and runs
# of as many parameters share the program that draws.

Draws = Callable[[int, int, int, tuple[int, ...]], np.ndarray]
"""Noise of the sums of steps first .. last - 1 for parameters of a shape; padded to as many steps
as the third says."""
LONGEST = 512
"""Steps at most that are made with numbers that were drawn at once."""
MODELS_AT_ONCE = 2**22
"""Numbers that are drawn at once for many models."""


class Noise(NamedTuple):
    """Noise of steps ``first``, ``first`` + 1, ...; along the first axis, or the second for many
    models.

    ``units``: standard normal, which the plan scales. ``exact``: instead of it, what is added to
    the sums of gradients.
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
        many = max(
            1,
            min(
                LONGEST,
                all_steps,
                steps_ahead(shape),
                MODELS_AT_ONCE // (len(keys) * math.prod(shape)),
            ),
        )
        return cls(lambda first: Noise(first, normal_of_models(own, first, many, shape)), many)

    @classmethod
    def exact(cls, draws: Draws, shape: tuple[int, ...], steps: int) -> NoiseAhead:
        """Return the noise of sums, as ``draws`` gives it."""
        many = steps_ahead(shape)
        return cls(
            lambda first: Noise(first, exact=draws(first, min(first + many, steps), many, shape)),
            many,
        )

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
    """Standard normal noise of ``many`` steps from ``first`` on, (many, *shape); ``key``: the
    stream of a run's noise.

    ``many``: at most ``steps_ahead(shape)``. **Guarantee:** the noise of step k is ``gaussian(key,
    k, shape)``.
    """
    pairs = _pairs(shape)
    if pairs > PAIRS:
        return gaussian(key, first, shape)[None]
    return _of_steps(
        numbered_normals(key, *_blocks(pairs, PAIRS, PAIRS), _u64(first)), (many,), shape
    )


def _u64(step: Number) -> jax.Array:
    return jnp.asarray(step, jnp.uint64)


def normal_program(key: Key, shape: tuple[int, ...]) -> Any:
    """The program that ``normal`` calls, not compiled yet."""
    pairs = _pairs(shape)
    return (
        gaussian.lower(key, 0, shape)
        if pairs > PAIRS
        else numbered_normals.lower(key, *_blocks(pairs, PAIRS, PAIRS), _u64(0))
    )


def normal_of_models(
    keys: np.ndarray, first: Number, many: int, shape: tuple[int, ...]
) -> jax.Array:
    """The same for every key of many models (models, 4): (models, many, *shape)."""
    pairs = _pairs(shape)
    if pairs > PAIRS:
        return jnp.stack([normal(key, first, many, shape) for key in keys])
    blocks, together = _blocks(pairs, many, PAIRS), PAIRS // (many * pairs)
    halves = [
        numbered_normals(
            _of_each(keys[begin : begin + together], many * pairs), *blocks, _u64(first)
        )
        for begin in range(0, len(keys), together)
    ]
    return jnp.asarray(
        np.concatenate(
            [
                _arrange_noise(np, half, (min(together, len(keys) - i * together), many), shape)
                for i, half in enumerate(halves)
            ]
        )
    )


def _of_each(keys: np.ndarray, times: int) -> np.ndarray:
    """The words of every key as often as it is used, and some of the last ones again: (4, PAIRS)."""
    return np.ascontiguousarray(keys.repeat(times, 0).take(np.arange(PAIRS), 0, mode="clip").T)


@lru_cache(maxsize=16)
def _blocks(pairs: int, many: int, count: int) -> tuple[jax.Array, jax.Array]:
    """Return the positions of ``pairs`` in each of ``many`` steps, and these steps, one after the
    other and repeated."""
    number = np.arange(count, dtype=np.uint64)
    with jax.enable_x64(True):
        return jnp.asarray(number % np.uint64(pairs)), jnp.asarray(
            number // np.uint64(pairs) % np.uint64(many)
        )


def _arrange_noise(
    numpy: Any, halves: tuple[jax.Array, jax.Array], lead: tuple[int, ...], shape: tuple[int, ...]
) -> Any:
    """Noise of parameters of ``shape`` for all of ``lead``, from the first and the second numbers
    of pairs."""
    pairs = _pairs(shape)
    parts = [
        numpy.asarray(half)[: math.prod(lead) * pairs].reshape(*lead, pairs) for half in halves
    ]
    return numpy.concatenate(parts, -1)[..., : math.prod(shape)].reshape(*lead, *shape)


# compiled without the cipher, and steps do not wait for it
_of_steps = jax.jit(partial(_arrange_noise, jnp), static_argnums=(1, 2))


# What a compiled program is compiled for, and what it takes as arguments. Frozen dataclasses
# become JAX pytrees: their numbers are leaves, so arguments, and everything else (types, shapes,
# functions) is structure. Runs that differ in numbers only then share one compiled program.

Kind = TypeVar("Kind")
NUMBERS = ("float", "float | None", "np.ndarray")
"""Annotations of the fields that hold numbers; None instead of a number is structure."""


@cache  # a program's arguments are taken apart at every call
def names(kind: type) -> tuple[str, ...]:
    """Fields of a dataclass; none of ``None``."""
    return () if kind is type(None) else tuple(field.name for field in fields(kind))


@cache
def numeric(kind: type) -> tuple[str, ...]:
    """Return the fields that hold numbers."""
    return (
        ()
        if kind is type(None)
        else tuple(field.name for field in fields(kind) if field.type in NUMBERS)
    )


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True)
class NoiseArguments:
    """A description of a run (or None) whose numbers are arguments of compiled programs."""

    value: Any

    def tree_flatten(self) -> tuple[tuple[Any, ...], Any]:
        held = {name: getattr(self.value, name) for name in names(type(self.value))}  # pyright: ignore
        numbers = tuple(name for name in numeric(type(self.value)) if held[name] is not None)  # pyright: ignore
        rest = tuple((name, value) for name, value in held.items() if name not in numbers)
        return tuple(held[name] for name in numbers), (type(self.value), numbers, rest)

    @classmethod
    def tree_unflatten(cls, structure: tuple[Any, ...], numbers: tuple[Any, ...]) -> NoiseArguments:
        kind, names, rest = structure
        if kind is type(None):
            return cls(None)
        instance = object.__new__(kind)  # what it holds was checked before, and is traced now
        for name, value in (*zip(names, numbers, strict=True), *rest):
            object.__setattr__(instance, name, value)
        return cls(instance)


def register_pytree(kind: type[Kind]) -> type[Kind]:
    """Make an engine's frozen dataclass such a pytree."""

    def flatten(value: object) -> Any:
        return NoiseArguments(value).tree_flatten()

    jax.tree_util.register_pytree_node(  # pyright: ignore
        kind,
        flatten,
        lambda structure, numbers: (  # pyright: ignore
            NoiseArguments.tree_unflatten(structure, numbers).value
        ),
    )
    return kind


# How correlated noise is made: every step from its own draw and what the last steps made of theirs.

Recent = tuple[jax.Array, ...]
"""Nothing, or (m, ...): w of the last m steps, that of step k at index k mod m."""


@final
@register_pytree
@dataclass(frozen=True)
class NoiseRecursion:
    """Step k adds w_k - decay w_{k-1}, w_k = Z_k - sum_i taps[i - 1] w_{k-i}; before step 0 all are
    0.

    ``taps``: (m,) float64.

    **Guarantee:** all of the noise is a function of the draws Z_k alone, and Z_k that of step k of
    the run's one stream of noise: what is added over all steps is C^{-1} Z for the C of the
    description.
    """

    taps: np.ndarray
    decay: float

    @classmethod
    def of(cls, run: Run) -> NoiseRecursion | None:
        """Return the recursion of a run's noise; ``None`` where every step adds its own draw."""
        noise = run.noise
        if not isinstance(noise, Correlated):
            return None
        taps = np.array(noise.entries[1:] or (0.0,) * (noise.decay > 0))
        return cls(taps, noise.decay) if taps.size else None

    def memory(self, theta: jax.Array) -> Recent:
        """Return the memory before the first step."""
        return (jnp.zeros((len(self.taps), *theta.shape), jnp.float64),)

    def combine(self, recent: Recent, drawn: jax.Array, k: Number) -> tuple[jax.Array, Recent]:
        """Return the noise of step k, in units of a draw, from its draw; and the memory after
        it."""
        (held,) = recent
        size = len(self.taps)
        ages = (
            k - 1 - jnp.arange(size)
        ) % size  # of the entry at each index, without the last step's
        # both are read by one product: a second read would copy the band before a number of it is
        # replaced
        by_age = jnp.stack((jnp.asarray(self.taps), self.decay * (jnp.arange(size) == 0)))
        undone, last = jnp.tensordot(by_age[:, ages], held, 1)
        return drawn - undone - last, (held.at[k % size].set(drawn - undone),)
