"""What the bounds of Chourasia, Ye and Shokri (2021) share: S_g, sigma^2 and Renyi curves linear in the order.

Their noisy gradient descent is theta - eta/n sum of gradients + sqrt(2 eta) sigma N(0, I), projected; every bound is
alpha times a number. They hold for any neighbours, S_g being the sensitivity under the run's own adjacency.
"""

from __future__ import annotations

import math

from lastiterate.assumptions import (
    constant_step,
    full_batch,
    known,
    known_noise,
    known_sensitivity,
    last_iterate_only,
    no_momentum,
    no_prox,
)
from lastiterate.diffusion import langevin_noise, temperature
from lastiterate.renyi import Rdp
from lastiterate.run import Run

PAPER = "Chourasia, Ye, Shokri: Differential privacy dynamics of Langevin diffusion and noisy gradient descent, " \
        "NeurIPS 2021 (arXiv:2102.05855)"
ALGORITHM = (known_sensitivity, known_noise, full_batch, constant_step, langevin_noise, no_prox)
"""What their Algorithm 1 fixes."""
LAST_ITERATE = (*ALGORITHM, last_iterate_only, no_momentum)
"""The same with a hidden state: only theta_K is released, by plain steps."""
ROUNDING = 1 + 1e-12
"""Each closed form is a dozen correctly rounded operations on well-conditioned terms (expm1 for the decay)."""


def squared_ratio(run: Run) -> float:
    """S_g^2 / (sigma^2 n^2), with noise."""
    sensitivity = known(run.facts(), "sensitivity")
    assert sensitivity is not None
    return (sensitivity.value / run.n) ** 2 / temperature(run)


def linear(slope: float) -> Rdp:
    """The curve epsilon(alpha) = slope * alpha, rounded up."""
    return Rdp.linear(slope * ROUNDING)


def decay(rate: float) -> float:
    """1 - exp(-rate)."""
    return -math.expm1(-rate)
