"""Records in memory or in pieces, without those that a model forgets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np

from lastiterate.engine.preprocessing import prepare_rows, target_offset
from lastiterate.engine.streaming.source import (
    AT_ONCE,
    Piece,
    Source,
    check_unchanged,
    count_records,
    find_start,
    first_record,
    rows_of,
)
from lastiterate.errors import InputError
from lastiterate.run.run import Run


@final
@dataclass(frozen=True, eq=False)
class ZeroedSource:
    """What the steps of a request read, at the ``n`` positions of the training: rows as
    ``training`` prepared them, targets, and whether each holds a record. Those in ``removed``, and
    those behind the last record of ``source``, hold zeros.

    **Guarantee:** nothing that a step reads follows from a removed record.
    """

    source: Source
    training: object
    released: tuple[np.ndarray, ...]
    removed: np.ndarray
    n: int

    @property
    def dear(self) -> bool:
        return self.source.dear

    def __len__(self) -> int:
        return self.n

    @cached_property
    def first(self) -> Piece:
        """The first record, whose form all others have."""
        return self._prepare(first_record(self.source), 0)

    def pieces(self, most: int, first: int = 0) -> Iterator[Piece]:
        """Records from position ``first`` on, 1 .. ``most`` of them at a time."""
        at = first
        if first < len(self.source):
            for piece in count_records(self.source, len(self.source), first, most):
                yield self._prepare(piece, at)
                at += len(piece[0])
        while at < self.n:
            count = min(most, self.n - at)
            yield tuple(np.zeros((count, *part.shape[1:]), part.dtype) for part in self.first)
            at += count

    def _prepare(self, piece: Piece, at: int) -> Piece:
        rows, target = piece[0], piece[1]
        present = np.isin(np.arange(at, at + len(rows)), self.removed, invert=True)
        rows = np.where(present[:, None], rows, np.zeros((), rows.dtype))
        target = np.where(present, target, np.zeros((), target.dtype))
        if isinstance(self.training, Run):
            rows = prepare_rows(rows, self.training.preprocessing, self.released)
            offset = target_offset(self.training, self.released)
            target = target if offset == 0 else target - offset
        return rows, target, present.astype(np.uint8)

    def fingerprint(self) -> Iterator[np.ndarray]:
        """As that of the source, and what is removed."""
        yield from self.source.fingerprint()
        yield self.removed

    def find_start(self, first: int) -> int:
        """As that of the source."""
        return find_start(self.source, first) if first < len(self.source) else first

    def check(self) -> None:
        """Refuse a source that changed."""
        check_unchanged(self.source)


@final
@dataclass(frozen=True, eq=False)
class ReducedSource:
    """The records of ``source`` as they are, one after the other, without those in ``removed``:
    what the next request is made on."""

    source: Source
    removed: np.ndarray
    dear = True

    def __len__(self) -> int:
        return len(self.source) - len(self.removed)

    @property
    def first(self) -> Piece:
        """A record, whose form all others have."""
        return first_record(self.source)

    def pieces(self, most: int, first: int = 0) -> Iterator[Piece]:
        """Records from number ``first`` on of those that stay, 1 .. ``most`` of them at a time."""
        at = left = 0
        for piece in self.source.pieces(most):
            stays = np.isin(np.arange(at, at + len(piece[0])), self.removed, invert=True)
            at += len(piece[0])
            begin, left = max(0, first - left), left + int(stays.sum())
            kept = tuple(part[stays][begin:] for part in piece)
            if len(kept[0]):
                yield kept

    def fingerprint(self) -> Iterator[np.ndarray]:
        """As that of the source, and what is removed."""
        yield from self.source.fingerprint()
        yield self.removed


def drop_records(
    data: tuple[np.ndarray, np.ndarray], gone: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """The records that stay, in order: what the next request is made on."""
    rows, target = (np.delete(part, list(gone), axis=0) for part in data)
    return rows, target


def check_classes(target: np.ndarray, gone: tuple[int, ...], classes: int) -> None:
    """Refuse to remove all records of a class: the model would still predict a class without
    members. Without ``classes`` targets are numbers, of which any may go."""
    if classes and not set(np.unique(target)) <= set(np.unique(np.delete(target, list(gone)))):
        raise InputError(
            "remove",
            "must leave a record of every class",
            None,
            "train again without the class, which is then no answer any more",
        )


def check_classes_of(source: Source, gone: tuple[int, ...], classes: int) -> None:
    """Refuse to remove all records of a class: the model would still predict a class without
    members. It reads until every class of the target has one that stays."""
    if classes == 0:
        return
    seen, stays = np.zeros(classes, bool), np.zeros(classes, bool)
    removed, at = np.array(gone), 0
    for piece in source.pieces(rows_of(source, AT_ONCE)):
        target: Any = piece[1]
        if not np.isin(target, np.arange(classes)).all():
            raise InputError(
                "target", f"must be class indices 0..{classes - 1}", None, "encode labels first"
            )
        target = target.astype(np.intp)
        kept = np.isin(np.arange(at, at + len(target)), removed, invert=True)
        at += len(target)
        seen[target], stays[target[kept]] = True, True
        if stays.all():
            return
    if (seen & ~stays).any():
        raise InputError(
            "remove",
            "must leave a record of every class",
            None,
            "train again without the class, which is then no answer any more",
        )
