"""Noise multiplier of Poisson-sampled DP-SGD, add-remove, by the PLD accountant of dp-accounting."""

from __future__ import annotations

import sys
from functools import lru_cache


@lru_cache(maxsize=1024)
def poisson_noise(
    rate: float, steps: int, epsilon: float, delta: float, interval: float = 5e-4
) -> float:
    """The least multiplier (within 1e-3) for ``steps`` batches of sampling ``rate``; ``interval``
    of the PLD."""
    try:
        import dp_accounting
        from dp_accounting import pld
    except ImportError:
        sys.exit("Poisson sampling needs dp-accounting for its noise: pip install dp-accounting")

    def event(z: float) -> dp_accounting.DpEvent:
        step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(z))
        return dp_accounting.SelfComposedDpEvent(step, steps)

    return dp_accounting.calibrate_dp_mechanism(
        lambda: pld.PLDAccountant(value_discretization_interval=interval),
        event,
        epsilon,
        delta,
        dp_accounting.ExplicitBracketInterval(0.3, 100.0),
        tol=1e-3,
    )
