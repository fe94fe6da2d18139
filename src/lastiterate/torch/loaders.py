# pyright: reportMissingImports=false
"""What a DataLoader really draws, as a batching: read off its samplers, which are known by their exact types."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from lastiterate.errors import InputError
from lastiterate.run.batching import Batching, Cyclic, Poisson, Reshuffled


@dataclass(frozen=True)
class Drawn:
    """``batching`` of n records, in ``batches`` per pass; with ``drop_last`` some records are left out of a pass."""

    batching: Batching
    n: int
    batches: int

    @property
    def shuffled(self) -> bool:
        return not isinstance(self.batching, Poisson)


@final
@dataclass(eq=False)
class Counted:
    """The order in which a loader reads, one pass at a time; ``began`` is called before the first record of every pass,
    with whether another one was still open.

    **Guarantee:** a pass gives no record after another one began. Of passes that are read side by side, as by
    zip(loader, loader), a record may be in batches of the same step.
    """

    order: Any
    began: Callable[[bool], None]
    _latest: int = field(init=False, default=0)
    _open: int = field(init=False, default=0)

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[Any]:
        self._latest = mine = self._latest + 1
        self.began(self._open > 0)
        self._open += 1
        try:
            for record in self.order:
                if mine != self._latest:
                    raise InputError("data_loader", "must be read one pass at a time", "two passes side by side",
                                     "finish one before the next begins, or give each step batches of its own loader")
                yield record
        finally:
            self._open -= 1


def count_passes(loader: Any, began: Callable[[bool], None]) -> None:
    """Let ``began`` know of every pass over a loader that ``drawn_by`` knows and that draws no Poisson batches."""
    loader.batch_sampler.sampler = Counted(loader.batch_sampler.sampler, began)


def drawn_by(loader: object) -> Drawn:
    """How ``loader`` draws batches; a sampler that is not known is refused."""
    if not isinstance(loader, torch.utils.data.DataLoader):
        raise InputError("data_loader", "must be a torch DataLoader", type(loader).__name__)
    n = _length(loader)
    sampler: Any = loader.batch_sampler
    if type(sampler).__name__ == "UniformWithReplacementSampler" and type(sampler).__module__.startswith("opacus."):
        return Drawn(Poisson(float(sampler.sample_rate)), n, len(loader))
    if type(sampler) is not BatchSampler or sampler.batch_size is None:
        raise InputError("data_loader", "must draw Poisson batches, shuffle, or read in order", type(sampler).__name__,
                         "what another sampler draws is not known here")
    size, order = int(sampler.batch_size), sampler.sampler
    while isinstance(order, Counted):
        order = order.order
    held = len(loader) * size if sampler.drop_last else n
    if type(order) is SequentialSampler:
        return Drawn(Cyclic(size), held, len(loader))
    if type(order) is RandomSampler and not order.replacement and order.num_samples == n:
        return Drawn(Reshuffled(size), held, len(loader))
    raise InputError("data_loader", "must use every record once in a pass where it is no Poisson one",
                     type(order).__name__, "draws with replacement have no theorem here")


def _length(loader: Any) -> int:
    if not hasattr(loader.dataset, "__len__") or len(loader) < 1:
        raise InputError("data_loader", "must have a data set with a length, and a batch at least", None)
    return len(loader.dataset)
