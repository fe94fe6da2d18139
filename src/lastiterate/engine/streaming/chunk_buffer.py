"""A buffer: arrays of one shape that hold the chunks of one step, or of several."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lastiterate.engine.streaming.devices import Devices
from lastiterate.engine.streaming.record_pages import RecordForm
from lastiterate.engine.streaming.record_source import Cursor, Piece

BUFFER = 2**23
"""Bytes of a buffer, about; two of them exist."""
MOST_CHUNKS = 4096


@dataclass
class ChunkBuffer:
    """``used`` chunks of ``records`` (chunks, rows, ...), zeros behind a chunk's last record; chunk i is part of step
    ``steps[i]``, and its last one where ``ends[i]``."""

    records: Piece
    steps: np.ndarray
    ends: np.ndarray
    used: int = 0

    @classmethod
    def empty(cls, form: RecordForm, chunks: int, rows: int) -> ChunkBuffer:
        return cls(form.empty(chunks, rows), np.zeros(chunks, np.int64), np.zeros(chunks, bool))

    @property
    def full(self) -> bool:
        return self.used == len(self.ends)

    @property
    def contents(self) -> list[np.ndarray]:
        """The bytes of every array's used chunks, in place."""
        return [part[:self.used].reshape(-1).view(np.uint8) for part in self.records]

    def add(self, cursor: Cursor, many: int, step: int, last: bool) -> None:
        """The next chunk: ``many`` records of a step."""
        at = 0
        for piece in cursor.take(many):
            for target, part in zip(self.records, piece, strict=True):
                target[self.used, at:at + len(part)] = part
            at += len(piece[0])
        for target in self.records:
            target[self.used, many:] = 0
        self.steps[self.used], self.ends[self.used] = step, last
        self.used += 1


@dataclass(frozen=True)
class Shape:
    """Chunks of a buffer; records of a chunk; rows that a chunk has for them (more, where devices share it equally).

    Each of ``parts`` processes has buffers of its own: of every batch it reads the records of its ``part`` alone.
    """

    chunks: int
    records: int
    rows: int
    part: int = 0
    parts: int = 1

    @classmethod
    def of(cls, form: RecordForm, records: int, devices: Devices, blocks: int, largest: int) -> Shape:
        """As many chunks as fit, and no more than one pass has."""
        part, parts = devices.part
        own, rows = -(-records // parts), -(-records // devices.count) * devices.count // parts
        fit = max(1, BUFFER // max(1, rows * form.size))
        return cls(min(fit, MOST_CHUNKS, blocks * -(-largest // records)), own, rows, part, parts)

    def own(self, size: int) -> tuple[int, int, int]:
        """Of a batch of ``size`` records: where this process begins, how many are its own, in how many chunks."""
        share = -(-size // self.parts)
        begin = min(size, self.part * share)
        return begin, min(share, size - begin), max(1, -(-share // self.records))
