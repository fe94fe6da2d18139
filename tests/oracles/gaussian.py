"""The exact law of the last iterate on quadratics: a Gaussian linear recursion."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from lastiterate.testing.exact_distributions import deltas


def gdp_delta(epsilon, mu):
    """delta of mu-GDP with 40 digits."""
    import mpmath as mp

    with mp.workdps(40):
        e, m = mp.mpf(epsilon), mp.mpf(float(mu))
        return mp.ncdf(m / 2 - e / m) - mp.e**e * mp.ncdf(-m / 2 - e / m)


def hidden_place_delta(epsilon, weights, mus):
    """Exact max of both directions for sum_j w_j N(mu_j, 1) against N(0, 1): a record in a secret
    block."""
    return mixture_delta(epsilon, (weights, mus), ([1.0], [0.0]), 1.0)


def _log_mixture(x, weights, means, std):
    from scipy.special import logsumexp

    kept = [(w, m) for w, m in zip(weights, means, strict=True) if w > 0]
    logs = [np.log(w) - ((x - m) / std) ** 2 / 2 for w, m in kept]
    return logsumexp(logs, axis=0) - np.log(std * np.sqrt(2 * np.pi))


def mixture_delta(epsilon, p, q, std):
    """Both directions of the hockey-stick for two mixtures (weights, means) of Gaussians of one
    std."""
    sides = [[(w, m, std**2) for w, m in zip(*side, strict=True)] for side in (p, q)]
    means = [*p[1], *q[1]]
    return deltas([epsilon], *sides, points=int(2001 + 60 * (max(means) - min(means)) / std))[0]


def mixture_renyi(alpha, p, q, std, points=40_001):
    """Renyi divergence of order alpha of the mixture p from the mixture q, by quadrature in the log
    domain."""
    from scipy.special import logsumexp

    means = np.array([*p[1], *q[1]])
    spread = np.ptp(means)
    # the integrand is at most a Gaussian bump around m + alpha (m' - m) for means m, m'
    x = np.linspace(
        means.min() - alpha * spread - 12 * std, means.max() + alpha * spread + 12 * std, points
    )
    log = alpha * _log_mixture(x, *p, std) + (1 - alpha) * _log_mixture(x, *q, std)
    return float(logsumexp(log) + np.log(x[1] - x[0])) / (alpha - 1)


def projected_mixture_renyi(alpha, p, q, std, low, high, points=40_001):
    """The same after projection on [low, high]: two atoms and the density between them."""
    from scipy.special import log_ndtr, logsumexp

    def sides(weights, means):
        left = logsumexp(
            [np.log(w) + log_ndtr((low - m) / std) for w, m in zip(weights, means, strict=True)]
        )
        right = logsumexp(
            [np.log(w) + log_ndtr((m - high) / std) for w, m in zip(weights, means, strict=True)]
        )
        return np.array([left, right])

    x = np.linspace(low, high, points)
    density = (
        alpha * _log_mixture(x, *p, std)
        + (1 - alpha) * _log_mixture(x, *q, std)
        + np.log(x[1] - x[0])
    )
    atoms = alpha * sides(*p) + (1 - alpha) * sides(*q)
    return float(logsumexp(np.concatenate((density, atoms)))) / (alpha - 1)


def chain_delta(epsilon, steps, low, high, cells=4001):
    """Both directions of the hockey-stick for two projected one-dimensional chains, by grid
    propagation.

    ``steps``: (map, map', variance) each; the law on [low, high] is kept as two atoms at the ends
    and cell masses.
    """
    grid = np.linspace(low, high, cells)
    moved = tuple(
        (one(grid).tobytes(), two(grid).tobytes(), variance) for one, two, variance in steps
    )
    p, q = _chain_laws(moved, low, high, cells)
    e = np.exp(epsilon)
    return max(np.maximum(p - e * q, 0).sum(), np.maximum(q - e * p, 0).sum())


@lru_cache(maxsize=4)
def _chain_laws(steps, low, high, cells):
    """Both chains' masses, for every epsilon; a map that several steps have in common is integrated
    once."""
    from scipy.special import ndtr

    grid = np.linspace(low, high, cells)
    edges, kernels = (grid[1:] + grid[:-1]) / 2, {}

    def kernel(moved, variance):
        cdf = ndtr((edges[None, :] - moved[:, None]) / np.sqrt(variance))
        return np.diff(cdf, axis=1, prepend=0.0, append=1.0)

    def push(mass, moved, variance):
        keep = mass > 1e-18
        if keep.sum() < cells / 4:
            return mass[keep] @ kernel(np.frombuffer(moved)[keep], variance)
        if (moved, variance) not in kernels:
            kernels[moved, variance] = kernel(np.frombuffer(moved), variance)
        return mass @ kernels[moved, variance]

    p = np.zeros(cells)
    p[np.argmin(np.abs(grid))] = 1
    q = p.copy()
    for one, two, variance in steps:
        p, q = push(p, one, variance), push(q, two, variance)
    return p, q
