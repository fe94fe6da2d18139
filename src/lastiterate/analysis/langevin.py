"""Quantities that the Langevin and SGLD bounds share, and the shift of correlated noise by one
record."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from lastiterate.curves.renyi import Rdp
from lastiterate.run.facts import require_fact
from lastiterate.run.noise import Correlated
from lastiterate.run.run import Run
from lastiterate.run.validation import Array

# What the bounds of Chourasia, Ye and Shokri (2021) share: S_g, sigma^2 and Renyi curves linear in
# the order.  Their noisy gradient descent is theta - eta/n sum of gradients + sqrt(2 eta) sigma
# N(0, I), projected; every bound is alpha times a number. They hold for any neighbours, S_g being
# the sensitivity under the run's own adjacency.

ROUNDING = 1 + 1e-12
"""Each closed form is a dozen correctly rounded operations on well-conditioned terms (expm1 for the
decay)."""


def signal_to_noise(run: Run) -> float:
    """S_g^2 / (sigma^2 n^2), with noise."""
    sensitivity = require_fact(run.facts(), "sensitivity")
    return (sensitivity.value / run.n) ** 2 / run.temperature


def linear(slope: float) -> Rdp:
    """The curve epsilon(alpha) = slope * alpha, rounded up."""
    return Rdp.linear(slope * ROUNDING)


def decay(rate: float) -> float:
    """1 - exp(-rate)."""
    return -math.expm1(-rate)


# How far one record moves the draws of correlated noise, all steps of a run together.  The record's
# contributions u_e, |u_e| <= 1, at the steps j, j + l, j + 2l, ... of a run over l blocks move
# C^{-1} Z by what moves Z by sum_e u_e C_{j+el}, C_t the columns of C. Whatever the past makes of
# the u_e, its square is at most      s^2 = max_j sum_{e, f} |<C_{j+el}, C_{j+fl}>|.  Proof:
# docs/theorems/correlated-noise.


def shift_in_draws(noise: Correlated, blocks: int, steps: int) -> float:
    """s, in draws for each contribution of length 1; to rounding, which
    ``shift_allocation.allowance`` covers."""
    return _shift_in_draws(noise.with_unit(), blocks, steps)


@lru_cache(maxsize=1024)
def _shift_in_draws(noise: Correlated, blocks: int, steps: int) -> float:
    column = noise.column(steps)
    return math.sqrt(
        shift_of_equal_signs(column, blocks, steps)
        if column.min() >= 0
        else shift_of_any_signs(column, blocks, steps)
    )


def shift_of_equal_signs(column: Array, blocks: int, steps: int) -> float:
    """Return s^2 where no entry is negative: the square of the sum of the columns at the first
    position.

    The sum for another position is the same, shifted, and cut at the last step.
    """
    passes = -(-steps // blocks)
    padded = np.zeros(passes * blocks)
    padded[: column.size] = column
    summed = np.cumsum(padded.reshape(passes, blocks), axis=0).ravel()[:steps]
    return float((summed**2).sum())


def shift_of_any_signs(column: Array, blocks: int, steps: int) -> float:
    """s^2: for every later column its inner products with itself and, twice, with those before it.

    <C_a, C_b> for b = a + d is the sum of c_t c_{t + d} over the steps that are left from b on.
    """
    squares = np.zeros(-(-steps // blocks) * blocks)
    left = np.arange(steps, 0, -1)  # entries of every column
    for apart in range(0, column.size, blocks):
        products = np.cumsum(column[: column.size - apart] * column[apart:])
        inner = products[np.minimum(left[apart:], products.size) - 1]
        squares[apart:steps] += (2 if apart else 1) * np.abs(inner)
    return float(squares.reshape(-1, blocks).sum(axis=0).max())


# What the bounds of Ryffel, Bach and Pointcheval (2022) share: DP-SGLD with any step sizes.  Their
# noisy stochastic gradient descent is theta - eta_k/m (sum of gradients over a batch of m records)
# + sqrt(2 eta_k) sigma N(0, I), projected. With full batches the proofs hold for any neighbours (S
# the sensitivity under the run's own adjacency; 2 L in the paper). For m < n they are false as
# published: docs/theorems/sgld.


def lsi(run: Run, constant: float) -> Rdp:
    """alpha S^2 / (2 c sigma^4 n^2) (1 - exp(-sigma^2 c sum eta_k)), S = 2 L in the paper."""
    rate = run.temperature * constant
    return linear(signal_to_noise(run) / (2 * rate) * decay(rate * run.total_time))


def strongly_convex_slope(run: Run) -> Rdp:
    """alpha S^2 / (lambda sigma^2 n^2) (1 - exp(-lambda sum eta_k / 2)), S = 2 L in the paper."""
    strong = require_fact(run.facts(), "strong")
    return linear(signal_to_noise(run) / strong.value * decay(strong.value * run.total_time / 2))
