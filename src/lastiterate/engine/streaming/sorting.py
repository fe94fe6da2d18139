"""Sort records into secret permutations or batches, in one process or several."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import jax
import numpy as np

from lastiterate.engine.random import Key, Number, words_between
from lastiterate.engine.row_clipping import allocate_aligned
from lastiterate.engine.streaming.scratch import Scratch
from lastiterate.engine.streaming.source import Cursor, Piece, RecordForm, join_pieces, own_records

# Records sorted by random words that each has: into a secret permutation, or into secret batches.
# Two steps, of which neither holds more than a share of the records in memory. Scatter: every
# record goes to one of several buckets, by the size of its word. Read: one bucket after the other
# is sorted. Equal words keep the public order, so that the result is the one of a stable sort in
# memory, word for word.

WORDS = 2**16
"""Words that are drawn at once."""
BUCKET, BUFFERS = 2**24, 2**25
"""Bytes of a bucket that is sorted in memory, about, and of all pages that are being filled."""
ALONE = 256
"""Batches, at most, that have a bucket each: nothing is left to sort."""


@dataclass(frozen=True)
class SortOrder:
    """Which word every record has: those of ``bits`` for step 0 of a stream, modulo ``end`` where
    there is one.

    ``key``: of the stream. ``n``: records. ``end``: ``None`` for a permutation, or a number of
    batches.
    """

    key: Key
    n: int
    end: int | None = None

    def words(self, first: int = 0, end: int | None = None) -> Iterator[np.ndarray]:
        """Words of the records ``first`` .. ``end`` - 1, by default of all, uint64, ``WORDS`` at a
        time."""
        end = self.n if end is None else end
        for at in range(first, end, WORDS):
            with jax.enable_x64(True):
                words = np.asarray(_words(self.key, self.n, at, WORDS))[: end - at]
            yield words if self.end is None else words % np.uint64(self.end)

    def bucket(self, words: np.ndarray, buckets: int) -> np.ndarray:
        """A bucket for every word, which does not fall as words grow."""
        if self.end is None:
            return ((words >> np.uint64(32)) * np.uint64(buckets) >> np.uint64(32)).astype(np.int64)
        return (words * np.uint64(buckets) // np.uint64(self.end)).astype(np.int64)


@partial(jax.jit, static_argnums=(1, 3))
def _words(key: Key, n: int, first: Number, many: int) -> jax.Array:
    return words_between(key, 0, n, first, many)


@dataclass
class SortedSource:
    """Records of ``form`` in the order of ``order``, in a scratch file (``instead``: of another,
    see ``Scratch``).

    **Guarantee:** every record is written to one page and read once per pass; a run that is killed
    leaves nothing of their order (see ``Scratch``).
    """

    form: RecordForm
    order: SortOrder
    folder: Path | None = None
    own: tuple[int, int] | None = (
        None  #: which records, where it is not all of them: the first, and behind the last
    )
    instead: Scratch | None = None
    scratch: Scratch = field(init=False, repr=False)
    _counts: np.ndarray = field(init=False, repr=False)  #: records of every bucket
    _pages: np.ndarray = field(
        init=False, repr=False
    )  #: where every bucket's pages begin, (buckets + 1,)
    _rows: int = field(init=False, repr=False)  #: records of a page
    sizes: np.ndarray | None = field(
        init=False, default=None
    )  #: records of every batch, where there are batches

    def __post_init__(self) -> None:
        end, stored, own = self.order.end, self.form.size + 8, self._own
        n = own[1] - own[0]
        buckets = max(1, -(-n * stored // BUCKET))
        buckets = buckets if end is None else end if end <= ALONE else min(buckets, end)
        self._counts, sizes = (
            np.zeros(buckets, np.int64),
            np.zeros(0 if end is None else end, np.int64),
        )
        for words in self.order.words(*own):
            self._counts += np.bincount(self.order.bucket(words, buckets), minlength=buckets)
            if end is not None:
                sizes += np.bincount(words.astype(np.int64), minlength=end)
        if end is not None:
            self.sizes = sizes
        self._rows = max(
            1, min(BUFFERS // buckets // stored, 2**20 // stored, int(self._counts.max()))
        )
        self._pages = np.concatenate(([0], np.cumsum(-(-self._counts // self._rows))))
        self.scratch = Scratch(
            int(self._pages[-1]), self._rows * stored, self.folder, instead=self.instead
        )
        self.instead = None

    @property
    def _own(self) -> tuple[int, int]:
        return (0, self.order.n) if self.own is None else self.own

    def close(self) -> None:
        self.scratch.close()

    def fill(self, pieces: Iterable[Piece]) -> None:
        """Scatter the records, which come in public order."""
        buckets = len(self._counts)
        content = allocate_aligned((buckets, self.scratch.size), np.dtype(np.uint8))
        held = self._stored.within(content, self._rows)
        filled, page = np.zeros(buckets, np.int64), self._pages[:-1].copy()
        drawn = Cursor((words,) for words in self.order.words(*self._own))
        for piece in pieces:
            (words,) = join_pieces(list(drawn.take(len(piece[0]))))
            bucket = self.order.bucket(words, buckets)
            by_bucket = np.argsort(
                bucket.astype(np.uint16) if buckets < 2**16 else bucket, kind="stable"
            )
            records = (words, *piece)
            ends = np.cumsum(np.bincount(bucket, minlength=buckets))
            for b in np.unique(bucket).tolist():
                begin, end = int(ends[b - 1]) if b else 0, int(ends[b])
                while begin < end:
                    many = min(end - begin, self._rows - int(filled[b]))
                    places = by_bucket[begin : begin + many]
                    for buffer, part in zip(held, records, strict=True):
                        np.take(part, places, 0, buffer[b, filled[b] : filled[b] + many], "clip")
                    filled[b], begin = filled[b] + many, begin + many
                    if filled[b] == self._rows:
                        self.scratch.write(int(page[b]), content[b])
                        page[b], filled[b] = page[b] + 1, 0
        for b in np.flatnonzero(
            filled
        ).tolist():  # behind the last records of a bucket its page holds others again
            self.scratch.write(int(page[b]), content[b])

    @property
    def _stored(self) -> RecordForm:
        """A record with its word."""
        return RecordForm((np.dtype(np.uint64), *self.form.dtypes), ((), *self.form.shapes))

    def pieces(self, first: int = 0) -> Iterator[Piece]:
        """Yield records in the order of their words, from the one at position ``first`` on."""
        ends = np.cumsum(self._counts)
        for b in range(int(np.searchsorted(ends, first, side="right")), len(ends)):
            skipped = max(0, first - int(ends[b] - self._counts[b]))
            for piece in self._bucket(b):
                if skipped < len(piece[0]):
                    yield tuple(part[skipped:] for part in piece)
                skipped = max(0, skipped - len(piece[0]))

    def _page(self, b: int, number: int) -> Piece:
        """The records of one of a bucket's pages."""
        many = min(self._rows, int(self._counts[b]) - number * self._rows)
        content = np.frombuffer(self.scratch.read(int(self._pages[b]) + number), np.uint8)
        return tuple(part[:many] for part in self._stored.within(content, self._rows))

    def _bucket(self, b: int) -> Iterator[Piece]:
        """Records of a bucket; page by page where all of them are of one batch."""
        pages = (self._page(b, page) for page in range(self._pages[b + 1] - self._pages[b]))
        if self.order.end is not None and len(self._counts) == self.order.end:
            yield from (piece[1:] for piece in pages)
            return
        held = list(pages)
        if held:
            words, *piece = join_pieces(held)
            by_word = np.argsort(words, kind="stable")
            cut = max(1, WORDS * 8 // max(1, self.form.size))
            for begin in range(0, len(words), cut):
                yield tuple(part[by_word[begin : begin + cut]] for part in piece)


# Which batches the records of every process fall into, where each process sorts its own: from the
# words alone.

TOP = 16
"""Leading bits of a word by which words are counted first."""


def batch_counts(order: SortOrder, size: int, parts: int) -> np.ndarray:
    """Return the number of its own records that every process has in every batch, (parts, batches);
    ``size``: of batches that are cut from one order.

    Every process finds the same numbers, because every one of them has the words of all records,
    and reads none.
    """
    cuts = Cuts.of(order, size) if order.end is None else None
    batches = order.end or -(-order.n // size)
    ends = np.array([own_records(order.n, part, parts)[1] for part in range(parts)])
    counts, at = np.zeros(parts * batches, np.int64), 0
    for words in order.words():
        numbers = np.arange(at, at + len(words))
        batch = words.astype(np.int64) if cuts is None else cuts.batch(words, numbers)
        counts += np.bincount(
            np.searchsorted(ends, numbers, side="right") * batches + batch,
            minlength=parts * batches,
        )
        at += len(words)
    return counts.reshape(parts, batches)


@dataclass(frozen=True)
class Cuts:
    """Return the first record of every batch but the first: its word, and its index, which orders
    equal words."""

    words: np.ndarray
    numbers: np.ndarray

    @classmethod
    def of(cls, order: SortOrder, size: int) -> Cuts:
        """Batches of ``size`` records; only words near a cut are held in memory."""
        counts = np.zeros(2**TOP, np.int64)
        for words in order.words():
            counts += np.bincount(top(words), minlength=2**TOP)
        ends, places = np.cumsum(counts), np.arange(size, order.n, size)
        bins = np.searchsorted(ends, places, side="right")
        near = np.zeros(2**TOP, bool)
        near[bins] = True
        held, numbers, at = list[np.ndarray](), list[np.ndarray](), 0
        for words in order.words():
            kept = np.flatnonzero(near[top(words)])
            held.append(words[kept])
            numbers.append(at + kept)
            at += len(words)
        every, which = np.concatenate(held), np.concatenate(numbers)
        by_word = np.argsort(every, kind="stable")
        every, which = every[by_word], which[by_word]
        first = np.searchsorted(top(every), bins) + places - (ends - counts)[bins]
        return cls(every[first], which[first])

    def batch(self, words: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """The batch of every record."""
        rank = np.searchsorted(self.words, words, side="right")
        last = np.maximum(rank - 1, 0)
        before = (
            (rank > 0) & (self.words[last] == words) & (numbers < self.numbers[last])
            if len(self.words)
            else 0
        )
        return rank - before


def top(words: np.ndarray) -> np.ndarray:
    return (words >> np.uint64(64 - TOP)).astype(np.int64)
