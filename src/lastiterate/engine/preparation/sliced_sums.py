"""Sums over slices of rows, which several processes may share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from lastiterate.engine.preparation.in_threads import in_threads

Statistic = Callable[[np.ndarray], np.ndarray]
"""From a slice of rows to what is summed over slices; one shape for all."""


@dataclass(frozen=True)
class Shared:
    """The slices that one of several processes reads; ``gathered``: from its sum to those of all, in their order."""

    slices: Iterable[np.ndarray]
    gathered: Callable[[np.ndarray], Iterable[np.ndarray]]


def each_sum(slices: Iterable[np.ndarray] | Shared, statistic: Statistic) -> Iterator[np.ndarray]:
    """``statistic`` of every slice; one sum of every process where they share the rows.

    **Guarantee:** added up these are the sum over all rows, each counted once, and the same bits in every process.
    """
    if isinstance(slices, Shared):
        yield from slices.gathered(np.asarray(sum(in_threads(statistic, slices.slices))))
    else:
        yield from in_threads(statistic, slices)
