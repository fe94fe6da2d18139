"""Chunks in which every record's gradient has the same bits, wherever it stands and whatever stands beside it.

Where batches are drawn a record that is in one moves others to other places, and to chunks of other sizes. In single
precision their gradients could round differently there, by an amount that no theorem has and that a network may enlarge
without bound. What a kernel adds in which order depends on shapes and places alone, never on the numbers, and another
order shows in the last bits of nearly every sum; so made-up records say beforehand which sizes change nothing.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map

from lastiterate.torch.contributions import Contribution

TRIES = 4
"""Pairs of made-up records, each at parameters of its own: few sums of a small module reach its gradients."""
STEP = 16
"""Sizes of chunks are multiples of this, or the largest one."""
OVERHEAD = 2**20
"""Numbers of contributions that cost about as much as what Python does for a chunk."""
Contributions = Callable[[Any], dict[str, Contribution]]
"""From records (m, ...) to what they contribute."""


class Places:
    """Sizes of chunks, at most ``most``, that give made-up records the same bits at every place: in every one of
    ``tries`` two records.

    **Guarantee:** batches are cut into chunks of such sizes only, so that a record's gradient is a function of that
    record and of the parameters, bit by bit, whatever else is in the batch.
    """

    def __init__(self, tries: Sequence[tuple[Contributions, Any]], most: int) -> None:
        self._tries, self.most = tries, most
        self._known = dict[int, bool]()
        self._empty, self._numbers = Counter[int](), 0  # empty places by sizes; numbers that a record contributes
        self._bits = dict[tuple[int, int], list[torch.Tensor]]()

    def holds(self, size: int) -> bool:
        """Whether every place of a chunk of ``size`` records gives the bits that the first size that was tried gave."""
        if size not in self._known:
            self._known[size] = all(self._tried(size, which) for which in range(len(self._tries)))
        return self._known[size]

    def within(self, most: int) -> Places:
        """The same for chunks of at most ``most`` records: of half as many where those do not hold, and so on. Chunks
        of one record always do."""
        places = Places(self._tries, most)
        return places if most == 1 or places.holds(most) else self.within(most // 2)

    def cut(self, count: int) -> Iterator[tuple[int, int]]:
        """Chunks for a batch of ``count`` records: their sizes, and how many records are in each; the rest is empty."""
        chunks = -(-count // self.most)
        while count > 0:
            wanted = min(self.most, -(-count // (chunks * STEP)) * STEP)
            size = wanted if self._worth(wanted) and self.holds(wanted) else self.most
            yield size, min(count, size)
            count, chunks = count - size, max(1, chunks - 1)

    def _worth(self, size: int) -> bool:
        """Whether the places that chunks of the largest size have left empty, where this one was wanted, have cost as
        much as its trial does."""
        self._empty[size] += self.most - size
        trial = 2 * len(self._tries) * (OVERHEAD + size * self._numbers)
        return size in self._known or self._empty[size] * self._numbers >= trial

    def _tried(self, size: int, which: int) -> bool:
        contributions, pair = self._tries[which]
        turns = list[list[list[torch.Tensor]]]()
        for turn in range(2):
            places = (torch.arange(size) + turn) % 2
            records = tree_map(lambda a, at=places: a.index_select(0, at.to(a.device)), pair)
            given = contributions(records)
            parts = [part for each in given.values() for part in (*each.parts, each.squares())]
            self._numbers = sum(part[0].numel() for part in parts)
            # rows of the first record, and of the second
            turns.append([[part[number ^ turn::2] for part in parts] for number in range(2)])
            if size > 1 and not all(bool(each.squares().any()) for each in given.values()):
                return False  # a gradient that is 0 says nothing
        for number in range(2):
            rows = [torch.cat([turn[number][i] for turn in turns]) for i in range(len(turns[0][number]))]
            kept = self._bits.setdefault((which, number), [part[:1] for part in rows])
            for part, bits in zip(rows, kept, strict=True):
                if not bool(torch.isfinite(part).all()) or not torch.equal(part, bits.expand_as(part)):
                    return False
        return True


def usual(expected: float) -> int:
    """A size that seldom leaves a batch of ``expected`` records in more than one chunk."""
    return math.ceil((expected + 4 * math.sqrt(expected) + 1) / STEP) * STEP


def drawn(theta: torch.Tensor, which: int = 0) -> torch.Tensor:
    """Parameters beside the first ones, so that no sum is 0 where those are; others for every ``which``."""
    generator = torch.Generator().manual_seed(1 + which)
    noise = torch.randn(theta.shape, dtype=theta.dtype, generator=generator).to(theta.device)
    return theta + 0.1 * noise
