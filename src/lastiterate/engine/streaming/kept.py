"""Records of a dear source, kept once in public order: text is parsed once, however many passes read it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lastiterate.engine.streaming.public_order import check_streams
from lastiterate.engine.streaming.record_pages import RecordForm
from lastiterate.engine.streaming.record_source import Piece, Source, check_unchanged, counted, first_record, regrouped
from lastiterate.engine.streaming.scratch import Scratch
from lastiterate.run.run import Run

PAGE = 2**23
"""Bytes of a page, about: records that are scattered come in large pieces."""


class Kept:
    """What a source gives, in a scratch file (see ``Scratch``)."""

    dear = False

    def __init__(self, source: Source, folder: Path | None = None, spare: bool = False) -> None:
        self._n, self._form = len(source), RecordForm.of(first_record(source))
        self._rows = max(1, PAGE // self._form.size)
        self._scratch = Scratch(-(-self._n // self._rows), self._rows * self._form.size, folder, spare)
        try:
            for page, piece in enumerate(regrouped(counted(source, self._n), self._rows)):
                self._scratch.write(page, self._form.packed(piece))
        except BaseException:
            self.close()
            raise
        self._source = source

    def __len__(self) -> int:
        return self._n

    def pieces(self, most: int, first: int = 0) -> Iterator[Piece]:
        for page in range(first // self._rows, -(-self._n // self._rows)):
            piece = self._form.unpacked(self._scratch.read(page))
            for begin in range(max(0, first - page * self._rows), len(piece[0]), most):
                yield tuple(part[begin:begin + most] for part in piece)

    def check(self) -> None:
        """Refuse a source that changed."""
        check_unchanged(self._source)

    def digested(self) -> Iterator[np.ndarray]:
        return self._source.digested()

    @property
    def bytes(self) -> int:
        """What lies in the scratch file."""
        return self._scratch.bytes

    def close(self) -> None:
        """Give the space back."""
        self._scratch.close()


@dataclass
class Readable:
    """A source, or the copy of it that is read instead."""

    source: Source

    def close(self) -> None:
        """Give scratch space back."""
        if isinstance(self.source, Kept):
            self.source.close()


def again_and_again(run: Run, source: Source, folder: Path | None, arranged_once: bool = False) -> Readable:
    """The source of a run that reads it in order, or where it is dear and read more than once a copy in a scratch file.

    ``arranged_once``: its passes read records that were arranged in the first one.
    """
    check_streams(run, source)
    passes = 1 if arranged_once or run.batching.drawn == "once" else -(-run.steps // run.blocks)
    return Readable(Kept(source, folder) if source.dear and passes + len(run.prelude) > 1 else source)
