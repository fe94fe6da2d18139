"""How far one record moves the draws of correlated noise, all steps of a run together.

The record's contributions u_e, |u_e| <= 1, at the steps j, j + l, j + 2l, ... of a run over l blocks move C^{-1} Z by
what moves Z by sum_e u_e C_{j+el}, C_t the columns of C. Whatever the past makes of the u_e, its square is at most

    s^2 = max_j sum_{e, f} |<C_{j+el}, C_{j+fl}>|.

Proof: docs/theorems/correlated-noise.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from lastiterate.run.arrays import Array
from lastiterate.run.correlated_noise import Correlated


def moved_draws(noise: Correlated, blocks: int, steps: int) -> float:
    """s, in draws for each contribution of length 1; to rounding, which ``shift_allocation.allowance`` covers."""
    return _moved(noise.with_unit(), blocks, steps)


@lru_cache(maxsize=1024)
def _moved(noise: Correlated, blocks: int, steps: int) -> float:
    column = noise.column(steps)
    return math.sqrt(of_equal_signs(column, blocks, steps) if column.min() >= 0 else
                     of_any_signs(column, blocks, steps))


def of_equal_signs(column: Array, blocks: int, steps: int) -> float:
    """s^2 where no entry is negative: the square of the sum of the columns, and of the first place.

    The sum for another place is the same, shifted, and cut at the last step.
    """
    passes = -(-steps // blocks)
    padded = np.zeros(passes * blocks)
    padded[: column.size] = column
    summed = np.cumsum(padded.reshape(passes, blocks), axis=0).ravel()[:steps]
    return float((summed**2).sum())


def of_any_signs(column: Array, blocks: int, steps: int) -> float:
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
