"""The batches that a PyTorch loader really draws: as a batching, and counted while they are read."""

# pyright: reportMissingImports=false

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from lastiterate.errors import InputError
from lastiterate.run.batching import Batching, Cyclic, Poisson, Reshuffled

# What a DataLoader really draws, as a batching: read off its samplers, which are known by their
# exact types.


@dataclass(frozen=True)
class LoaderBatching:
    """``batching`` of n records, in ``batches`` per pass; with ``drop_last`` some records are left
    out of a pass."""

    batching: Batching
    n: int
    batches: int

    @property
    def shuffled(self) -> bool:
        return not isinstance(self.batching, Poisson)

    @property
    def rates(self) -> set[float]:
        """The rates that Opacus counts for one step with one batch: 1 / len(data_loader), whose
        length it rounds down."""
        rate = self.batching.rate if isinstance(self.batching, Poisson) else 0.0
        return {1 / self.batches} if not rate else {rate, max(rate, 1 / self.batches)}


def check_rates(history: Any, known: set[float], remedy: str) -> None:
    """Refuse steps that were counted with a rate that no known loader has."""
    rates = {entry[1] for entry in history}
    if any(all(abs(rate - one) > 1e-9 for one in known) for rate in rates):
        raise InputError(
            "data_loader",
            f"must draw with the rates that were counted, {_write_rates(rates)}",
            _write_rates(known),
            remedy,
        )


def _write_rates(rates: set[float]) -> str:
    return " and ".join(f"{rate:.6g}" for rate in sorted(rates))


class Reader:
    """One pass over a watched loader: gives its batches, and counts those that no step has used."""

    def __init__(self, batches: Iterator[list[int]], watched: LoaderWatch) -> None:
        self._batches, self._watched = batches, watched
        self.count: BatchCount | None = None

    def __iter__(self) -> Reader:
        return self

    def __next__(self) -> list[int]:
        if self.count is None:
            self.count = self._watched.begin(self)
        elif self._watched.alone and self._watched.latest is not self.count:
            raise InputError(
                "data_loader",
                "must be read one pass at a time",
                "two passes side by side",
                "finish one before the next begins, or give each step batches of its own loader",
            )
        try:
            batch = next(self._batches)
        except StopIteration:
            self.count.exhausted = True
            raise
        self.count.unused += 1
        self.count.rate = max(self.count.rate, self._watched.rate())
        return batch


@dataclass(eq=False)
class BatchCount:
    """The batches of one pass that no step has used, and the steps that it took; worker processes
    read up to ``ahead`` batches before the step asks for them."""

    reader: weakref.ref[Reader]
    ahead: int
    rate: float = 0.0  # the largest of its Poisson batches
    unused: int = 0
    steps: int = 0
    exhausted: bool = False

    @property
    def open(self) -> bool:
        """Whether somebody still reads this pass."""
        return self.reader() is not None


@dataclass(eq=False)
class LoaderWatch:
    """Who counts the batches of a loader; ``alone``: a pass gives no batch after another began;
    ``rate``: that of a Poisson batch, which somebody may change while they are drawn."""

    listeners: list[Callable[[BatchCount], None]]
    ahead: int
    alone: bool
    rate: Callable[[], float]
    latest: BatchCount | None = None

    def begin(self, reader: Reader) -> BatchCount:
        self.latest = BatchCount(weakref.ref(reader), self.ahead)
        for listener in self.listeners:
            listener(self.latest)
        return self.latest


class WatchedPoisson(UniformWithReplacementSampler):
    """Opacus' Poisson batches, counted."""

    watched: LoaderWatch

    def __iter__(self) -> Any:
        return Reader(super().__iter__(), self.watched)


class WatchedBatches(BatchSampler):
    """Batches of a sampler, counted."""

    watched: LoaderWatch

    def __iter__(self) -> Any:
        return Reader(super().__iter__(), self.watched)


