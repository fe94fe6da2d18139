"""Records in slabs: arrays of one shape that hold the chunks of one step, or of several."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from lastiterate.engine.streaming.devices import Devices
from lastiterate.engine.streaming.passes import Passes
from lastiterate.engine.streaming.records import RecordForm
from lastiterate.engine.streaming.source import Cursor, Piece

SLAB = 2**23
"""Bytes of a slab, about; two of them exist."""
MOST_CHUNKS = 4096


@dataclass
class Slab:
    """``used`` chunks of ``records`` (chunks, rows, ...), zeros behind a chunk's last record; chunk i is part of step
    ``steps[i]``, and its last one where ``ends[i]``."""

    records: Piece
    steps: np.ndarray
    ends: np.ndarray
    used: int = 0

    @classmethod
    def empty(cls, form: RecordForm, chunks: int, rows: int) -> Slab:
        return cls(form.empty(chunks, rows), np.zeros(chunks, np.int64), np.zeros(chunks, bool))

    @property
    def full(self) -> bool:
        return self.used == len(self.ends)


@dataclass(frozen=True)
class Shape:
    """Chunks of a slab; records of a chunk; rows that a chunk has for them (more, where devices share it equally).

    Each of ``parts`` processes has slabs of its own: of every batch it reads the records of its ``part`` alone.
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
        fit = max(1, SLAB // max(1, rows * form.size))
        return cls(min(fit, MOST_CHUNKS, blocks * -(-largest // records)), own, rows, part, parts)

    def own(self, size: int) -> tuple[int, int, int]:
        """Of a batch of ``size`` records: where this process begins, how many are its own, in how many chunks."""
        share = -(-size // self.parts)
        begin = min(size, self.part * share)
        return begin, min(share, size - begin), max(1, -(-share // self.records))


def slabs(passes: Passes, shape: Shape, first: int) -> Generator[Slab, None, None]:
    """The slabs of all steps from ``first`` on; each is valid until the one after the next is asked for.

    A slab ends with a step unless that step alone is longer than a slab.
    """
    run, form = passes.run, passes.form
    pair = [Slab.empty(form, shape.chunks, shape.rows) for _ in range(2)]
    step = first
    with closing(passes.from_pass(first // run.blocks)) as every:
        for found in every:
            begins = np.concatenate(([0], np.cumsum(found.sizes)))
            cursor = Cursor(found.pieces(int(begins[step % run.blocks])))
            until = min(run.steps, (step // run.blocks + 1) * run.blocks)
            for k in range(step, until):
                begin, many, chunks = shape.own(int(found.sizes[k % run.blocks]))
                if shape.parts > 1:
                    cursor = Cursor(found.pieces(int(begins[k % run.blocks]) + begin))
                for number in range(chunks):
                    if pair[0].full or (number == 0 and pair[0].used + chunks > shape.chunks and pair[0].used):
                        yield pair[0]
                        pair.reverse()
                        pair[0].used = 0
                    left = max(0, many - number * shape.records)
                    _add(pair[0], cursor, min(shape.records, left), k, number + 1 == chunks)
                if chunks > shape.chunks:
                    yield pair[0]
                    pair.reverse()
                    pair[0].used = 0
            if until % run.blocks == 0 and shape.parts == 1:
                cursor.finish()
            step = until
    if pair[0].used:
        yield pair[0]


def _add(slab: Slab, cursor: Cursor, many: int, step: int, last: bool) -> None:
    """The next chunk of a slab: ``many`` records of a step."""
    at = 0
    for piece in cursor.take(many):
        for target, part in zip(slab.records, piece, strict=True):
            target[slab.used, at:at + len(part)] = part
        at += len(piece[0])
    for target in slab.records:
        target[slab.used, many:] = 0
    slab.steps[slab.used], slab.ends[slab.used] = step, last
    slab.used += 1
