"""Keys of records: random bits that follow from a record's number and the step, and from nothing else in the batch.

Records bring their numbers as one more column, which samplers, sorts and scratch files carry like every other. Where a
step reads a chunk, keys take the numbers' place.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lastiterate.engine.cipher import encrypted, parts
from lastiterate.engine.gaussian_noise import Key, Number, stream
from lastiterate.run.record_draws import MOST_COPIES

RECORDS = np.uint64(2**62)
"""The stream of records' keys among those of the secret draws; passes and steps have smaller numbers."""
WORDS = 2
"""Words of 32 bits of a record's key."""


def with_keys(chunk: tuple[Any, ...], order: Key, k: Number, copies: int) -> Any:
    """A chunk (records, numbers, which slots are real) with keys of step k, (m, copies, ``WORDS``) uint32, for the
    numbers.

    ``order``: the stream of secret draws.
    """
    *records, numbers, real = chunk
    return (*records, keys_of(order, numbers, k, copies), real)


def keys_of(order: Key, numbers: np.ndarray | jax.Array, k: Number, copies: int = 1) -> jax.Array:
    """The keys of step k of the records of these ``numbers``, one for each copy, (m, copies, ``WORDS``) uint32."""
    first = jnp.repeat(numbers.astype(jnp.uint64), copies)
    second = jnp.asarray(k, jnp.uint64) * MOST_COPIES + jnp.tile(jnp.arange(copies, dtype=jnp.uint64), numbers.size)
    pair = encrypted(stream(order, RECORDS), first, second)
    return jnp.stack(parts(pair)[:WORDS], axis=-1).reshape(numbers.size, copies, WORDS)


_keys = jax.jit(keys_of)


def keys_of_batch(order: Key, numbers: np.ndarray, k: int) -> np.ndarray:
    """The same for the first copies of a batch of any size, on the host, (m, ``WORDS``); few sizes are compiled."""
    padded = np.zeros(1 << max(0, len(numbers) - 1).bit_length(), np.int64)
    padded[:len(numbers)] = numbers
    return np.asarray(_keys(order, padded, k))[:len(numbers), 0]


def in_copies(records: tuple[Any, ...]) -> tuple[Any, ...]:
    """Every record as often as it has keys, one after the other, with one of them; (m copies, ...)."""
    *rest, keys = records
    rest = jax.tree.map(lambda a: jnp.repeat(a, keys.shape[1], axis=0), rest) if keys.shape[1] > 1 else rest
    return (*rest, keys.reshape(-1, WORDS))


def as_key(words: jax.Array) -> jax.Array:
    """Two words as a key of threefry, whose bits follow from it alone."""
    return jax.random.wrap_key_data(words, impl="threefry2x32")  # pyright: ignore
