"""Averages of iterates, as running means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import jax
import jax.numpy as jnp

from lastiterate.engine.gaussian_noise import Number
from lastiterate.run.averages import ExponentialAverage, TailAverage
from lastiterate.run.run import Run


@final
@dataclass(frozen=True)
class RunningMean:
    """The mean of all iterates behind the first ``first`` ones; each counts ``discount`` times as much as the one
    behind it (``None``: all alike)."""

    first: float
    discount: float | None

    @classmethod
    def of(cls, run: Run) -> RunningMean:
        """Of a run that releases an average."""
        match run.method:
            case TailAverage():
                return cls(float(run.method.first(run.steps)), None)
            case ExponentialAverage(decay):
                return cls(0.0, decay)
            case _:
                raise AssertionError

    def after(self, mean: jax.Array, theta: jax.Array, k: Number) -> jax.Array:
        """The mean after step k, which led to ``theta``; before it counts, ``theta`` itself."""
        count = jnp.maximum(k - self.first, 0.0) + 1.0
        weights = count if self.discount is None else (1 - self.discount**count) / (1 - self.discount)
        return mean + (theta - mean) / weights
