"""Batches: which records a step reads, and what about that is public."""

from __future__ import annotations

from dataclasses import dataclass

from lastiterate.errors import InputError
from lastiterate.run.validate import whole


@dataclass(frozen=True)
class FullBatch:
    """Every record at every step."""


@dataclass(frozen=True)
class _Sized:
    size: int

    def __post_init__(self) -> None:
        whole("batch size", self.size)


@dataclass(frozen=True)
class Cyclic(_Sized):
    """Contiguous blocks of ``size`` records in public order, the same every pass."""


@dataclass(frozen=True)
class Permuted(_Sized):
    """One secret uniform permutation of the records, then the same blocks every pass."""


@dataclass(frozen=True)
class Reshuffled(_Sized):
    """A fresh secret uniform permutation of the records before every pass, cut into blocks of ``size``."""


@dataclass(frozen=True)
class FixedSize(_Sized):
    """A fresh uniform subset of ``size`` records at every step."""


@dataclass(frozen=True)
class BallsInBins(_Sized):
    """Every record in one of ceil(n / size) secret batches, independently, the same every pass."""


@dataclass(frozen=True)
class Poisson:
    """Every record in every batch independently with probability ``rate``."""

    rate: float

    def __post_init__(self) -> None:
        if not 1e-9 <= self.rate <= 1:
            raise InputError("rate of poisson batches", "must lie in [1e-9, 1]", self.rate)


Batching = FullBatch | Cyclic | Permuted | Reshuffled | FixedSize | BallsInBins | Poisson
