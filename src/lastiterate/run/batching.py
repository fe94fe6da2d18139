"""Batches: the records of a step, the secret draws, and the public values that follow.

A batching answers questions about itself, so that theorems, trainer and reports need not know which
one it is. ``n`` is the public number of records in all of them. A new one also needs a sampler
(engine/samplers.py), which the trainer draws with; ``draws`` is the plain reference that it is
tested against.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Self, final

import numpy as np
from numpy.typing import NDArray

from lastiterate.errors import InputError
from lastiterate.run.adjacency import Adjacency
from lastiterate.run.serialization import Checked, normalise_fields, require
from lastiterate.run.validation import Array, check_integer, repeat_value

Drawn = Literal["never", "once", "each pass", "each step"]
Sizes = Literal["equal", "last shorter", "some shorter", "random"]
Streams = Literal["in order", "cut", "binned", ""]
Indices = NDArray[np.int64]


class Batches(Checked, ABC):
    """The questions that every batching answers.

    ``word``: its name on the command line. ``drawn``: when secret draws happen. ``sizes``: how many
    records batches hold: as many as the divisor, fewer in the last one or in some of a pass, or any
    number.
    ``secret``: what must stay secret, a sentence ("" if nothing). ``independent``: whether a
    record's draws are independent of every other record's. ``adjacencies``: the neighbours that it
    is defined for.
    ``streams``: how records that are read from front to end become batches: as they lie, cut from
    an order sorted by random words, sorted into bins, or not at all ("").
    """

    word: ClassVar[str]
    drawn: ClassVar[Drawn]
    sizes: ClassVar[Sizes]
    secret: ClassVar[str]
    independent: ClassVar[bool]
    streams: ClassVar[Streams] = ""
    adjacencies: ClassVar[tuple[Adjacency, ...]] = ("zero-out", "replace-one")

    @classmethod
    @abstractmethod
    def of_size(cls, n: int, size: int) -> Self:
        """Batches of about ``size`` records out of n."""

    @abstractmethod
    def blocks(self, n: int) -> int:
        """Return the number of batches in one epoch.

        It is 1 for full batches, and for batches drawn at every step.
        """

    def steps_per_epoch(self, n: int) -> float:
        """Return the number of steps that use as many records, on average, as there are."""
        rate = self.inclusion_probability(n)
        return self.blocks(n) if rate is None else 1 / rate

    @abstractmethod
    def divisor(self, n: int) -> float:
        """The public number that summed gradients are divided by."""

    @abstractmethod
    def shares(self, n: int) -> tuple[float, float]:
        """The fewest and the most records that a step's batch can hold, over the divisor."""

    def place_probabilities(self, n: int) -> Array | None:
        """Return the probability of every block for one record, (blocks,).

        It is ``None`` unless a record's block is drawn once or in each epoch.
        """
        return None

    def inclusion_probability(self, n: int) -> float | None:
        """Return the probability that a batch holds a given record.

        It is ``None`` unless batches are drawn at every step.
        """
        return None

    def expected_batch(self, n: int) -> float:
        """Return the expected number of records in a batch, or the size of a complete block."""
        return self.divisor(n)

    def assign_blocks(self, n: int) -> Indices | None:
        """Return the block of every position of an order of the records, (n,).

        It is ``None`` where blocks are not cut from one.
        """
        return None

    def block_sizes(self, n: int) -> Indices | None:
        """Records of every block that is cut from an order, (blocks,); else None."""
        cut = self.assign_blocks(n)
        return None if cut is None else np.bincount(cut, minlength=self.blocks(n))

    def block_of(self, n: int) -> Indices | None:
        """The block that holds every record, (n,), the same in every pass; None where it is drawn."""
        return self.assign_blocks(n) if self.drawn == "never" else None

    def draws(self, n: int, rng: np.random.Generator) -> list[Indices]:
        """Return the records of every batch of one epoch, increasing.

        Samplers are compared with it; it protects no privacy.
        """
        cut = self.assign_blocks(n)
        assert cut is not None  # the others draw their own
        order = np.arange(n) if self.drawn == "never" else rng.permutation(n)
        return [np.sort(order[cut == block]) for block in range(self.blocks(n))]


@final
@dataclass(frozen=True)
class FullBatch(Batches):
    """Batches of every record at every step.

    Nothing about them is secret. Summed gradients are divided by n.

    See Also
    --------
    Cyclic : Blocks in public order.

    Examples
    --------
    >>> import lastiterate as li
    >>> run = li.Run(n=1000, steps=10, step_size=0.1, batching=li.FullBatch())
    >>> run.divisor, run.blocks
    (1000.0, 1)
    """

    word, drawn, sizes, secret, independent = "full", "never", "equal", "", False
    streams = "in order"

    @classmethod
    def of_size(cls, n: int, size: int) -> Self:
        return cls()

    def assign_blocks(self, n: int) -> Indices:
        return np.zeros(n, np.int64)

    def block_sizes(self, n: int) -> Indices:
        return np.array([n])

    def blocks(self, n: int) -> int:
        return 1

    def divisor(self, n: int) -> float:
        return float(n)

    def shares(self, n: int) -> tuple[float, float]:
        return 1.0, 1.0