def count_batches(loader: Any, alone: bool, listener: Callable[[BatchCount], None]) -> None:
    """Let ``listener`` know of every pass over a loader that ``describe_loader`` knows.

    The sampler itself is changed, because loaders that split its batches hold it too.
    """
    sampler = loader.batch_sampler
    if not isinstance(sampler, WatchedPoisson | WatchedBatches):
        poisson = isinstance(sampler, UniformWithReplacementSampler)
        sampler.__class__ = WatchedPoisson if poisson else WatchedBatches
        ahead = loader.num_workers * (loader.prefetch_factor or 0)
        sampler.watched = LoaderWatch(
            [], ahead, alone, lambda: getattr(sampler, "sample_rate", 0.0)
        )
    if listener not in sampler.watched.listeners:
        sampler.watched.listeners.append(listener)


def describe_loader(loader: object) -> LoaderBatching:
    """How ``loader`` draws batches; a sampler that is not known is refused."""
    if not isinstance(loader, torch.utils.data.DataLoader):
        raise InputError("data_loader", "must be a torch DataLoader", type(loader).__name__)
    n = _length(loader)
    sampler: Any = loader.batch_sampler
    if type(sampler) in (UniformWithReplacementSampler, WatchedPoisson):
        return LoaderBatching(Poisson(float(sampler.sample_rate)), n, len(loader))
    if type(sampler) not in (BatchSampler, WatchedBatches) or sampler.batch_size is None:
        raise InputError(
            "data_loader",
            "must draw Poisson batches, shuffle, or read in order",
            "no batches" if sampler is None else type(sampler).__name__,
            "what another sampler draws is not known here: write DataLoader(data, batch_size=...), "
            "with shuffle=True or without",
        )
    size, order = int(sampler.batch_size), sampler.sampler
    held = len(loader) * size if sampler.drop_last else n
    if type(order) is SequentialSampler:
        return LoaderBatching(Cyclic(size), held, len(loader))
    if type(order) is RandomSampler and not order.replacement and order.num_samples == n:
        return LoaderBatching(Reshuffled(size), held, len(loader))
    raise InputError(
        "data_loader",
        "must use every record once in a pass where it is no Poisson one",
        type(order).__name__,
        _sampler_remedy(order, n),
    )


def _sampler_remedy(order: Any, n: int) -> str:
    """Why the order in which a loader reads has no theorem here, and what has one."""
    once = "write DataLoader(data, batch_size=..., shuffle=True)"
    if isinstance(order, SubsetRandomSampler):
        return (
            "it reads some records alone: with data = torch.utils.data.Subset(data, indices) "
            f"{once}, and n is their number"
        )
    if isinstance(order, DistributedSampler):
        return (
            "it reads one share of the records, another one in every process, and fills shares up "
            f"with records that are read twice: train in one process, and {once}"
        )
    if isinstance(order, RandomSampler) and not order.replacement:
        return (
            f"with num_samples = {order.num_samples} of {n} records a pass leaves some out, or "
            f"reads some again: {once}, without num_samples"
        )
    if isinstance(order, RandomSampler | WeightedRandomSampler):
        return f"a record may be drawn several times in one pass: {once}"
    return f"what another sampler draws is not known here: {once}"


def _length(loader: Any) -> int:
    if isinstance(loader.dataset, IterableDataset) or not hasattr(loader.dataset, "__len__"):
        raise InputError(
            "data_loader",
            "must have a data set with numbered items, of which a sampler draws",
            type(loader.dataset).__name__,
            "a stream decides itself which records are in which batch: give "
            "torch.utils.data.TensorDataset, or a Dataset with __len__ and __getitem__",
        )
    if len(loader) < 1:
        raise InputError(
            "data_loader",
            "must have a batch at least",
            f"{len(loader.dataset)} records",
            "leave drop_last out, or give more records",
        )
    return len(loader.dataset)
