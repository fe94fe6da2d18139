"""Drawn likelihood ratios, and sums of their losses by sums of all cases."""

from functools import reduce

import numpy as np

from lastiterate.curves.ratio_law import Ratio


def ratio(seed, size, low, h=0.25, *, zero=0.0, infinite=0.0, tail=0.0):
    """A ratio with drawn masses that fall like e^(-tail k^2)."""
    drawn = np.random.default_rng(seed).uniform(0.2, 1.0, size)
    drawn *= np.exp(-tail * np.arange(size) ** 2)
    nodes = np.exp(h * (low + np.arange(size)))
    q = (1 - zero) * drawn / drawn.sum()
    return Ratio(h, low, q, (1 - infinite) * q * nodes / (q @ nodes), zero, infinite)


def convolve(parts):
    """Masses of the sum of losses, and the index of the first, from ``parts`` of (first, masses,
    count)."""
    copies = [masses for _, masses, count in parts for _ in range(count)]
    return reduce(np.convolve, copies), sum(count * first for first, _, count in parts)


def parts_under(parts, order):
    """(first, masses, count) of the losses of either order: under P, and under Q negated."""
    return [
        (1 - law.low - law.q.size, law.q[::-1], count) if order else (law.low, law.p, count)
        for law, count in parts
    ]


def rare_loss(largest, chance):
    """A loss of 0, and seldom one of ``largest`` steps; a step of .5."""
    masses = np.zeros(largest + 1)
    masses[0], masses[-1] = 1 - chance, chance
    return Ratio(0.5, 0, masses, masses, 0.0, 0.0)
