"""The exact law of the last iterate on quadratics: a Gaussian linear recursion."""

from __future__ import annotations

import numpy as np


def exact_mu(curvature, eta, std, shifts):
    """mu of the pair theta <- (1 - eta h) theta + eta shift + eta std N(0, 1), with shift 0 on the neighbour."""
    mean, variance = 0.0, 0.0
    for step, noise, shift in zip(eta, std, shifts, strict=True):
        factor = 1 - step * curvature
        mean = factor * mean + step * shift
        variance = factor**2 * variance + (step * noise) ** 2
    return abs(mean) / np.sqrt(variance) if variance > 0 else (np.inf if mean else 0.0)


def gdp_delta(epsilon, mu):
    """delta of mu-GDP with 40 digits."""
    import mpmath as mp

    with mp.workdps(40):
        e, m = mp.mpf(epsilon), mp.mpf(float(mu))
        return mp.ncdf(m / 2 - e / m) - mp.e**e * mp.ncdf(-m / 2 - e / m)


def hidden_place_delta(epsilon, weights, mus):
    """Exact max of both directions for sum_j w_j N(mu_j, 1) against N(0, 1): a record's place that nobody sees."""
    x = np.linspace(-40, 60, 400_001)
    p = sum(w * np.exp(-((x - m) ** 2) / 2) for w, m in zip(weights, mus, strict=True)) / np.sqrt(2 * np.pi)
    q = np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)
    h = x[1] - x[0]
    forth = np.maximum(p - np.exp(epsilon) * q, 0).sum() * h
    back = np.maximum(q - np.exp(epsilon) * p, 0).sum() * h
    return max(forth, back)


def chain_delta(epsilon, steps, low, high, cells=4001):
    """Both directions of the hockey-stick for two projected one-dimensional chains, by grid propagation.

    ``steps``: (map, map', variance) each; the law on [low, high] is kept as two atoms at the ends and cell masses.
    """
    from scipy.special import ndtr

    grid = np.linspace(low, high, cells)
    edges = np.concatenate(([-np.inf], (grid[1:] + grid[:-1]) / 2, [np.inf]))

    def push(mass, moved, variance):
        keep = mass > 1e-18
        cdf = ndtr((edges[None, :] - moved[keep][:, None]) / np.sqrt(variance))
        return mass[keep] @ np.diff(cdf, axis=1)

    start = np.zeros(cells)
    start[np.argmin(np.abs(grid))] = 1
    p, q = start, start.copy()
    for one, two, variance in steps:
        p, q = push(p, one(grid), variance), push(q, two(grid), variance)
    e = np.exp(epsilon)
    return max(np.maximum(p - e * q, 0).sum(), np.maximum(q - e * p, 0).sum())
