"""Which runs read their records in order, so that these may come in pieces."""

from __future__ import annotations

from collections.abc import Sized

from lastiterate.errors import InputError
from lastiterate.run.batching import BallsInBins, Cyclic, FullBatch, Permuted, RandomAllocation, Reshuffled
from lastiterate.run.run import Run

ORDERS: dict[type, bool] = {Permuted: False, Reshuffled: False, RandomAllocation: True, BallsInBins: True}
"""Batchings that are a sort by random words: whether into batches, or into one order."""
IN_ORDER = (FullBatch, Cyclic)


def check_streams(run: Run, source: Sized | None = None) -> None:
    """Refuse batches that need random access, noise that is not added to gradients step by step, the release of all
    iterates, and another number of records than the run's."""
    batching = run.batching
    if source is not None and len(source) != run.n:
        raise InputError("data", f"must have the run's n = {run.n} records", len(source))
    if run.rows_per_record > 1:
        raise InputError("rows_per_record", "must be 1 where records are read in pieces", run.rows_per_record,
                         "hold the data in memory")
    if run.release != "last":
        raise InputError("release", "must be 'last' where records are read in pieces", run.release,
                         "hold the data in memory to release all iterates")
    if not run.method.noisy_steps:
        raise InputError("method", "must add noise to every step's gradient where records are read in pieces",
                         type(run.method).__name__, "use Descent")
    if type(batching) not in (*IN_ORDER, *ORDERS):
        kinds = (kind.__name__ for kind in (*IN_ORDER, *ORDERS))
        raise InputError("batching", "needs random access to the records, which are read in order here",
                         type(batching).__name__, "use one of " + ", ".join(kinds) + ", or hold the data in memory")