@dataclass(frozen=True)
class _Sized(Batches):
    """Batches described by a public size, which sums are divided by."""

    size: int = field(metadata=require(check_integer, "batch size"))

    @classmethod
    def of_size(cls, n: int, size: int) -> Self:
        return cls(size)

    def divisor(self, n: int) -> float:
        return float(self.size)


@dataclass(frozen=True)
class _Blocks(_Sized):
    """Some order of the records cut into blocks; the last one of an epoch may be shorter."""

    sizes, independent = "last shorter", False

    def blocks(self, n: int) -> int:
        return -(-n // self.size)

    def shares(self, n: int) -> tuple[float, float]:
        return (n - self.size * (self.blocks(n) - 1)) / self.size, 1.0

    def place_probabilities(self, n: int) -> Array | None:
        return None if self.drawn == "never" else self.block_sizes(n) / n

    def assign_blocks(self, n: int) -> Indices:
        return np.arange(n) // self.size

    def block_sizes(self, n: int) -> Indices:
        sizes = np.full(self.blocks(n), self.size)
        sizes[-1] = n - self.size * (sizes.size - 1)
        return sizes


@final
@dataclass(frozen=True)
class Cyclic(_Blocks):
    """Contiguous blocks of records in public order, the same in every epoch.

    Parameters
    ----------
    size : int
        Number of records in a block, at least 1. The last block of an epoch may be shorter; sums
        are divided by ``size`` all the same.

    See Also
    --------
    Permuted : The same blocks after one secret permutation.

    Notes
    -----
    Nothing about the batches is secret. Theorems about hidden iterates certify such runs
    (docs/theorems/shifted-interpolation).

    Examples
    --------
    >>> import lastiterate as li
    >>> run = li.Run(n=1000, steps=20, step_size=0.1, batching=li.Cyclic(100))
    >>> run.divisor, run.blocks
    (100.0, 10)
    """

    word, drawn, secret, streams = "cyclic", "never", "", "in order"


@final
@dataclass(frozen=True)
class Permuted(_Blocks):
    """Blocks after one secret uniform permutation of the records, the same in every epoch.

    Parameters
    ----------
    size : int
        Number of records in a block, at least 1. The last block of an epoch may be shorter; sums
        are divided by ``size`` all the same.

    See Also
    --------
    Reshuffled : A new permutation before every epoch.

    Notes
    -----
    **Guarantee:** theorems that use the permutation hold only if it stays secret
    (docs/theorems/shifted-interpolation-permuted). Other names are "shuffle once" and SO.

    Examples
    --------
    >>> import lastiterate as li
    >>> run = li.Run(n=1000, steps=20, step_size=0.1, batching=li.Permuted(100))
    >>> run.blocks, run.batching.secret
    (10, 'the permutation of the records must stay secret')
    """

    word, drawn, secret = "permuted", "once", "the permutation of the records must stay secret"
    streams = "cut"


@final
@dataclass(frozen=True)
class Reshuffled(_Blocks):
    """Blocks after a new secret permutation of the records before every epoch.

    Parameters
    ----------
    size : int
        Number of records in a block, at least 1. The last block of an epoch may be shorter; sums
        are divided by ``size`` all the same.

    See Also
    --------
    Permuted : One permutation for all epochs.

    Notes
    -----
    **Guarantee:** theorems that use the permutations hold only if all of them stay secret
    (docs/theorems/shifted-interpolation-reshuffled). Another name is "random reshuffling".

    Examples
    --------
    >>> import lastiterate as li
    >>> run = li.Run(n=1000, steps=20, step_size=0.1, batching=li.Reshuffled(100))
    >>> run.blocks
    10
    """

    word, drawn, secret = (
        "reshuffled",
        "each pass",
        "every pass's permutation of the records must stay secret",
    )
    streams = "cut"


HELD = "which records each batch holds must stay secret"


@final
@dataclass(frozen=True)
class FixedSize(_Sized):
    """A new uniform subset of the records at every step, without replacement.

    Parameters
    ----------
    size : int
        Number of records in a batch, from 1 to n, and the divisor of sums.

    See Also
    --------
    Poisson : Batches of random size.

    Notes
    -----
    **Guarantee:** amplification by sampling holds only if the subsets stay secret
    (docs/theorems/fixed-size).

    Examples
    --------
    >>> import lastiterate as li
    >>> li.FixedSize(100).inclusion_probability(1000)
    0.1
    """

    word, drawn, sizes, secret, independent = "fixed", "each step", "equal", HELD, False

    def blocks(self, n: int) -> int:
        return 1

    def shares(self, n: int) -> tuple[float, float]:
        return 1.0, 1.0

    def inclusion_probability(self, n: int) -> float | None:
        return self.size / n

    def draws(self, n: int, rng: np.random.Generator) -> list[Indices]:
        return [np.sort(rng.choice(n, self.size, replace=False))]


@dataclass(frozen=True)
class _OneOfBlocks(_Sized):
    """Batches of which every record is in one of ceil(n / size), uniformly and independently."""

    sizes, secret, independent, streams = "random", HELD, True, "binned"

    def blocks(self, n: int) -> int:
        return -(-n // self.size)

    def shares(self, n: int) -> tuple[float, float]:
        return 0.0, n / self.size

    def place_probabilities(self, n: int) -> Array | None:
        return repeat_value(1 / self.blocks(n), self.blocks(n))

    def expected_batch(self, n: int) -> float:
        return n / self.blocks(n)

    def draws(self, n: int, rng: np.random.Generator) -> list[Indices]:
        held = rng.integers(self.blocks(n), size=n)
        return [np.flatnonzero(held == block) for block in range(self.blocks(n))]


@final
@dataclass(frozen=True)
class BallsInBins(_OneOfBlocks):
    """Secret batches that every record joins independently, the same in every epoch.

    Parameters
    ----------
    size : int
        Divisor of sums, at least 1, and the expected number of records in a batch where it divides
        n. There are ceil(n / size) batches; a record is in exactly one of them.

    See Also
    --------
    RandomAllocation : The same, drawn again in every epoch.

    Notes
    -----
    **Guarantee:** amplification holds only if the batches stay secret
    (docs/theorems/balls-in-bins).

    Examples
    --------
    >>> import lastiterate as li
    >>> run = li.Run(n=1000, steps=20, step_size=0.1, batching=li.BallsInBins(100))
    >>> run.blocks, run.batching.drawn
    (10, 'once')
    """

    word, drawn = "bins", "once"


@final
@dataclass(frozen=True)
class RandomAllocation(_OneOfBlocks):
    """Secret batches that every record joins independently, drawn again in every epoch.

    Parameters
    ----------
    size : int
        Divisor of sums, at least 1, and the expected number of records in a batch where it divides
        n. There are ceil(n / size) batches; in every epoch a record is in exactly one of them.

    See Also
    --------
    BallsInBins : The same batches in every epoch.

    Notes
    -----
    **Guarantee:** amplification holds only if the batches stay secret
    (docs/theorems/random-allocation). Under "add-remove" the number of batches and the divisor
    follow from the nominal n of the run.

    Examples
    --------
    >>> import lastiterate as li
    >>> run = li.Run(n=1000, steps=20, step_size=0.1, batching=li.RandomAllocation(100))
    >>> run.blocks, "add-remove" in run.batching.adjacencies
    (10, True)
    """

    word, drawn = "allocation", "each pass"
    adjacencies = ("zero-out", "replace-one", "add-remove")


@final
@dataclass(frozen=True)
class Poisson(Batches):
    """Batches that every record joins independently at every step.

    Parameters
    ----------
    rate : float
        Probability that a batch holds a record, within [1e-9, 1]. Sums are divided by the expected
        size ``rate * n``, never by the size drawn.

    Raises
    ------
    InputError
        If ``rate`` is out of range.

    See Also
    --------
    FixedSize : Batches of one size.

    Notes
    -----
    **Guarantee:** amplification by sampling holds only if the batches stay secret
    (docs/theorems/poisson). Only these batches and `RandomAllocation` go with "add-remove".

    Examples
    --------
    >>> import lastiterate as li
    >>> run = li.Run(n=1000, steps=20, step_size=0.1, batching=li.Poisson(0.05))
    >>> run.divisor, run.shares
    (50.0, (0.0, 20.0))
    """

    rate: float
    word, drawn, sizes, secret, independent = "poisson", "each step", "random", HELD, True
    adjacencies = ("zero-out", "replace-one", "add-remove")

    def __post_init__(self) -> None:
        normalise_fields(self)
        if not 1e-9 <= self.rate <= 1:
            raise InputError("rate of poisson batches", "must lie in [1e-9, 1]", self.rate)

    @classmethod
    def of_size(cls, n: int, size: int) -> Self:
        return cls(size / n)

    def blocks(self, n: int) -> int:
        return 1

    def divisor(self, n: int) -> float:
        return self.rate * n

    def shares(self, n: int) -> tuple[float, float]:
        return 0.0, n / self.divisor(n)

    def inclusion_probability(self, n: int) -> float | None:
        return self.rate

    def draws(self, n: int, rng: np.random.Generator) -> list[Indices]:
        return [np.flatnonzero(rng.random(n) < self.rate)]


Batching = (
    FullBatch
    | Cyclic
    | Permuted
    | Reshuffled
    | RandomAllocation
    | FixedSize
    | BallsInBins
    | Poisson
)
