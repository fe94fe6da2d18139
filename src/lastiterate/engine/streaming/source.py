"""Sources of records in public order, in pieces and pages, with their indices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import Protocol, get_args

import numpy as np

from lastiterate import interrupts
from lastiterate.engine.preprocessing import allocate_aligned
from lastiterate.errors import InputError
from lastiterate.run.batching import Batching
from lastiterate.run.run import Run

# Where records come from when they are not in memory: pieces of them in public order.

Piece = tuple[np.ndarray, ...]
"""Consecutive records: arrays with the records along their first axis."""
AT_ONCE, SCATTERED = 2**20, 2**23
"""Bytes of records that are read at once, about: few enough for a cache, and where they are
scattered many."""


class Source(Protocol):
    """Records in public order, as often as a run asks for them.

    ``dear``: whether reading them again costs much more than reading bytes, as parsing text does. A
    source whose records could change has ``check()`` as well, which refuses them if they did: asked
    in every pass and before a release.
    """

    @property
    def dear(self) -> bool: ...

    def __len__(self) -> int: ...

    def pieces(self, most: int, first: int = 0) -> Iterator[Piece]:
        """Yield records from index ``first`` on, 1 .. ``most`` of them at a time. Errors: data that
        changed meanwhile."""
        ...

    def fingerprint(self) -> Iterator[np.ndarray]:
        """Arrays that are equal for equal data: what a checkpoint knows the data by."""
        ...


def check_unchanged(source: Source) -> None:
    """Refuse records that changed since the source was made, where it can see that."""
    check = getattr(source, "check", None)
    if check is not None:
        check()


def _form(piece: Piece) -> list[tuple[np.dtype, tuple[int, ...]]]:
    return [(part.dtype, part.shape[1:]) for part in piece]


def row_bytes(piece: Piece) -> int:
    """Bytes of one record."""
    return max(1, sum(part[:1].nbytes for part in piece))


def find_start(source: Source, first: int) -> int:
    """Return the record at which a source begins to read for that of index ``first``."""
    find = getattr(source, "find_start", None)
    return first if find is None else find(first)


def rows_of(source: Source, size: int) -> int:
    """Records of about ``size`` bytes: a form is looked at, and no value."""
    return max(1, size // row_bytes(first_record(source)))


def first_record(source: Source) -> Piece:
    """The first record, whose shapes and dtypes are those of all; a file may hold it."""
    held = getattr(source, "first", None)
    if held is not None:
        return held
    pieces = source.pieces(1)
    try:
        return next(pieces)
    finally:
        pieces.close()  # type: ignore[attr-defined]


def count_records(
    source: Source, n: int, first: int = 0, most: int | None = None
) -> Iterator[Piece]:
    """Read one pass from ``first`` on. Refuse a source that holds another number of records than it
    says, or records of several kinds: an integer record would truncate the decimals of all
    others."""
    form, at = _form(first_record(source)), first
    for piece in source.pieces(rows_of(source, AT_ONCE) if most is None else most, first):
        if _form(piece) != form or len({len(part) for part in piece}) != 1:
            raise InputError(
                "data",
                "must give arrays of one precision and shape for every record, as many of each",
                None,
                "name their dtype where they are made",
            )
        at += len(piece[0])
        if at > n:
            break
        yield piece
    if at != n:
        raise InputError(
            "data",
            f"must hold {n} records in every pass",
            "more" if at > n else at,
            "nothing may change them while a run reads them",
        )


def regroup(pieces: Iterable[Piece], rows: int) -> Iterator[Piece]:
    """The same records, ``rows`` at a time; the last piece may be shorter."""
    held: list[Piece] = []
    have = 0
    for piece in pieces:
        interrupts.check()
        begin = 0
        while have + len(piece[0]) - begin >= rows:
            end = begin + rows - have
            held.append(tuple(part[begin:end] for part in piece))
            yield join_pieces(held)
            held, have, begin = [], 0, end
        if begin < len(piece[0]):
            held.append(tuple(part[begin:] for part in piece))
            have += len(piece[0]) - begin
    if held:
        yield join_pieces(held)


def join_pieces(pieces: list[Piece]) -> Piece:
    """Pieces as one, without a copy where there is one."""
    return (
        pieces[0]
        if len(pieces) == 1
        else tuple(np.concatenate(parts) for parts in zip(*pieces, strict=True))
    )


def own_records(n: int, part: int, parts: int) -> tuple[int, int]:
    """Return the begin and the end of a process's records among ``n`` in public order."""
    share = -(-n // parts)
    return min(n, part * share), min(n, (part + 1) * share)


class Cursor:
    """Takes records from pieces, as many as are asked for."""

    def __init__(self, pieces: Iterator[Piece]) -> None:
        self._pieces, self._piece, self._at = pieces, tuple[np.ndarray, ...](), 0

    def take(self, many: int) -> Iterator[Piece]:
        """The next ``many`` records, as they come."""
        while many > 0:
            if not self._piece or self._at == len(self._piece[0]):
                self._piece, self._at = next(self._pieces), 0
            some = min(many, len(self._piece[0]) - self._at)
            piece = tuple(part[self._at : self._at + some] for part in self._piece)
            many, self._at = many - some, self._at + some
            yield piece

    def finish(self) -> None:
        """Read to the end, where a source says whether it changed."""
        for _ in self._pieces:
            pass


# Records that bring their indices, where their random draws follow from them.


@dataclass(frozen=True)
class IndexedSource:
    """A source whose records have their public index, from 0 on, as one more part."""

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

    def fingerprint(self) -> Iterator[np.ndarray]:
        return self.source.fingerprint()

    def find_start(self, first: int) -> int:
        """As that of its source."""
        return find_start(self.source, first)

    def check(self) -> None:
        """Refuse a source that changed."""
        check_unchanged(self.source)


def number_records(run: Run, source: Source) -> Source:
    """Return the records of a run as its steps read them: with indices where they draw something of
    their own."""
    return source if run.augmentation is None else IndexedSource(source)


# Which runs read their records in order, so that these may come in pieces.


def check_streams(run: Run, source: Sized | None = None) -> None:
    """Refuse batches that need random access, noise that is not added to gradients step by step,
    the release of all iterates, and another number of records than the run's."""
    batching = run.batching
    if source is not None and len(source) != run.n:
        raise InputError("data", f"must have the run's n = {run.n} records", len(source))
    if run.rows_per_record > 1:
        raise InputError(
            "rows_per_record",
            "must be 1 where records are read in pieces",
            run.rows_per_record,
            "hold the data in memory",
        )
    if run.release != "last":
        raise InputError(
            "release",
            "must be 'last' where records are read in pieces",
            run.release,
            "hold the data in memory to release all iterates",
        )
    if not run.method.noisy_steps:
        raise InputError(
            "method",
            "must add noise to every step's gradient where records are read in pieces",
            type(run.method).__name__,
            "use NoisySGD",
        )
    if not batching.streams:
        kinds = (kind.__name__ for kind in get_args(Batching) if kind.streams)
        raise InputError(
            "batching",
            "needs random access to the records, which are read in order here",
            type(batching).__name__,
            "use one of " + ", ".join(kinds) + ", or hold the data in memory",
        )


# Records in pages: every array of a piece one after the other, and back.


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
        return sum(
            dtype.itemsize * math.prod(shape)
            for dtype, shape in zip(self.dtypes, self.shapes, strict=True)
        )

    def empty(self, *axes: int) -> Piece:
        """Arrays for records along the axes ``axes``, on boundaries of 64 bytes and all 0."""
        return tuple(
            allocate_aligned((*axes, *shape), dtype)
            for dtype, shape in zip(self.dtypes, self.shapes, strict=True)
        )

    def pack(self, piece: Piece) -> bytes:
        """The bytes of records."""
        return b"".join(np.ascontiguousarray(part).tobytes() for part in piece)

    def unpack(self, content: bytes) -> Piece:
        """The records in these bytes; arrays that share them."""
        return self.within(np.frombuffer(content, np.uint8), len(content) // self.size)

    def within(self, content: np.ndarray, rows: int) -> Piece:
        """Arrays (..., rows, ...) that lie one behind the other in bytes (..., rows * size), and
        share them."""
        begin, arrays = 0, list[np.ndarray]()
        for dtype, shape in zip(self.dtypes, self.shapes, strict=True):
            end = begin + rows * math.prod(shape) * dtype.itemsize
            arrays.append(
                content[..., begin:end].view(dtype).reshape(*content.shape[:-1], rows, *shape)
            )
            begin = end
        return tuple(arrays)
