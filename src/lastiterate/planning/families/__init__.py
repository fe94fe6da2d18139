"""Families of runs that the planner weighs: one file each, and this table.

A family is a function from what is asked to runs with (nearly) the noise that they need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lastiterate.planning.families import blocks, full_batch, whitened, whitened_minimiser
from lastiterate.planning.families.asked import Asked
from lastiterate.run.run import Run


@dataclass(frozen=True)
class Family:
    """Runs for what is asked; ``larger`` and ``smaller``: whether they are for data that do not, and that do fit in
    memory; ``whitened``: on rows whitened in part, which cosine features may be put beside."""

    runs: Callable[[Asked], Iterator[Run]]
    larger: bool = True
    smaller: bool = True
    whitened: bool = False


FAMILIES: dict[str, Family] = {
    "allocation": Family(whitened.allocation, whitened=True),
    "correlated": Family(whitened.correlated, whitened=True),
    "whitened": Family(whitened.whitened, larger=False, whitened=True),
    "accelerated": Family(full_batch.accelerated),
    "plain": Family(full_batch.plain),
    "permuted": Family(blocks.permuted),
    "objective": Family(whitened_minimiser.perturbed, larger=False, whitened=True),
    "cyclic": Family(blocks.cyclic, smaller=False),
}
