"""What the bounds of Chourasia, Ye and Shokri (2021) share: S_g, sigma^2 and Renyi curves linear in the order.

Their noisy gradient descent is theta - eta/n sum of gradients + sqrt(2 eta) sigma N(0, I), projected; every bound is
alpha times a number. They hold for any neighbours, S_g being the sensitivity under the run's own adjacency.
"""

from __future__ import annotations

import math

from lastiterate.curves.renyi import Rdp
from lastiterate.run.facts import known
from lastiterate.run.run import Run

ROUNDING = 1 + 1e-12
"""Each closed form is a dozen correctly rounded operations on well-conditioned terms (expm1 for the decay)."""


def squared_ratio(run: Run) -> float:
    """S_g^2 / (sigma^2 n^2), with noise."""
    sensitivity = known(run.facts(), "sensitivity")
    assert sensitivity is not None
    return (sensitivity.value / run.n) ** 2 / run.temperature


def linear(slope: float) -> Rdp:
    """The curve epsilon(alpha) = slope * alpha, rounded up."""
    return Rdp.linear(slope * ROUNDING)


def decay(rate: float) -> float:
    """1 - exp(-rate)."""
    return -math.expm1(-rate)
