"""The interface of samplers, and sums over batches chunk by chunk."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, ClassVar, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from lastiterate.engine.random import ORDER, Key, Number, host_stream, stream
from lastiterate.engine.random import words as words_of
from lastiterate.run.batching import Drawn
from lastiterate.run.facts import CHUNK
from lastiterate.run.plugin_batching import PublicBlocks

# The draws of one pass, on the host: the words of a compiled program, sorted faster than programs
# sort.

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


# How records lie in memory.

Place = TypeVar("Place", np.ndarray, jax.Array)
EVEN = 12
"""Long chunks hold a multiple of it, so that 2, 3 or 4 sums of as many records make up a chunk."""


@dataclass(frozen=True)
class Layout:
    """``blocks`` batches of ``chunks`` chunks of ``rows`` records each; slots that no record needs
    are empty.

    ``flat``: the records lie along one axis, (n, ...), because a program gathers them; then there
    is one chunk.
    """

    blocks: int
    size: int
    chunks: int
    rows: int
    flat: bool = False

    @property
    def slots(self) -> int:
        return self.blocks * self.chunks * self.rows

    @property
    def shape(self) -> tuple[int, ...]:
        """First axes of every array of records."""
        return (self.rows,) if self.flat else (self.blocks, self.chunks, self.rows)

    def slot(self, place: Place) -> Place:
        """Return the slot of the record at ``place`` of the order."""
        return place // self.size * (self.chunks * self.rows) + place % self.size


@dataclass(frozen=True)
class CutLayout(Layout):
    """Blocks that a plug-in cuts from the public order: a record's slot follows from its block."""

    batching: PublicBlocks | None = None
    n: int = 0

    def slot(self, place: Place) -> Place:
        assert self.batching is not None
        return _slots_of_cut(self.batching, self.n, self.chunks * self.rows)[place]


@lru_cache(maxsize=8)
def _slots_of_cut(batching: PublicBlocks, n: int, room: int) -> np.ndarray:
    """Slots of the records, (n,): ``room`` for each block, in public order within it."""
    held, sizes = batching.assign_blocks(n), batching.block_sizes(n)
    order, slots = np.argsort(held, kind="stable"), np.empty(n, np.int64)
    begins = np.repeat(np.cumsum(sizes) - sizes, sizes)
    slots[order] = held[order] * room + np.arange(n) - begins
    slots.setflags(write=False)
    return slots


def lay_out_cut(batching: PublicBlocks, n: int, most: int) -> Layout:
    """Blocks of a plug-in's batching, no more than ``most`` of their records in a chunk."""
    like = lay_out_blocks(n, batching.size, most)
    return CutLayout(batching.blocks(n), like.size, like.chunks, like.rows, False, batching, n)


