"""Random numbers of one record, as functions of a key: the same alone and vectorised, on every device."""

# pyright: reportMissingImports=false
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
import torch

GOLDEN, FIRST, SECOND = (word - 2**64 for word in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
"""The constants of SplitMix64 (Steele, Lea, Flood 2014), as 64 bits with a sign."""


@final
@dataclass(frozen=True, eq=False)
class RecordKey:
    """A key of 64 bits, an int64 tensor without axes: what ``augment(key, x)`` is given for one copy of a record.

    As with keys of JAX, one key always gives the same numbers: ``split`` or ``fold_in`` make others of it. Bits are
    those of SplitMix64: good enough for what may be known to everybody, and nothing that noise is made of.
    """

    word: torch.Tensor

    def fold_in(self, number: int | torch.Tensor) -> RecordKey:
        """Another key for every whole number."""
        return RecordKey(_mixed(self.word ^ _mixed(number + torch.full_like(self.word, GOLDEN))))

    def split(self, count: int = 2) -> tuple[RecordKey, ...]:
        """Several other keys."""
        return tuple(self.fold_in(number) for number in range(count))

    def uniform(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Numbers in [0, 1), multiples of 2^-24."""
        top = (self._bits(shape) >> 40) & (2**24 - 1)
        return top.to(torch.get_default_dtype() if dtype is None else dtype) * 2.0**-24

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Standard normal numbers (Box, Muller 1958)."""
        one, two = self.split()
        radius = torch.sqrt(-2 * torch.log1p(-one.uniform(*shape, dtype=dtype)))
        return radius * torch.cos(2 * math.pi * two.uniform(*shape, dtype=dtype))

    def integers(self, low: int, high: int, *shape: int) -> torch.Tensor:
        """Whole numbers ``low`` .. ``high`` - 1, int64; ``high`` - ``low`` is at most 2^24."""
        return low + ((self._bits(shape) >> 39) & (2**25 - 1)) % (high - low)

    def _bits(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Words of 64 bits."""
        count = torch.arange(1, math.prod(shape) + 1, device=self.word.device)
        return _mixed(self.word + GOLDEN * count).reshape(shape)


def _mixed(word: torch.Tensor) -> torch.Tensor:
    """The finaliser of SplitMix64: a bijection of 64 bits."""
    word = (word ^ _right(word, 30)) * FIRST
    word = (word ^ _right(word, 27)) * SECOND
    return word ^ _right(word, 31)


def _right(word: torch.Tensor, bits: int) -> torch.Tensor:
    """Shifted to the right, with zeros from the left."""
    return (word >> bits) & (2 ** (64 - bits) - 1)


def as_words(keys: np.ndarray) -> torch.Tensor:
    """Keys of records as the engine makes them, (m, 2) uint32, as (m,) int64."""
    return torch.from_numpy(np.ascontiguousarray(keys).view(np.int64)[:, 0].copy())
