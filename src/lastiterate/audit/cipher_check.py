"""Whether random bits are those of Threefry-4x32-20, which is written out again here, in the audit's own code.

No attack on released numbers distinguishes a cipher with fewer rounds, or another rotation, from the right one; who
knows the difference may. Source: Salmon, Moraes, Dror, Shaw 2011, table 2, and the key schedule of Threefish
(section 4).
"""

from __future__ import annotations

import jax
import numpy as np

from lastiterate.engine import seeded_keys
from lastiterate.engine.cipher import FEW, encrypted

WORDS = "the random bits are not those of Threefry-4x32-20"
ROTATIONS = ((10, 26), (11, 21), (13, 27), (23, 5), (6, 20), (17, 11), (25, 10), (18, 20))
COUNTS = (3, FEW + 1)
"""Blocks at once: the engine has a program for few and one for many."""
SEED = 19


def violations() -> tuple[str, ...]:
    """In words, if a block of the engine's is another than it should be."""
    rng, keys = np.random.default_rng(SEED), np.asarray(seeded_keys(SEED, len(COUNTS)))
    for key, count in zip(keys, COUNTS, strict=True):
        first, second = rng.integers(0, 2**64, (2, count), np.uint64)
        with jax.enable_x64(True):
            blocks: list[np.ndarray] = [np.asarray(part) for part in encrypted(key, first, second)]  # pyright: ignore
        if not all(np.array_equal(one, two) for one, two in zip(blocks, threefry(key, first, second), strict=True)):
            return (WORDS,)
    return ()


def threefry(key: np.ndarray, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both halves of every block, uint64, as the paper has it; ``key``: four words of 32 bits."""
    words = [part.astype(np.uint32) for pair in (first, second) for part in (pair, pair >> np.uint64(32))]
    schedule = [*key.astype(np.uint32), np.bitwise_xor.reduce(key.astype(np.uint32)) ^ np.uint32(0x1BD11BDA)]
    with np.errstate(over="ignore"):
        words = [word + part for word, part in zip(words, schedule, strict=False)]
        for number in range(20):
            left, right = ROTATIONS[number % 8]
            words[0], words[2] = words[0] + words[1], words[2] + words[3]
            one, three = _rolled(words[1], left) ^ words[0], _rolled(words[3], right) ^ words[2]
            words[1], words[3] = three, one
            if number % 4 == 3:
                group = number // 4 + 1
                words = [word + schedule[(group + place) % 5] for place, word in enumerate(words)]
                words[3] = words[3] + np.uint32(group)
    return _joined(words[0], words[1]), _joined(words[2], words[3])


def _joined(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(32)


def _rolled(word: np.ndarray, bits: int) -> np.ndarray:
    return word << np.uint32(bits) | word >> np.uint32(32 - bits)