def lay_out_blocks(n: int, size: int, most: int) -> Layout:
    """Blocks of ``size`` records, no more than ``most`` of them in a chunk."""
    chunks = -(-size // most)
    rows = -(-size // chunks)
    return Layout(-(-n // size), size, chunks, rows if rows <= CHUNK else -(-rows // EVEN) * EVEN)


def lay_out_rows(n: int) -> Layout:
    """Records that programs gather."""
    return Layout(1, n, 1, n, flat=True)


# What every way of drawing batches gives the loop.

Read = Callable[[Any], jax.Array]
"""From a chunk of records to the sum of their clipped gradients, float64."""


class Sampler(ABC):
    """One way of drawing batches; subclasses are frozen dataclasses of shapes, and JAX pytrees.

    ``drawn``: when secret draws happen, as the batching says. ``layout``: how records lie before
    any draw. ``blocks``: batches in one pass.
    """

    drawn: ClassVar[Drawn]
    layout: Layout

    @property
    def blocks(self) -> int:
        return self.layout.blocks

    def order(self, key: Key) -> jax.Array | None:
        """Return the positions of the records, (n,), where the run draws one secret order: data can
        be written in it at once."""
        return None

    def arrange(self, data: object, key: Key) -> Any:
        """Data (in public order) as the draw of the whole run, or of a pass, arranges them."""
        return data

    @abstractmethod
    def batch_sum(self, read: Read, data: object, key: Key, k: Number) -> jax.Array:
        """Sum of the gradients of step k's batch; ``data`` as arranged, ``key``: the stream of
        secret draws."""


class EpochSampler(Sampler):
    """A sampler whose draws cut every pass into batches, which the host may gather (``gathered``)."""

    drawn = "each pass"

    @abstractmethod
    def records(self, data: object) -> int:
        """Return the number of records in ``data``."""

    @property
    @abstractmethod
    def rows_read(self) -> int:
        """Records of a batch that are read at once."""

    @abstractmethod
    def allocate(self, words: np.ndarray) -> BatchOrder:
        """The draw of a pass that ``arrange`` makes inside of programs, from every record's random
        word, (n,)."""

    @abstractmethod
    def place_records(self, data: object, places: jax.Array, begins: jax.Array) -> Any:
        """Return the data as ``arrange`` gives them for a pass with this order of batches."""


# Sums over batches, chunk by chunk. Batches whose size is drawn are read to their end, however
# long: nothing is truncated, so that no probability of a batch that did not fit has to be paid for.

UNROLLED = 4
"""Chunks that are added one after the other instead of in a loop."""


def block_sum(read: Read, data: object, k: Number) -> jax.Array:
    """Over block k mod blocks; leaves (blocks, chunks, m, ...)."""
    single = jax.tree.leaves(data)[0].shape[0] == 1  # a constant index copies nothing
    return sum_over_chunks(read, jax.tree.map(lambda a: a[0 if single else k % a.shape[0]], data))


def sum_over_chunks(read: Read, chunks: object) -> jax.Array:
    """Sum over chunks that are known beforehand; leaves (chunks, m, ...)."""

    def chunk(i: int) -> Any:
        return jax.tree.map(lambda a: a[i], chunks)

    count = jax.tree.leaves(chunks)[0].shape[0]
    if count > UNROLLED:  # from zero on: a sum over all but the first would copy them
        shape = jax.eval_shape(lambda: read(chunk(0)))
        zero = jnp.zeros(shape.shape, shape.dtype)
        return jax.lax.scan(lambda total, part: (total + read(part), None), zero, chunks)[0]
    total = read(chunk(0))
    for i in range(1, count):
        total = total + read(chunk(i))
    return total


def sum_over_places(places: jax.Array, n: int, most: int, read: Read, data: object) -> jax.Array:
    """Sum over the records at ``places`` (past the end: none), in equal chunks of at most ``most``."""
    chunks = -(-places.size // most)
    rows = -(-places.size // chunks)
    cut = jnp.pad(places, (0, chunks * rows - places.size), constant_values=n).reshape(chunks, rows)  # pyright: ignore
    return sum_over_chunks(lambda chunk: read(take_records(data, chunk, n)), cut)


def until_end(begin: Number, end: Number, count: int, read: Read) -> jax.Array:
    """Sum of ``read(place)`` from ``begin`` to ``end``: it reads what lies at ``place`` .. ``place
    + count - 1``."""

    def add(state: tuple[Any, Any]) -> tuple[Any, Any]:
        at, total = state
        return at + count, total + read(at)

    shape = jax.eval_shape(lambda: read(begin))
    zero = jnp.zeros(shape.shape, jnp.float64)
    return jax.lax.while_loop(lambda state: state[0] < end, add, (begin, zero))[1]


def records_in(data: object) -> int:
    """Return the number of records in flat ``data``, (n, ...): where n is nominal, it may differ
    from the run's n.

    **Guarantee:** what is drawn and read follows from the records that are there, none is read
    twice in a batch.
    """
    return jax.tree.leaves(data)[0].shape[0]


def records_at_once(expected: float, n: int, most: int) -> int:
    """Records of a batch of random size that are read at once: few chunks, most of them full."""
    size = min(
        n, expected + 4 * math.sqrt(expected) + 1
    )  # four standard deviations: seldom another chunk
    return math.ceil(size / math.ceil(size / most))


def take_records(data: object, places: jax.Array, n: int) -> Any:
    """The records at ``places``; empty slots where a position lies past the last record."""
    return mask_chunk(jax.tree.map(lambda a: a[jnp.minimum(places, n - 1)], data), places < n)


def mask_chunk(chunk: tuple[Any, ...], real: jax.Array) -> Any:
    """A chunk whose records are set to 0 where they are not ``real``."""
    return jax.tree.map(
        lambda a: jnp.where(real.reshape((-1,) + (1,) * (a.ndim - 1)), a, jnp.zeros_like(a)), chunk
    )
