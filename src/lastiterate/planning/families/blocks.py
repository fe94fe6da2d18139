"""Blocks in one order for the whole run: a secret one, or a public one for data that are read from a disk."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from lastiterate.planning.families.asked import Asked
from lastiterate.run.batching import Cyclic, Permuted
from lastiterate.run.run import Run
from lastiterate.run.step_sizes import Constant

BLOCKS, PASSES = (4, 16, 64), (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
STREAM_BLOCKS = (64, 512, 4096)  #: small enough to hold one in memory
FEWEST_RECORDS = 20  #: in a block


def permuted(asked: Asked) -> Iterator[Run]:
    """One secret order, certified for the last iterate."""
    return _in_order(asked, Permuted, BLOCKS)


def cyclic(asked: Asked) -> Iterator[Run]:
    """A public order: what reads data larger than memory with no scratch file."""
    return _in_order(asked, Cyclic, STREAM_BLOCKS)


def _in_order(asked: Asked, kind: type[Cyclic] | type[Permuted], counts: tuple[int, ...]) -> Iterator[Run]:
    """Constant steps below 2 / smooth; ever more passes while the prediction improves."""
    step = min(asked.first, 1.9 / asked.loss.facts().fact("smooth"))
    for blocks in counts:
        size = -(-asked.task.n // blocks)
        run = replace(asked.empty, step_size=Constant(step), batching=kind(size))
        best = math.inf
        for passes in PASSES if size >= FEWEST_RECORDS else ():
            calibrated = asked.calibrated(replace(run, steps=passes * run.blocks))
            if calibrated is None or (risk := asked.risk(calibrated)) > best:
                break
            best = risk
            yield calibrated
