"""Buffers of one pass, kept as they are: batches that are the same in every pass are read and arranged once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from lastiterate.engine.streaming.chunk_buffer import ChunkBuffer, Shape
from lastiterate.engine.streaming.scratch import Scratch

PAGE = 2**18
"""Bytes of a page, at most: few enough for a processor's own cache, where pages are decrypted."""


@dataclass
class Repeated:
    """The buffers of one pass, in a scratch file (``Scratch``); ``size``: bytes of a record, ``chunks``: of the pass.

    **Guarantee:** what is read is what was written, bit for bit: a pass that is read again is the pass that was made.
    """

    shape: Shape
    size: int
    chunks: int
    folder: Path | None = None
    _scratch: Scratch = field(init=False, repr=False)
    _kept: list[tuple[int, np.ndarray, np.ndarray]] = field(
        init=False, default_factory=list[tuple[int, np.ndarray, np.ndarray]], repr=False)
    _next: int = field(init=False, default=0, repr=False)  #: the first page that is not written

    def __post_init__(self) -> None:
        chunk = self.shape.rows * self.size
        page = min(PAGE, self.shape.chunks * chunk)
        buffers = 2 + 2 * self.chunks // self.shape.chunks  # two in a row hold more chunks than one may
        self._scratch = Scratch(buffers + -(-self.chunks * chunk // page), page, self.folder, spare=True)

    def keep(self, buffer: ChunkBuffer) -> None:
        """The next buffer of the pass."""
        self._kept.append((self._next, buffer.steps[:buffer.used].copy(), buffer.ends[:buffer.used].copy()))
        for parts in cut(buffer.contents, self._scratch.size):
            self._scratch.write(self._next, np.concatenate(parts) if len(parts) > 1 else parts[0])
            self._next += 1

    def again(self, first: int, end: int, pair: list[ChunkBuffer]) -> Iterator[ChunkBuffer]:
        """The same buffers for the steps from ``first`` on, one pass of them or those before ``end``."""
        began = int(self._kept[0][1][0])
        for page, steps, ends in self._kept:
            if int(steps[0]) - began + first >= end:
                return
            buffer, many = pair[0], len(steps)
            buffer.used, buffer.steps[:many], buffer.ends[:many] = many, steps - began + first, ends
            for number, parts in enumerate(cut(buffer.contents, self._scratch.size), page):
                content = np.frombuffer(self._scratch.read(number), np.uint8)
                for part in parts:
                    part[:], content = content[:len(part)], content[len(part):]
            buffer.used = int(np.searchsorted(buffer.steps[:many], end))
            yield buffer
            pair.reverse()

    @property
    def bytes(self) -> int:
        """What lies in the scratch file."""
        return self._scratch.bytes

    def close(self) -> None:
        """Give the space back."""
        self._scratch.close()


def cut(contents: list[np.ndarray], size: int) -> Iterator[list[np.ndarray]]:
    """Bytes one behind the other, ``size`` at a time."""
    page, left = list[np.ndarray](), size
    for content in contents:
        while len(content):
            part, content = content[:left], content[left:]
            page, left = [*page, part], left - len(part)
            if left == 0:
                yield page
                page, left = [], size
    if page:
        yield page
