"""What the bounds for Poisson batches share: the noise multiplier of every step, and what is needed.

Every record is in every batch independently with probability q, so that a step is a Poisson-subsampled Gaussian
mechanism with noise multiplier noise_std * divisor / sensitivity. The divisor is public, hence zero-out (the record's
gradient becomes 0) and add-remove compare the same two laws; both orders of the pair are covered. Steps are charged
one by one, whatever is released and however they are combined. Proof: docs/theorems/poisson.
"""

from __future__ import annotations

import numpy as np

from lastiterate.curves.subsampled import merged
from lastiterate.run.facts import known
from lastiterate.run.run import Run

MOST_LEVELS = 64
"""Different noise multipliers that are distinguished."""


def levels(run: Run) -> tuple[tuple[float, int], ...] | None:
    """(noise multiplier, steps), least noise first; ``None`` where nothing leaks because the sensitivity is 0.

    Beyond ``MOST_LEVELS`` different multipliers they are rounded down.
    """
    sensitivity = known(run.facts(), "sensitivity")
    assert sensitivity is not None
    if sensitivity.value == 0:
        return None
    unit = run.divisor / sensitivity.value
    if run.same_noise:
        return ((run.first_noise * unit, run.steps),)
    found, counts = np.unique(run.noise_stds * unit, return_counts=True)
    return merged(tuple(zip(found.tolist(), counts.tolist(), strict=True)), MOST_LEVELS)
