"""Chunks in which every record's gradient has the same bits, wherever it stands and whatever stands beside it.

Where batches are drawn a record that is in one moves others to other places, and to chunks of other sizes. In single
precision their gradients could round differently there, by an amount that no theorem has and that a network may enlarge
without bound. What a kernel adds in which order depends on shapes and places alone, never on the numbers, and another
order shows in the last bits of nearly every sum; so made-up records say beforehand which sizes change nothing.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_map

from lastiterate.torch.contributions import Contribution

STEP = 16
"""Sizes of chunks are multiples of this, or the largest one."""
Contributions = Callable[[Any], dict[str, Contribution]]
"""From records (m, ...) to what they contribute."""


class Places:
    """Sizes of chunks, at most ``most``, that give two made-up records the same bits at every place.

    **Guarantee:** batches are cut into chunks of such sizes only, so that a record's gradient is a function of that
    record and of the parameters, bit by bit, whatever else is in the batch.
    """

    def __init__(self, contributions: Contributions, pair: Any, most: int) -> None:
        self._contributions, self._pair, self.most = contributions, pair, most
        self._known = dict[int, bool]()
        self._bits = list[list[torch.Tensor]]()

    def holds(self, size: int) -> bool:
        """Whether every place of a chunk of ``size`` records gives the bits that the first size that was tried gave."""
        if size not in self._known:
            self._known[size] = self._tried(size)
        return self._known[size]

    def within(self, most: int) -> Places | None:
        """The same for smaller chunks; None where not even the largest of them holds."""
        found = Places(self._contributions, self._pair, most)
        return found if found.holds(most) else None

    def cut(self, count: int) -> Iterator[tuple[int, int]]:
        """Chunks for a batch of ``count`` records: their sizes, and how many records are in each; the rest is empty."""
        chunks = -(-count // self.most)
        while count > 0:
            wanted = min(self.most, -(-count // (chunks * STEP)) * STEP)
            size = wanted if self.holds(wanted) else self.most
            yield size, min(count, size)
            count, chunks = count - size, max(1, chunks - 1)

    def _tried(self, size: int) -> bool:
        found = list[list[list[torch.Tensor]]]()
        for turn in range(2):
            places = (torch.arange(size) + turn) % 2
            records = tree_map(lambda a, at=places: a.index_select(0, at.to(a.device)), self._pair)
            parts = [part for each in self._contributions(records).values() for part in (*each.parts, each.squares())]
            # rows of the first record, and of the second
            found.append([[part[number ^ turn::2] for part in parts] for number in range(2)])
        for number in range(2):
            rows = [torch.cat([turn[number][i] for turn in found]) for i in range(len(found[0][number]))]
            if number == len(self._bits):
                self._bits.append([part[:1] for part in rows])
            for part, bits in zip(rows, self._bits[number], strict=True):
                if not bool(torch.isfinite(part).all()) or not torch.equal(part, bits.expand_as(part)):
                    return False
        return True


def usual(expected: float) -> int:
    """A size that seldom leaves a batch of ``expected`` records in more than one chunk."""
    return math.ceil((expected + 4 * math.sqrt(expected) + 1) / STEP) * STEP


def drawn(theta: torch.Tensor) -> torch.Tensor:
    """Parameters beside the first ones, so that no sum is 0 where those are."""
    noise = torch.randn(theta.shape, dtype=theta.dtype, generator=torch.Generator().manual_seed(1)).to(theta.device)
    return theta + 0.1 * noise
