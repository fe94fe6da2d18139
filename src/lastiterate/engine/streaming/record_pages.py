"""Records in pages: every array of a piece one after the other, and back."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lastiterate.engine.rows import aligned_zeros
from lastiterate.engine.streaming.record_source import Piece


@dataclass(frozen=True)
class RecordForm:
    """Precision and shape of every array of a record."""

    dtypes: tuple[np.dtype, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, piece: Piece) -> RecordForm:
        return cls(tuple(part.dtype for part in piece), tuple(part.shape[1:] for part in piece))

    @property
    def size(self) -> int:
        """Bytes of a record."""
        return sum(dtype.itemsize * math.prod(shape) for dtype, shape in zip(self.dtypes, self.shapes, strict=True))

    def empty(self, *axes: int) -> Piece:
        """Arrays for records along the axes ``axes``, on boundaries of 64 bytes and all 0."""
        return tuple(aligned_zeros((*axes, *shape), dtype)
                     for dtype, shape in zip(self.dtypes, self.shapes, strict=True))

    def packed(self, piece: Piece) -> bytes:
        """The bytes of records."""
        return b"".join(np.ascontiguousarray(part).tobytes() for part in piece)

    def unpacked(self, content: bytes) -> Piece:
        """The records in these bytes; arrays that share them."""
        return self.within(np.frombuffer(content, np.uint8), len(content) // self.size)

    def within(self, content: np.ndarray, rows: int) -> Piece:
        """Arrays (..., rows, ...) that lie one behind the other in bytes (..., rows * size), and share them."""
        begin, arrays = 0, list[np.ndarray]()
        for dtype, shape in zip(self.dtypes, self.shapes, strict=True):
            end = begin + rows * math.prod(shape) * dtype.itemsize
            arrays.append(content[..., begin:end].view(dtype).reshape(*content.shape[:-1], rows, *shape))
            begin = end
        return tuple(arrays)

