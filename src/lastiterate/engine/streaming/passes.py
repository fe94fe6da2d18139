"""The records of every pass in the order that steps read them, for every batching that needs no
random access."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from lastiterate.engine.noise import ahead
from lastiterate.engine.random import Key, host_stream
from lastiterate.engine.samplers import sampler_of
from lastiterate.engine.streaming.buffers import BufferFile, Shape
from lastiterate.engine.streaming.scratch import NoScratch, Scratch, SourceCopy
from lastiterate.engine.streaming.sorting import SortedSource, SortOrder, batch_counts
from lastiterate.engine.streaming.source import (
    SCATTERED,
    Cursor,
    Piece,
    RecordForm,
    Source,
    check_unchanged,
    count_records,
    first_record,
    own_records,
    rows_of,
)
from lastiterate.run.run import Run

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


def rows_of_chunk(run: Run, most: int) -> int:
    """Records that are summed at once: as many as in memory, so that sums have the same order;
    those of fresh secret blocks come in the order of their words, and in memory in public order."""
    sampler = sampler_of(run.batching, run.n, most)
    return int(getattr(sampler, "count", sampler.layout.rows))
