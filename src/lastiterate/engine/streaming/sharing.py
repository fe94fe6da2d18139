"""Which batches the records of every process fall into, where each process sorts its own: from the words alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lastiterate.engine.streaming.record_source import own_records
from lastiterate.engine.streaming.sorting import Order

TOP = 16
"""Leading bits of a word by which words are counted first."""


def batch_counts(order: Order, size: int, parts: int) -> np.ndarray:
    """How many of its own records every process has in every batch, (parts, batches); ``size``: of batches that are cut
    from one order.

    Every process finds the same numbers, because every one of them has the words of all records, and reads none.
    """
    cuts = Cuts.of(order, size) if order.end is None else None
    batches = order.end or -(-order.n // size)
    ends = np.array([own_records(order.n, part, parts)[1] for part in range(parts)])
    counts, at = np.zeros(parts * batches, np.int64), 0
    for words in order.words():
        numbers = np.arange(at, at + len(words))
        batch = words.astype(np.int64) if cuts is None else cuts.batch(words, numbers)
        counts += np.bincount(np.searchsorted(ends, numbers, side="right") * batches + batch, minlength=parts * batches)
        at += len(words)
    return counts.reshape(parts, batches)


@dataclass(frozen=True)
class Cuts:
    """The first record of every batch but the first: its word, and its number, which orders equal words."""

    words: np.ndarray
    numbers: np.ndarray

    @classmethod
    def of(cls, order: Order, size: int) -> Cuts:
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
        before = (rank > 0) & (self.words[last] == words) & (numbers < self.numbers[last]) if len(self.words) else 0
        return rank - before


def top(words: np.ndarray) -> np.ndarray:
    return (words >> np.uint64(64 - TOP)).astype(np.int64)
