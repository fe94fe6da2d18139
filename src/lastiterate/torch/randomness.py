"""Random numbers that belong to a record: dropout, augmentation and their keys."""

# pyright: reportMissingImports=false
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
import torch.nn.functional as functional
from torch.func import vmap
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

# Random numbers of one record, as functions of a key: the same alone and vectorised, on every
# device.


GOLDEN, FIRST, SECOND = (
    word - 2**64 for word in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
"""The constants of SplitMix64 (Steele, Lea, Flood 2014), as 64 bits with a sign."""


@final
@dataclass(frozen=True, eq=False)
class RecordKey:
    """A key for the random numbers of one copy of a record, as ``augment(key, x)`` gets it.

    One key always gives the same numbers; ``split`` and ``fold_in`` make other keys of it.

    Parameters
    ----------
    word : torch.Tensor
        The 64 bits of the key: an int64 tensor without axes.

    Notes
    -----
    Bits are those of SplitMix64 (Steele, Lea and Flood 2014). They suit public randomness such as
    augmentations, and privacy noise is never made of them.

    Examples
    --------
    >>> import torch
    >>> from lastiterate.torch import RecordKey
    >>> key = RecordKey(torch.tensor(7))
    >>> bool((key.uniform(3) == key.uniform(3)).all())
    True
    >>> first, second = key.split()
    >>> bool((first.uniform(3) == second.uniform(3)).any())
    False
    """

    word: torch.Tensor

    def fold_in(self, number: int | torch.Tensor) -> RecordKey:
        """Return another key for every integer."""
        return RecordKey(_mix(self.word ^ _mix(number + torch.full_like(self.word, GOLDEN))))

    def split(self, count: int = 2) -> tuple[RecordKey, ...]:
        """Return several other keys."""
        return tuple(self.fold_in(number) for number in range(count))

    def uniform(self, *shape: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return numbers in [0, 1), multiples of 2^-24; ``shape``: integers, or a tuple of them."""
        top = (self._bits(shape) >> 40) & (2**24 - 1)
        return top.to(torch.get_default_dtype() if dtype is None else dtype) * 2.0**-24

    def normal(self, *shape: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return standard normal numbers (Box and Muller 1958)."""
        one, two = self.split()
        radius = torch.sqrt(-2 * torch.log1p(-one.uniform(*shape, dtype=dtype)))
        return radius * torch.cos(2 * math.pi * two.uniform(*shape, dtype=dtype))

    def integers(self, low: int, high: int, *shape: Any) -> torch.Tensor:
        """Return integers from ``low`` to ``high`` - 1, int64; the range is at most 2^24."""
        return low + ((self._bits(shape) >> 39) & (2**25 - 1)) % (high - low)

    def _bits(self, shape: tuple[Any, ...]) -> torch.Tensor:
        """Words of 64 bits."""
        shape = tuple(shape[0]) if shape and isinstance(shape[0], tuple | list) else shape
        count = torch.arange(1, math.prod(shape) + 1, device=self.word.device)
        return _mix(self.word + GOLDEN * count).reshape(shape)


def _mix(word: torch.Tensor) -> torch.Tensor:
    """The finaliser of SplitMix64: a bijection of 64 bits."""
    word = (word ^ _right(word, 30)) * FIRST
    word = (word ^ _right(word, 27)) * SECOND
    return word ^ _right(word, 31)


def _right(word: torch.Tensor, bits: int) -> torch.Tensor:
    """Shifted to the right, with zeros from the left."""
    return (word >> bits) & (2 ** (64 - bits) - 1)


def keys_to_words(keys: np.ndarray) -> torch.Tensor:
    """Keys of records as the engine makes them, (m, 2) uint32, as (m,) int64."""
    return torch.from_numpy(np.ascontiguousarray(keys).view(np.int64)[:, 0].copy())


DROPPED = {
    functional.dropout: False,
    functional.dropout1d: True,
    functional.dropout2d: True,
    functional.dropout3d: True,
}
"""Functions that are known here, and whether they drop whole channels."""
PARTS = (torch.nn.Dropout, torch.nn.Dropout1d, torch.nn.Dropout2d, torch.nn.Dropout3d)


def drops(part: torch.nn.Module) -> bool:
    """Whether a part drops entries in a way that is known here."""
    return isinstance(part, PARTS) and type(part) in PARTS and part.training and part.p > 0


class KeyedDropout(TorchFunctionMode):
    """While it is active, dropout draws under ``key``, another number for every call; without a key
    it drops nothing.

    **Guarantee:** what is dropped of a record follows from its key: other records decide nothing
    about it.
    """

    def __init__(self, key: RecordKey | None) -> None:
        super().__init__()
        self._key, self._calls = key, 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func not in DROPPED:
            return func(*args, **(kwargs or {}))
        given = dict(zip(("input", "p", "training", "inplace"), args, strict=False)) | (
            kwargs or {}
        )
        values, p = given["input"], float(given.get("p", 0.5))
        if self._key is None or not given.get("training", True) or p == 0:
            return values
        self._calls += 1
        shape = tuple(values.shape)
        shape = (*shape[:2], *[1] * (len(shape) - 2)) if DROPPED[func] else shape
        kept = self._key.fold_in(self._calls).uniform(*shape, dtype=torch.float32) >= p
        return torch.where(kept, values / (1 - p if p < 1 else 1.0), 0.0)


# What a module's records draw under a key of their own: an augmentation of what the module takes,
# and dropout.


Augment = Callable[[RecordKey, Any], Any]
"""``augment(key, x)``: another form of what the module takes of one record."""
OfCopy = Callable[..., tuple[torch.Tensor, Any]]
"""From zeros, parameters and a record as the module takes it to its loss and the inputs of layers.
"""


@dataclass(frozen=True, eq=False)
class DrawnRecords:
    """A record's last part is its key, an int64; ``copies`` of it are drawn, of each of which
    ``augment`` makes a form (None: as it is), and of which every dropout drops something else.

    **Guarantee:** what is drawn follows from the record's own key.
    """

    augment: Augment | None
    copies: int

    def draw_record(self, parts: tuple[Any, ...], word: torch.Tensor) -> tuple[Any, ...]:
        """The parts of a record as the module and the loss take them, of the copy with this key."""
        if self.augment is None:
            return parts
        first, *others = parts
        return (cast_like(self.augment(RecordKey(word).fold_in(0), first), first), *others)

    def words(self, word: torch.Tensor) -> torch.Tensor:
        """The keys of a record's copies, (copies,)."""
        return RecordKey(word).fold_in(torch.arange(self.copies, device=word.device)).word

    def draw_dropout(self, word: torch.Tensor) -> KeyedDropout:
        """Dropout of the copy with this key."""
        return KeyedDropout(RecordKey(word).fold_in(1))

    def first_form(self, record: tuple[Any, ...]) -> tuple[Any, ...]:
        """The first copy of one record, as the module and the loss take it."""
        *parts, word = record
        return self.draw_record(tuple(parts), self.words(word)[0])

    def mean(
        self, record: tuple[Any, ...], loss: Callable[[tuple[Any, ...]], torch.Tensor]
    ) -> torch.Tensor:
        """The mean loss of the copies of one record, one after the other."""
        *parts, word = record
        losses = list[torch.Tensor]()
        for own in self.words(word):
            with self.draw_dropout(own):
                losses.append(loss(self.draw_record(tuple(parts), own)))
        return torch.stack(losses).mean()

    def average_copies(self, one: OfCopy) -> OfCopy:
        """The same function of a whole record: the mean loss of its copies, and all inputs; zeros
        have their axis."""

        def several(
            zeros: object, rest: object, record: tuple[Any, ...]
        ) -> tuple[torch.Tensor, Any]:
            *parts, word = record

            def copy(own: object, which: torch.Tensor) -> tuple[torch.Tensor, Any]:
                with self.draw_dropout(which):
                    return one(own, rest, self.draw_record(tuple(parts), which))

            losses, inputs = vmap(copy)(zeros, self.words(word))
            return losses.mean(), inputs

        return several


def cast_like(record: object, given: object) -> Any:
    """What an augmentation made, in the precision of what it was given."""
    return tree_map(
        lambda made, before: made.to(before.dtype) if before.is_floating_point() else made,
        record,
        given,
    )
