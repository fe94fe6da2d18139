"""What a module's records draw under a key of their own: an augmentation of what the module takes, and dropout."""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.func import vmap
from torch.utils._pytree import tree_map

from lastiterate.torch.keyed_dropout import KeyedDropout
from lastiterate.torch.record_key import RecordKey

Augment = Callable[[RecordKey, Any], Any]
"""``augment(key, x)``: another form of what the module takes of one record."""
OfCopy = Callable[..., tuple[torch.Tensor, Any]]
"""From zeros, parameters and a record as the module takes it to its loss and the inputs of layers."""


@dataclass(frozen=True, eq=False)
class Drawing:
    """A record's last part is its key, an int64; ``copies`` of it are drawn, of each of which ``augment`` makes a form
    (None: as it is), and of which every dropout drops something else.

    **Guarantee:** what is drawn follows from the record's own key.
    """

    augment: Augment | None
    copies: int

    def drawn(self, parts: tuple[Any, ...], word: torch.Tensor) -> tuple[Any, ...]:
        """The parts of a record as the module and the loss take them, of the copy with this key."""
        if self.augment is None:
            return parts
        first, *others = parts
        return (like(self.augment(RecordKey(word).fold_in(0), first), first), *others)

    def words(self, word: torch.Tensor) -> torch.Tensor:
        """The keys of a record's copies, (copies,)."""
        return RecordKey(word).fold_in(torch.arange(self.copies, device=word.device)).word

    def dropping(self, word: torch.Tensor) -> KeyedDropout:
        """Dropout of the copy with this key."""
        return KeyedDropout(RecordKey(word).fold_in(1))

    def first_form(self, record: tuple[Any, ...]) -> tuple[Any, ...]:
        """The first copy of one record, as the module and the loss take it."""
        *parts, word = record
        return self.drawn(tuple(parts), self.words(word)[0])

    def mean(self, record: tuple[Any, ...], loss: Callable[[tuple[Any, ...]], torch.Tensor]) -> torch.Tensor:
        """The mean loss of the copies of one record, one after the other."""
        *parts, word = record
        losses = list[torch.Tensor]()
        for own in self.words(word):
            with self.dropping(own):
                losses.append(loss(self.drawn(tuple(parts), own)))
        return torch.stack(losses).mean()

    def averaged(self, one: OfCopy) -> OfCopy:
        """The same function of a whole record: the mean loss of its copies, and all inputs; zeros have their axis."""
        def several(zeros: object, rest: object, record: tuple[Any, ...]) -> tuple[torch.Tensor, Any]:
            *parts, word = record

            def copy(own: object, which: torch.Tensor) -> tuple[torch.Tensor, Any]:
                with self.dropping(which):
                    return one(own, rest, self.drawn(tuple(parts), which))

            losses, inputs = vmap(copy)(zeros, self.words(word))
            return losses.mean(), inputs

        return several


def like(record: object, given: object) -> Any:
    """What an augmentation made, in the precision of what it was given."""
    return tree_map(lambda made, before: made.to(before.dtype) if before.is_floating_point() else made, record, given)
