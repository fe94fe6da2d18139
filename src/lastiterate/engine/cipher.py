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
PLACES = np.array([[(group + i) % 5 for i in range(4)] for group in range(1, ROUNDS // 4 + 1)])
NUMBERS = np.array([[0, 0, 0, group] for group in range(1, ROUNDS // 4 + 1)], np.uint32)
"""What is added after every fourth round, and the key before the first: words of the schedule, a number to the last."""
Pair = tuple[jax.Array, jax.Array]
Words = tuple[Any, Any, Any, Any]


AT_ONCE, FEW = 2**16, 2**13
"""Blocks that are encrypted at once (their words stay in the cache), and up to which rounds are a loop."""


@jax.jit
def encrypted(key: np.ndarray | jax.Array, first: jax.Array, second: jax.Array) -> Pair:
    """Blocks ``(first, second)`` of a counter, uint64 of one shape, under a key of four words of 32 bits: (4,), or
    (4, ...) with one key for each block, of which there are 2^17 at most."""
    assert first.dtype == second.dtype == jnp.uint64, "64-bit JAX is off, and half of the counter was lost"
    if first.size <= 2 * AT_ONCE:
        return _encrypted(key, first, second)

    def in_pieces(values: jax.Array) -> jax.Array:
        return jnp.pad(values.reshape(-1), (0, -values.size % AT_ONCE)).reshape(-1, AT_ONCE)  # pyright: ignore

    pieces = jax.lax.map(lambda pair: _encrypted(key, *pair), (in_pieces(first), in_pieces(second)))
    one, two = (each.reshape(-1)[:first.size].reshape(first.shape) for each in pieces)
    return one, two


def _encrypted(key: np.ndarray | jax.Array, first: jax.Array, second: jax.Array) -> Pair:
    """All blocks at once."""
    words = [key[i] for i in range(4)]
    schedule = [*words, words[0] ^ words[1] ^ words[2] ^ words[3] ^ PARITY]
    state = with_key(parts((first, second)), schedule[:4])
    a, b, c, d = (rolled if first.size <= FEW and key.ndim == 1 else written_out)(state, schedule)
    return joined(a, b), joined(c, d)


def written_out(state: Words, schedule: list[Any]) -> Words:
    """All rounds, four at a time: the quickest for many blocks."""
    def four(group: int) -> Callable[[Words], Words]:
        def rounds(state: Words) -> Words:
            for number in range(4 * group, 4 * group + 4):
                state = mixed(state, *map(np.uint32, TURNS[number % 8]))
            return with_key(state, [schedule[place] + NUMBERS[group, i] for i, place in enumerate(PLACES[group])])
        return rounds

    groups = [four(group) for group in range(ROUNDS // 4)]
    # a loop, though every group of rounds differs: what is written out takes very long to compile
    return jax.lax.fori_loop(jnp.int32(0), jnp.int32(len(groups)), lambda i, state: jax.lax.switch(i, groups, state),
                             state)


def rolled(state: Words, schedule: list[Any]) -> Words:
    """A loop over single rounds: a third of the instructions, which are most of what a small program has to compile."""
    turns = jnp.asarray(np.array([TURNS[number % 8] for number in range(ROUNDS)], np.uint32))
    added = jnp.stack(schedule)[PLACES] + NUMBERS
    keys = jnp.pad(added[:, None], ((0, 0), (3, 0), (0, 0))).reshape(ROUNDS, 4)  # pyright: ignore

    def body(state: jax.Array, round: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        a, b, c, d = state
        return jnp.stack(with_key(mixed((a, b, c, d), *round[0]), round[1])), None

    # words in one array and not in four: a round is one kernel, and what is copied between two is one
    a, b, c, d = jax.lax.scan(body, jnp.stack(state), (turns, keys))[0]
    return a, b, c, d


def with_key(state: Words, added: Any) -> Words:
    """Words of the schedule are added."""
    a, b, c, d = (word + added[i] for i, word in enumerate(state))
    return a, b, c, d


def mixed(state: Words, one: np.uint32 | jax.Array, two: np.uint32 | jax.Array) -> Words:
    """A round; the second word and the fourth change places in every one."""
    a, b, c, d = state
    a, c = a + b, c + d
    return a, turned(d, two) ^ c, c, turned(b, one) ^ a


def turned(word: jax.Array, bits: np.uint32 | jax.Array) -> jax.Array:
    """32 bits rotated to the left by ``bits``, 1 to 31."""
    return (word << bits) | (word >> (np.uint32(32) - bits))


def parts(pair: Pair) -> Words:
    """The four words of a block."""
    a, b, c, d = (half.astype(jnp.uint32) for p in pair for half in (p, p >> np.uint64(32)))
    return a, b, c, d


def joined(low: jax.Array, high: jax.Array) -> Any:
    """Two words of 32 bits as one of 64."""
    return low.astype(jnp.uint64) | (high.astype(jnp.uint64) << np.uint64(32))
