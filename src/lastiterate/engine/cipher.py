"""Threefry with four words of 32 bits and 20 rounds (Salmon, Moraes, Dror, Shaw 2011): 128 bits of key, 128 of counter.

Derived from the block cipher Threefish; no way is known to distinguish it from random bits that is quicker than trying
keys. It is no certified cipher. Outside, words lie in pairs, (x0, x1) and (x2, x3), as 64 bits each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

PARITY = np.uint32(0x1BD11BDA)
TURNS = ((10, 26), (11, 21), (13, 27), (23, 5), (6, 20), (17, 11), (25, 10), (18, 20))
"""Bits that two words are rotated by in a round; the eighth is followed by the first again."""
ROUNDS = 20
Pair = tuple[jax.Array, jax.Array]
Words = tuple[Any, Any, Any, Any]


AT_ONCE = 2**16
"""Blocks that are encrypted at once: their words stay in the cache."""


@jax.jit
def encrypted(key: Any, first: jax.Array, second: jax.Array) -> Pair:
    """Blocks ``(first, second)`` of a counter under a key of four 32-bit words; all of them uint64, of one shape."""
    assert first.dtype == second.dtype == jnp.uint64, "64-bit JAX is off, and half of the counter was lost"
    if first.size <= 2 * AT_ONCE:
        return _encrypted(key, first, second)

    def in_pieces(values: jax.Array) -> jax.Array:
        return jnp.pad(values.reshape(-1), (0, -values.size % AT_ONCE)).reshape(-1, AT_ONCE)

    found = jax.lax.map(lambda pair: _encrypted(key, *pair), (in_pieces(first), in_pieces(second)))
    one, two = (each.reshape(-1)[:first.size].reshape(first.shape) for each in found)
    return one, two


def _encrypted(key: Any, first: jax.Array, second: jax.Array) -> Pair:
    """All blocks at once."""
    words = [key[i] for i in range(4)]
    schedule = [*words, words[0] ^ words[1] ^ words[2] ^ words[3] ^ PARITY]

    def with_key(state: Words, number: int) -> Words:
        a, b, c, d = (state[i] + schedule[(number + i) % 5] for i in range(4))
        return a, b, c, d + np.uint32(number)

    def four(number: int) -> Callable[[Words], Words]:
        return lambda state: with_key(mixed(state, number % 2 * 4), number + 1)

    groups = [four(number) for number in range(ROUNDS // 4)]
    # a loop, though every group of rounds differs: what is written out takes very long to compile
    a, b, c, d = jax.lax.fori_loop(jnp.int32(0), jnp.int32(len(groups)),
                                   lambda i, state: jax.lax.switch(i, groups, state),
                                   with_key(parts((first, second)), 0))
    return joined(a, b), joined(c, d)


def mixed(state: Words, begin: int) -> Words:
    """Four rounds, the first of which is round ``begin`` of eight."""
    a, b, c, d = state
    for number in range(begin, begin + 4):
        one, two = TURNS[number]
        if number % 2 == 0:
            a, c = a + b, c + d
            b, d = turned(b, one) ^ a, turned(d, two) ^ c
        else:
            a, c = a + d, c + b
            d, b = turned(d, one) ^ a, turned(b, two) ^ c
    return a, b, c, d


def turned(word: Any, bits: int) -> Any:
    """32 bits rotated to the left."""
    return (word << np.uint32(bits)) | (word >> np.uint32(32 - bits))


def parts(pair: Pair) -> Words:
    """The four words of a block."""
    a, b, c, d = (half.astype(jnp.uint32) for p in pair for half in (p, p >> np.uint64(32)))
    return a, b, c, d


def joined(low: Any, high: Any) -> Any:
    """Two words of 32 bits as one of 64."""
    return low.astype(jnp.uint64) | (high.astype(jnp.uint64) << np.uint64(32))
