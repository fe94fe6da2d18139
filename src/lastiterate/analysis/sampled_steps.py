"""What the bounds for sampled batches share: the noise multiplier of every step, and the curves of sampled steps.

Poisson: every record is in every batch independently with probability q, so that a step is a Poisson-subsampled
Gaussian mechanism with noise multiplier noise_std * divisor / sensitivity. The divisor is public, hence zero-out (the
record's gradient becomes 0) and add-remove compare the same two laws; both orders of the pair are covered. Steps are
charged one by one, whatever is released and however they are combined. Proofs: docs/theorems/poisson,
docs/theorems/random-allocation.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from lastiterate.curves.allocation_composition import AllocationPld
from lastiterate.curves.curve import Curve
from lastiterate.curves.gdp import Gdp
from lastiterate.curves.pld import Pld
from lastiterate.curves.subsampled import merged
from lastiterate.run.facts import known
from lastiterate.run.run import Run

MOST_LEVELS = 64
"""Different noise multipliers that are distinguished."""


def levels(run: Run, first: int = 0, share: float = 1.0) -> tuple[tuple[float, int], ...] | None:
    """(noise multiplier, steps) from step ``first`` on, least noise first; ``None`` where nothing leaks because the
    sensitivity is 0. ``share``: of the noise variance.

    Beyond ``MOST_LEVELS`` different multipliers they are rounded down.
    """
    unit = _unit(run, share)
    if unit is None:
        return None
    if run.same_noise:
        return ((run.first_noise * unit, run.steps - first),)
    noises, counts = np.unique(run.noise_stds[first:] * unit, return_counts=True)
    return merged(tuple(zip(noises.tolist(), counts.tolist(), strict=True)), MOST_LEVELS)


def _unit(run: Run, share: float) -> float | None:
    sensitivity = known(run.facts(), "sensitivity")
    assert sensitivity is not None
    return run.divisor / sensitivity.value * math.sqrt(share) if sensitivity.value else None


def poisson_steps(run: Run, first: int = 0, share: float = 1.0, mu: float = 0.0) -> Curve:
    """Steps ``first`` .. T - 1 of Poisson batches with the share ``share`` of the noise variance, and a mechanism
    ``mu``."""
    noises, rate = levels(run, first, share), run.batching.inclusion_probability(run.n)
    assert rate is not None
    if noises is None:
        return Gdp(mu)
    return Pld(rate, tuple(z for z, _ in noises), tuple(count for _, count in noises), mu=mu)


def allocated_passes(run: Run, first: int = 0, share: float = 1.0, mu: float = 0.0) -> Curve:
    """The same for fresh secret blocks; ``first`` is where a pass begins. A pass has the least noise of its steps."""
    unit = _unit(run, share)
    if unit is None:
        return Gdp(mu)
    passes, reached = divmod(run.steps - first, run.blocks)
    if run.same_noise:
        last = run.first_noise * unit
        levels: dict[float, int] = {last: passes} if passes else {}
    else:
        full, rest = np.split(run.noise_stds[first:], [passes * run.blocks])
        levels = dict(sorted(Counter[float]((full.reshape(passes, run.blocks).min(axis=1) * unit).tolist()).items()))
        last = float(rest.min()) * unit if reached else 0.0
    return AllocationPld(run.blocks, tuple(levels), tuple(levels.values()), last if reached else 0.0, reached, mu=mu)
