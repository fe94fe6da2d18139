"""How batches are drawn: one file for every way, found by the exact type of a batching."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lastiterate.engine.samplers.bins import balls_in_bins
from lastiterate.engine.samplers.fixed_subsets import fixed_size
from lastiterate.engine.samplers.in_order import cyclic, full
from lastiterate.engine.samplers.permuted import permuted
from lastiterate.engine.samplers.poisson import poisson
from lastiterate.engine.samplers.random_allocation import random_allocation
from lastiterate.engine.samplers.record_layout import Layout, in_a_row
from lastiterate.engine.samplers.reshuffled import reshuffled
from lastiterate.engine.samplers.sampler import Sampler
from lastiterate.errors import InputError
from lastiterate.run.batching import (
    BallsInBins,
    Batching,
    Cyclic,
    FixedSize,
    FullBatch,
    Permuted,
    Poisson,
    RandomAllocation,
    Reshuffled,
)
from lastiterate.run.run import Run

TABLE: dict[type, Callable[[Any, int, int], Sampler]] = {
    FullBatch: full, Cyclic: cyclic, Permuted: permuted, Reshuffled: reshuffled, RandomAllocation: random_allocation,
    FixedSize: fixed_size, BallsInBins: balls_in_bins, Poisson: poisson,
}
"""From a batching, the number of records and the most records of a chunk to a sampler."""


def layout_of(run: Run, records: int, most: int) -> Layout:
    """How so many records of a run lie before any draw: as the run describes it, or where n is nominal in a row.

    **Guarantee:** batches, divisor and chunks follow from the public n alone.
    """
    layout = sampler_of(run.batching, run.n, most).layout
    assert run.admits(records) and (layout.flat or not run.nominal)
    return in_a_row(records) if run.nominal else layout


def sampler_of(batching: Batching, n: int, most: int) -> Sampler:
    """The sampler that draws as ``batching`` says; what is not in the table is refused."""
    if type(batching) not in TABLE:
        raise InputError("batching", "has no sampler that draws it", type(batching).__name__,
                         "use one of " + ", ".join(kind.__name__ for kind in TABLE))
    return TABLE[type(batching)](batching, n, most)
