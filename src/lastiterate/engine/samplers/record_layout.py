"""How records lie in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import jax
import numpy as np

from lastiterate.run.facts import CHUNK

Place = TypeVar("Place", np.ndarray, jax.Array)
EVEN = 12
"""Long chunks hold a multiple of it, so that 2, 3 or 4 sums of as many rows make up a chunk."""


@dataclass(frozen=True)
class Layout:
    """``blocks`` batches of ``chunks`` chunks of ``rows`` records each; slots that no record needs are empty.

    ``flat``: the records lie in one row, (n, ...), because a program gathers them; then there is one chunk.
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
        """Where the record at ``place`` of the order lies among the slots."""
        return place // self.size * (self.chunks * self.rows) + place % self.size


def in_blocks(n: int, size: int, most: int) -> Layout:
    """Blocks of ``size`` records, no more than ``most`` of them in a chunk."""
    chunks = -(-size // most)
    rows = -(-size // chunks)
    return Layout(-(-n // size), size, chunks, rows if rows <= CHUNK else -(-rows // EVEN) * EVEN)


def in_a_row(n: int) -> Layout:
    """Records that programs gather."""
    return Layout(1, n, 1, n, flat=True)
