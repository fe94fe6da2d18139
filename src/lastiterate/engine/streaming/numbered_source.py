"""Records that bring their numbers, where what they draw follows from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lastiterate.engine.streaming.record_source import Piece, Source, check_unchanged
from lastiterate.run.run import Run


@dataclass(frozen=True)
class Numbered:
    """A source whose records have their public number, from 0 on, as one more part."""

    source: Source

    @property
    def dear(self) -> bool:
        return self.source.dear

    def __len__(self) -> int:
        return len(self.source)

    def pieces(self, most: int, first: int = 0) -> Iterator[Piece]:
        at = first
        for piece in self.source.pieces(most, first):
            yield (*piece, np.arange(at, at + len(piece[0])))
            at += len(piece[0])

    def digested(self) -> Iterator[np.ndarray]:
        return self.source.digested()

    def check(self) -> None:
        """Refuse a source that changed."""
        check_unchanged(self.source)


def numbered(run: Run, source: Source) -> Source:
    """The records of a run as its steps read them: with numbers where they draw something of their own."""
    return source if run.record_draws is None else Numbered(source)
