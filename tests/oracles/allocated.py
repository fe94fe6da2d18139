"""Exact curves of one or two passes over two or three fresh secret blocks, by quadrature."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtr


def ratio(z, blocks, reached, nodes):
    """The likelihood ratio of one pass but for its last block, and its weights under Q: values of 1 - reached / blocks
    plus the first blocks' part of the mean."""
    x = np.linspace(-10, 10, nodes)  # the trapezoid rule is exact to rounding for a smooth integrand
    weights = np.exp(-x * x / 2) * (x[1] - x[0]) / math.sqrt(2 * math.pi)
    one = np.exp(x / z - 1 / (2 * z * z)) / blocks
    values, total = np.array([1 - reached / blocks]), np.ones(1)
    for _ in range(reached - 1):
        values, total = np.add.outer(values, one).ravel(), np.multiply.outer(total, weights).ravel()
    return values, total


def whole(z, blocks, reached, nodes):
    """All values of a pass's likelihood ratio on a grid, and their weights under Q."""
    values, total = ratio(z, blocks, reached, nodes)
    last, weights = ratio(z, blocks, 2, nodes)
    last = last - (1 - 2 / blocks)
    return np.add.outer(values, last).ravel(), np.multiply.outer(total, weights).ravel()


def put(level, z, share, values):
    """E[(level - values - share Y)_+], Y = exp(x / z - 1 / (2 z^2)) with x normal."""
    left = (level - values) / share
    safe = np.where(left > 0, left, 1.0)
    at = np.log(safe) * z + 1 / (2 * z)
    return share * np.where(left > 0, left * ndtr(at) - ndtr(at - 1 / z), 0.0)


def deltas(epsilon, passes, nodes=201):
    """Both orders' deltas of ``passes`` (noise multiplier, blocks, blocks reached), of which there are one or two."""
    z, blocks, reached = passes[0]
    values, weights = ratio(z, blocks, reached, nodes)
    before, shares = whole(*passes[1], 81) if len(passes) == 2 else (np.ones(1), np.ones(1))
    found = []
    for level in (epsilon, -epsilon):
        each = [y * (weights * put(math.exp(level) / y, z, 1 / blocks, values)).sum() for y in before]
        found.append(float((shares * each).sum()))
    return found[0] + 1 - math.exp(epsilon), math.exp(epsilon) * found[1]
