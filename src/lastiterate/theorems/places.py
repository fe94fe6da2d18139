"""mu of the last iterate for every place that a record can have in the order of the batches."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from lastiterate.assumptions import known, step_map
from lastiterate.run import Run
from lastiterate.theorems.constant_shift import constant_mus
from lastiterate.theorems.shift import Array, best_restart, optimal_mu


@lru_cache(maxsize=256)
def _unit_mus(c: float, s: float, eta: float, steps: int, blocks: int, diameter: float) -> Array:
    """``constant_mus`` at noise std 1: mu is inversely proportional to it, so that a search computes this once."""
    return constant_mus(c, s, eta * eta, steps, blocks, diameter)


@lru_cache(maxsize=64)
def place_mus(run: Run) -> Array:
    """mu for a record in block 0, ..., run.blocks - 1, by the optimal shift allocation; shape (blocks,)."""
    found, sensitivity = step_map(run), known(run.facts(), "sensitivity")
    assert found is not None and sensitivity is not None
    delta, diameter = sensitivity.value / run.divisor, run.domain.diameter()
    if run.constant:
        eta = run.step_size.at(0)
        unit = _unit_mus(found.lipschitz(eta), eta * delta, eta, run.steps, run.blocks, diameter)
        std = run.noise_std(0)
        return unit / std if std > 0 else np.where(unit > 0, np.inf, 0.0)
    eta = np.array([run.step_size.at(step) for step in range(run.steps)])
    c = np.array([found.lipschitz(step) for step in eta])
    v = (eta * np.array([run.noise_std(step) for step in range(run.steps)])) ** 2
    block = np.arange(run.steps) % run.blocks
    mus = [0.0] * run.blocks  # a block that the run never reaches leaks nothing
    for place in range(min(run.blocks, run.steps)):
        s = np.where(block == place, eta * delta, 0.0)
        mu = optimal_mu(c, s, v)
        mus[place] = min(mu, best_restart(c, s, v, diameter)) if np.isfinite(diameter) else mu
    return np.array(mus)


def place_weights(run: Run) -> Array:
    """Probability of each block under one secret uniform permutation, or independent bins; shape (blocks,)."""
    from lastiterate.schedules import Permuted

    if isinstance(run.batching, Permuted):
        size = run.batching.size
        counts = np.full(run.blocks, float(size))
        counts[-1] = run.n - size * (run.blocks - 1)
        return counts / run.n
    return np.full(run.blocks, 1 / run.blocks)
