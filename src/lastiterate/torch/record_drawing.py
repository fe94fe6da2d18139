"""What a module's records draw: an augmentation of what the module takes, under a key of the record's own."""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.func import vmap
from torch.utils._pytree import tree_map

from lastiterate.torch.record_key import RecordKey

Augment = Callable[[RecordKey, Any], Any]
"""``augment(key, x)``: another form of what the module takes of one record."""
OfCopy = Callable[..., tuple[torch.Tensor, Any]]
"""From zeros, parameters and a record as the module takes it to its loss and the inputs of layers."""


@dataclass(frozen=True, eq=False)
class Drawing:
    """A record's last part is its key, an int64; ``copies`` of it are drawn, of each of which ``augment`` makes a form.

    **Guarantee:** what is drawn follows from the record's own key.
    """

    augment: Augment
    copies: int

    def drawn(self, parts: tuple[Any, ...], word: torch.Tensor) -> tuple[Any, ...]:
        """The parts of a record as the module and the loss take them, of the copy with this key."""
        first, *others = parts
        return (like(self.augment(RecordKey(word).fold_in(0), first), first), *others)

    def words(self, word: torch.Tensor) -> torch.Tensor:
        """The keys of a record's copies, (copies,)."""
        return RecordKey(word).fold_in(torch.arange(self.copies, device=word.device)).word

    def each(self, record: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        """The copies of one record, one after the other."""
        *parts, word = record
        for own in self.words(word):
            yield self.drawn(tuple(parts), own)

    def averaged(self, one: OfCopy) -> OfCopy:
        """The same function of a whole record: the mean loss of its copies, and all inputs; zeros have their axis."""
        def several(zeros: Any, rest: Any, record: tuple[Any, ...]) -> tuple[torch.Tensor, Any]:
            *parts, word = record

            def copy(own: Any, which: torch.Tensor) -> tuple[torch.Tensor, Any]:
                return one(own, rest, self.drawn(tuple(parts), which))

            losses, inputs = vmap(copy)(zeros, self.words(word))
            return losses.mean(), inputs

        return several


def like(found: Any, given: Any) -> Any:
    """What an augmentation made, in the precision of what it was given."""
    return tree_map(lambda made, before: made.to(before.dtype) if before.is_floating_point() else made, found, given)
