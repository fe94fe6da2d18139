"""The draws of one pass, on the host: the words of a compiled program, sorted faster than programs
sort."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lastiterate.engine.random import ORDER, Key, Number, host_stream, stream
from lastiterate.engine.random import words as words_of

DIGIT = 16
"""Bits of a digit: NumPy sorts numbers of 16 bits by counting, several times faster than longer
ones."""


AT_ONCE, FEWEST = 2**17, 512
"""Words that are drawn at once, where passes have fewer; and pairs of words at least."""


class BatchOrder(NamedTuple):
    """Positions of the records of a pass, batch by batch, (n,), and the begin of every batch among
    them, (blocks + 1,)."""

    places: np.ndarray
    begins: np.ndarray


@partial(jax.jit, static_argnums=(2, 3))
def _of_passes(
    order: Key, first: Number | np.uint64, many: int, pairs: int
) -> tuple[jax.Array, jax.Array]:
    """Words of the first ``pairs`` blocks of ``many`` passes, (many, pairs) twice; ``order``: the
    run's stream."""

    def of_pass(number: jax.Array) -> tuple[jax.Array, jax.Array]:
        return words_of(stream(order, number), 0, pairs)

    return jax.vmap(of_pass)(first + jnp.arange(many, dtype=jnp.uint64))


def words(key: Key, first: int, last: int, n: int) -> Iterator[np.ndarray]:
    """The random words of ``n`` records in the passes ``first`` .. ``last`` - 1, uint64; ``key``:
    of the run.

    **Guarantee:** those of pass k are ``bits(stream(stream(key, ORDER), k), 0, n)``, whatever else
    the same call draws: similar numbers of records share a program.
    """
    half = (n + 1) // 2
    pairs = pad_size(half, FEWEST)
    many = min(max(1, AT_ONCE // (2 * pairs)), 1 << (last - first - 1).bit_length())
    order = host_stream(key, ORDER)
    for begin in range(first, last, many):
        with jax.enable_x64(True):
            drawn = [np.asarray(part) for part in _of_passes(order, np.uint64(begin), many, pairs)]
        for one, two in zip(*(part[: last - begin, :half] for part in drawn), strict=True):
            yield np.concatenate((one, two))[:n]


def pad_size(count: int, least: int) -> int:
    """A size from ``count`` on, and at most an eighth above it where it is above ``least``: few
    sizes, few programs."""
    unit = 1 << max(0, (max(count, least) - 1).bit_length() - 4)
    return -(-max(count, least) // unit) * unit


def sort_stably(numbers: np.ndarray, largest: int = 2**64 - 1) -> np.ndarray:
    """Sort integers, uint64, up to ``largest``, stably: return positions, (n,). Short integers are
    sorted by counting."""
    if largest.bit_length() > 2 * DIGIT:
        return _by_first_bits(numbers)
    order = np.argsort(numbers.astype(np.uint16), kind="stable")
    for shift in range(DIGIT, largest.bit_length(), DIGIT):
        digit = (numbers >> np.uint64(shift)).astype(np.uint16)
        order = order[np.argsort(digit[order], kind="stable")]
    return order


def _by_first_bits(numbers: np.ndarray) -> np.ndarray:
    """Replace the last bits of every number by its position, so that numbers alone are sorted,
    which NumPy does several at a time; the few with equal first bits are sorted by all of their
    bits."""
    shift = np.uint64(len(numbers).bit_length())
    packed = numbers >> shift << shift | np.arange(len(numbers), dtype=np.uint64)
    packed.sort()
    first, order = (
        packed >> shift,
        (packed & ((np.uint64(1) << shift) - np.uint64(1))).astype(np.int64),
    )
    equal = first[1:] == first[:-1]
    if equal.any():
        among = np.flatnonzero(np.append(equal, False) | np.append(False, equal))
        order[among] = order[among][np.lexsort((numbers[order[among]], first[among]))]
    return order


def split_into_blocks(drawn: np.ndarray, size: int) -> np.ndarray:
    """Blocks of ``size`` records, in the order of their random words, uint64, and in public order
    within each: positions, (n,).

    The blocks of a full sort, of which only records with the first bits of a cut between blocks are
    sorted.
    """
    first = (drawn >> np.uint64(64 - DIGIT)).astype(np.uint16)
    counts = np.bincount(first, minlength=2**DIGIT)
    ends = np.cumsum(counts)
    block = (ends - 1) // size  # of the last record with these first bits
    among = np.flatnonzero((block != (ends - counts) // size)[first])
    among = among[sort_stably(drawn[among])]
    bits = first[among]
    rank = (ends - counts)[bits] + np.arange(len(among)) - np.searchsorted(bits, bits)
    blocks = block.astype(np.uint64)[first]
    blocks[among] = rank // size
    return sort_stably(blocks, (len(drawn) - 1) // size)


def split_into_bins(drawn: np.ndarray, bins: int) -> BatchOrder:
    """Records with these random words in uniform batches, in public order within each; as
    ``samplers.sort_by_bin``."""
    drawn = drawn % np.uint64(bins)
    counts = np.bincount(drawn.astype(np.int64), minlength=bins)
    return BatchOrder(sort_stably(drawn, bins - 1), np.concatenate(([0], np.cumsum(counts))))
