"""Accuracy that may be shown: counts over private records, with noise that the certificate pays for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from lastiterate.curves.curve import Curve
from lastiterate.curves.gdp import Gdp
from lastiterate.data import split
from lastiterate.engine.gaussian_noise import Key
from lastiterate.errors import InputError
from lastiterate.planning.task import budget
from lastiterate.run.counts import NoisyCount
from lastiterate.run.facts import FLOAT_SLACK
from lastiterate.run.run import Run

HELD_OUT = 0.1
"""The part of the records that is split off to count accuracy on."""
CONFIDENCE, NOISE_PART = 0.95, 0.01
"""Of intervals; and the probability with which the noise may lie outside of what they allow for."""


@dataclass(frozen=True)
class Accuracy:
    """The share of right answers that a noisy count says, and an interval for that of new records like the counted."""

    value: float
    low: float
    high: float
    records: int
    apart: bool

    def __str__(self) -> str:
        return (f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f} with {CONFIDENCE:.0%} confidence), counted with "
                f"noise on {self.records} private records")


def reserved(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Public places of the records that are trained on, and of those that accuracy is counted on."""
    if n < 20:
        raise InputError("report_accuracy", "needs at least 20 records to split", n, "leave it out")
    return split(n, seed=1, test_fraction=HELD_OUT)


def count_for(share: float, epsilon: float, delta: float, records: int, *, rows_per_unit: int = 1) -> NoisyCount:
    """The count that a ``share`` of the budget's mu^2 pays for, apart from the training where a unit is one row."""
    if isinstance(share, bool) or not isinstance(share, float | int) or not 0 < share < 1:
        raise InputError("report_accuracy", "must lie between 0 and 1", share, "0.05 is a common choice")
    mu = budget(epsilon, delta) * math.sqrt(share)
    return NoisyCount(rows_per_unit * (1 + FLOAT_SLACK) / mu * (1 + 1e-9), records,
                      "apart" if rows_per_unit == 1 else "anywhere")


def noisy_count(right: np.ndarray, count: NoisyCount, key: Key) -> float:
    """How many of the counted records are right, with noise.

    **Guarantee:** a record moves the sum by 1 at most; the noise has the described standard deviation.
    """
    import jax

    from lastiterate.engine.gaussian_noise import gaussian

    if right.shape != (count.records,):
        raise InputError("y", f"must have {count.records} entries, one for every counted record", right.shape)
    with jax.enable_x64(True):
        noise = float(np.asarray(gaussian(key, 0, (1,)))[0])
    return float(right.astype(bool).sum()) + count.noise_multiplier * noise


def accuracy(count: NoisyCount, counted: float) -> Accuracy:
    """What a released count says: post-processing.

    The interval allows for the noise (both sides together are exceeded with probability ``NOISE_PART``), and for which
    records were drawn by the exact binomial interval of Clopper and Pearson at the rest.
    """
    from scipy.stats import beta, norm  # pyright: ignore

    m, side = count.records, (1 - CONFIDENCE - NOISE_PART) / 2
    reach = count.noise_multiplier * float(norm.ppf(1 - NOISE_PART / 2))
    fewest = min(m, max(0, math.floor(counted - reach)))
    most = min(m, max(0, math.ceil(counted + reach)))
    low = 0.0 if fewest == 0 else float(beta.ppf(side, fewest, m - fewest + 1))
    high = 1.0 if most == m else float(beta.ppf(1 - side, most + 1, m - most))
    return Accuracy(min(1.0, max(0.0, counted / m)), low, high, m, count.apart)


@dataclass(frozen=True)
class CountCharge:
    """What a ledger is charged for one more count: the same under every adjacency."""

    run: Run
    count: NoisyCount
    adjacency: str

    def curve(self) -> Curve:
        return Gdp(self.run.rows_per_unit * (1 + FLOAT_SLACK) / self.count.noise_multiplier)

    def under(self, adjacency: str) -> CountCharge:
        return self

    def described(self) -> dict[str, Any]:
        """The run whose last count is charged; another subject than the run itself."""
        return {"run": self.run.to_dict(), "charged": "its last count"}
