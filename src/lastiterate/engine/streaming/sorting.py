"""The order of streamed records: secret sorting, and every pass as its steps read it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import jax
import numpy as np

from lastiterate.engine.noise import ahead
from lastiterate.engine.preprocessing import allocate_aligned
from lastiterate.engine.random import Key, Number, host_stream, words_between
from lastiterate.engine.samplers import sampler_of
from lastiterate.engine.streaming.buffers import BufferFile, Shape
from lastiterate.engine.streaming.scratch import NoScratch, Scratch, SourceCopy
from lastiterate.engine.streaming.source import (
    SCATTERED,
    Cursor,
    Piece,
    RecordForm,
    Source,
    check_unchanged,
    count_records,
    find_start,
    first_record,
    join_pieces,
    own_records,
    rows_of,
)
from lastiterate.run.run import Run

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


# The records of every pass in the order that steps read them, for every batching that needs no
# random access.

Arrange = Callable[[Piece], Piece]
"""From records as a source gives them to records as steps read them; a map of single records."""


@dataclass(frozen=True)
class Pass:
    """One pass: the number of records that every step reads, and the records from a position of its
    order on."""

    sizes: np.ndarray
    pieces: Callable[[int], Iterator[Piece]]
    counts: np.ndarray | None = (
        None  #: where every process sorts its own records, how many of them: (parts, batches)
    )

    def shares(self, shape: Shape) -> np.ndarray:
        """Return this process's share of every batch: its begin in the pieces, its number of
        records, the number of chunks of every process; (batches, 3)."""
        if self.counts is None:
            begins = np.cumsum(self.sizes) - self.sizes
            shares = np.array([shape.own(int(size)) for size in self.sizes])
            return np.column_stack((begins + shares[:, 0], shares[:, 1:]))
        own = self.counts[shape.part]
        chunks = np.maximum(1, -(-self.counts.max(0) // shape.records))
        return np.column_stack((np.cumsum(own) - own, own, chunks))


@dataclass
class Passes:
    """All passes of ``run`` over ``source``; ``key``: the stream of secret draws; ``folder``: for
    scratch files.

    **Guarantee:** the draws are those of the run's sampler under the same key, record for record.
    """

    run: Run
    source: Source
    arrange: Arrange
    key: Key
    folder: Path | None = None
    dear: bool = (
        False  #: whether arranging records costs more than reading their bytes from a scratch file
    )
    part: tuple[int, int] = (0, 1)  #: which process this is, of how many that share the records
    _once: SortedSource | None = field(
        init=False, default=None, repr=False
    )  #: the draw of the whole run
    _arranged: SourceCopy | None = field(
        init=False, default=None, repr=False
    )  #: all records, in public order
    _read: list[Scratch] = field(
        init=False, default_factory=list[Scratch], repr=False
    )  #: of passes that are over

    def close(self) -> None:
        """Give scratch space back."""
        for held in (self._once, self._arranged, *self._read):
            if held is not None:
                held.close()
        self._once = self._arranged = None
        self._read.clear()

    def check(self) -> None:
        """Refuse a source that changed."""
        check_unchanged(self.source)

    @property
    def form(self) -> RecordForm:
        """The form of arranged records."""
        return RecordForm.of(self.arrange(first_record(self.source)))

    def iterate_pieces(
        self, first: int = 0, most: int | None = None
    ) -> Generator[Piece, None, None]:
        """One pass in public order, ``most`` records at a time."""
        for piece in count_records(self.source, self.run.n, first, most):
            yield self.arrange(piece)

    @property
    def own(self) -> tuple[int, int]:
        """The records that this process sorts and measures: the first, and behind the last."""
        return own_records(self.run.n, *self.part)

    def iterate_own_pieces(self, most: int) -> Iterator[Piece]:
        """The records of this process in public order."""
        if self._arranged is not None:
            yield from self._arranged.pieces(most)
            return
        begin, end = self.own
        with closing(self.iterate_pieces(begin, most)) as pieces:
            cursor = Cursor(pieces)
            yield from cursor.take(end - begin)
            if end == self.run.n:
                cursor.finish()

    def find_storage(self, shape: Shape) -> BufferFile | None:
        """Return a storage for the buffers of one pass, to be read in all others.

        ``None`` where passes differ, where arranging costs little, and where scratch space would
        take more than half of what is free: then records are arranged again in every pass.
        """
        if not self.dear or self.run.batching.drawn == "each pass":
            return None
        one = (
            self._pass(self._drawn)
            if self.run.batching.drawn == "once"
            else Pass(self._equal, self.iterate_pieces)
        )
        try:
            return BufferFile(
                shape, self.form.size, int(one.shares(shape)[:, 2].sum()), self.folder
            )
        except NoScratch:
            return None

    @property
    def _drawn(self) -> SortedSource:
        """The draw of the whole run."""
        if self._once is None:
            self._once = self._sort(self.key)
        return self._once

    def from_pass(self, number: int) -> Generator[Pass, None, None]:
        """Pass ``number``, and those behind it; each is valid until the next is asked for."""
        batching = self.run.batching
        last = -(-self.run.steps // self.run.blocks)
        if batching.streams == "in order":
            one = Pass(self._equal, self.iterate_pieces)
            for _ in range(number, last):
                self.check()
                yield one
        elif batching.drawn == "once":
            for _ in range(number, last):
                self.check()
                yield self._pass(self._drawn)
        else:
            if self.dear and last - number > 1:
                self._arrange_once()
            drawn = (self._sort(host_stream(self.key, k)) for k in range(number, last))
            with closing(ahead(drawn)) as every:
                for records in every:
                    try:
                        self.check()
                        yield self._pass(records)
                    finally:
                        self._read.append(records.scratch)

    def _arrange_once(self) -> None:
        """Keep the arranged records, where there is space for them."""
        if self._arranged is None:
            with suppress(NoScratch):
                self._arranged = SourceCopy(ArrangedSource(self), self.folder, spare=True)

    def _sort(self, key: Key) -> SortedSource:
        """The records in one secret order, or in secret batches."""
        end = self.run.blocks if self.run.batching.streams == "binned" else None
        instead = (
            self._read.pop() if self._read else None
        )  # its space is allocated, and quicker to write
        records = SortedSource(
            self.form, SortOrder(key, self.run.n, end), self.folder, self.own, instead
        )
        try:
            records.fill(self.iterate_own_pieces(rows_of(self.source, SCATTERED)))
        except BaseException:
            records.close()
            raise
        return records

    def _pass(self, records: SortedSource) -> Pass:
        if self.part[1] == 1:
            return Pass(self._equal if records.sizes is None else records.sizes, records.pieces)
        counts = batch_counts(records.order, int(self.run.divisor), self.part[1])
        return Pass(counts.sum(0), records.pieces, counts)

    @property
    def _equal(self) -> np.ndarray:
        """Sizes of blocks that are cut from one order."""
        sizes = self.run.batching.block_sizes(self.run.n)
        assert sizes is not None  # bins have sizes of their own
        return sizes


@dataclass(frozen=True)
class ArrangedSource:
    """The records of a process as steps read them, as a source."""

    passes: Passes
    dear = True

    def __len__(self) -> int:
        begin, end = self.passes.own
        return end - begin

    def pieces(self, most: int, first: int = 0) -> Iterator[Piece]:
        return self.passes.iterate_own_pieces(most)

    def fingerprint(self) -> Iterator[np.ndarray]:
        return self.passes.source.fingerprint()


def move_cursor(passes: Passes, one: Pass, cursor: Cursor, at: int, begin: int) -> Cursor:
    """Return a cursor before record ``begin`` of a pass: this one, which stands before record
    ``at``, unless a new one can begin behind what it has read."""
    if at <= begin and find_start(passes.source, begin) <= at:
        for _ in cursor.take(begin - at):
            pass
        return cursor
    return Cursor(one.pieces(begin))


def rows_of_chunk(run: Run, most: int) -> int:
    """Records that are summed at once: as many as in memory, so that sums have the same order;
    those of fresh secret blocks come in the order of their words, and in memory in public order."""
    sampler = sampler_of(run.batching, run.n, most)
    return int(getattr(sampler, "count", sampler.layout.rows))
