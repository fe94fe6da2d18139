"""Noisy SGD, one record a step, on a ridge problem (Bassily, Smith, Thakurta 2014): their n^2 steps, capped."""

from __future__ import annotations

from dataclasses import replace

from lastiterate.planning.families import whitened
from lastiterate.planning.families.asked import Asked
from lastiterate.planning.families.output import balanced_ridge
from lastiterate.run.batching import Batching, FixedSize
from lastiterate.run.losses import LinearLoss
from lastiterate.run.noise import NoiseMultiplier
from lastiterate.run.penalties import Prox
from lastiterate.run.run import Run
from lastiterate.run.step_sizes import InverseDecay

MOST = 40_000  #: steps


def one_record_run(asked: Asked, loss: LinearLoss, batching: Batching | None, prox: Prox | None) -> Run:
    """One unit of noise; steps of 1 / (2 smooth + ridge k)."""
    task, loss = asked.task, replace(loss, ridge=balanced_ridge(asked, loss))
    return Run(n=task.n, steps=min(task.n**2, MOST), noise=NoiseMultiplier(1.0), loss=loss, prox=prox,
               step_size=InverseDecay(loss.facts().fact("smooth"), 2 * loss.ridge),
               batching=FixedSize(1) if batching is None else batching, prelude=whitened.preparation(asked),
               adjacency=asked.adjacency, rows_per_unit=task.rows_per_unit, rows_per_record=task.rows_per_record)
