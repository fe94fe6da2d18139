"""Where records come from when they are not in memory: pieces of them in public order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import numpy as np

from lastiterate import interrupts
from lastiterate.errors import InputError

Piece = tuple[np.ndarray, ...]
"""Consecutive records: arrays with the records along their first axis."""
AT_ONCE, SCATTERED = 2**20, 2**23
"""Bytes of records that are read at once, about: few enough for a cache, and where they are scattered many."""


class Source(Protocol):
    """Records in public order, as often as a run asks for them.

    ``dear``: whether reading them again costs much more than reading bytes, as parsing text does. A source whose
    records could change has ``check()`` as well, which refuses them if they did: asked in every pass and before a
    release.
    """

    @property
    def dear(self) -> bool: ...

    def __len__(self) -> int: ...

    def pieces(self, most: int, first: int = 0) -> Iterator[Piece]:
        """Records from number ``first`` on, 1 .. ``most`` of them at a time. Errors: data that changed meanwhile."""
        ...

    def digested(self) -> Iterator[np.ndarray]:
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


def rows_of(source: Source, size: int) -> int:
    """Records of about ``size`` bytes: a form is looked at, and no value."""
    return max(1, size // row_bytes(first_record(source)))


def first_record(source: Source) -> Piece:
    """The first record, whose shapes and dtypes are those of all."""
    pieces = source.pieces(1)
    try:
        return next(pieces)
    finally:
        pieces.close()  # type: ignore[attr-defined]


def counted(source: Source, n: int, first: int = 0, most: int | None = None) -> Iterator[Piece]:
    """One pass from ``first`` on; refuses a source that holds another number of records than it says, or records of
    several kinds: one of whole numbers would cut off what stands behind the point in all others."""
    form, at = _form(first_record(source)), first
    for piece in source.pieces(rows_of(source, AT_ONCE) if most is None else most, first):
        if _form(piece) != form or len({len(part) for part in piece}) != 1:
            raise InputError("data", "must give arrays of one precision and shape for every record, as many of each",
                             None, "name their dtype where they are made")
        at += len(piece[0])
        if at > n:
            break
        yield piece
    if at != n:
        raise InputError("data", f"must hold {n} records in every pass", "more" if at > n else at,
                         "nothing may change them while a run reads them")


def regrouped(pieces: Iterable[Piece], rows: int) -> Iterator[Piece]:
    """The same records, ``rows`` at a time; the last piece may be shorter."""
    held: list[Piece] = []
    have = 0
    for piece in pieces:
        interrupts.check()
        begin = 0
        while have + len(piece[0]) - begin >= rows:
            end = begin + rows - have
            held.append(tuple(part[begin:end] for part in piece))
            yield joined(held)
            held, have, begin = [], 0, end
        if begin < len(piece[0]):
            held.append(tuple(part[begin:] for part in piece))
            have += len(piece[0]) - begin
    if held:
        yield joined(held)


def joined(pieces: list[Piece]) -> Piece:
    """Pieces as one, without a copy where there is one."""
    return pieces[0] if len(pieces) == 1 else tuple(np.concatenate(parts) for parts in zip(*pieces, strict=True))


def own_records(n: int, part: int, parts: int) -> tuple[int, int]:
    """Of ``n`` records in public order: where those of a process begin, and where they end."""
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
            piece = tuple(part[self._at:self._at + some] for part in self._piece)
            many, self._at = many - some, self._at + some
            yield piece

    def finish(self) -> None:
        """Read to the end, where a source says whether it changed."""
        for _ in self._pieces:
            pass
