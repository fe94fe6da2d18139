"""Exact curves of the Poisson-subsampled Gaussian pair (1 - q) N(0, z^2) + q N(1, z^2) against N(0,
z^2)."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtr


def one_step(epsilon, q, z):
    """H_eps(P || Q) and H_eps(Q || P) of one step, at any real epsilons; arrays."""
    e = np.asarray(epsilon, dtype=float)

    def crossing(level):  # x where log likelihood ratio = level, -inf where it never falls so low
        inside = (np.exp(level) - (1 - q)) / q
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(inside > 0, z * z * np.log(np.maximum(inside, 1e-300)) + 0.5, -np.inf)

    def tails(x):  # P(X > x) and Q(X > x)
        return (1 - q) * ndtr(-x / z) + q * ndtr(-(x - 1) / z), ndtr(-x / z)

    p, w = tails(crossing(e))
    forth = p - np.exp(e) * w
    p, w = tails(crossing(-e))
    back = (1 - w) - np.exp(e) * (1 - p)
    return np.maximum(forth, 0), np.maximum(back, 0)


def two_steps(epsilon, q, z1, z2):
    """The larger of both orders for two steps: delta(eps) = E[delta_1(eps - loss of the other
    step)]."""
    x = np.linspace(-12 * z2, 1 + 12 * z2, 20_001)
    h = x[1] - x[0]
    w = np.exp(-((x / z2) ** 2) / 2) / (z2 * math.sqrt(2 * math.pi))
    p = (1 - q) * w + q * np.exp(-(((x - 1) / z2) ** 2) / 2) / (z2 * math.sqrt(2 * math.pi))
    loss = np.log(p / w)
    forth = (p * one_step(epsilon - loss, q, z1)[0]).sum() * h
    back = (w * one_step(epsilon + loss, q, z1)[1]).sum() * h
    return max(forth, back)


def renyi(alpha, q, z):
    """The larger D_alpha of one step, by quadrature."""
    x = np.linspace(-60 * z, 60 * z + alpha, 40_001)
    log_w = -((x / z) ** 2) / 2 - math.log(z * math.sqrt(2 * math.pi))
    log_p = log_w + np.logaddexp(math.log1p(-q), math.log(q) + (x - 0.5) / z**2)

    def of(a, b):
        return float(
            np.log(np.exp(alpha * a + (1 - alpha) * b).sum() * (x[1] - x[0])) / (alpha - 1)
        )

    return max(of(log_p, log_w), of(log_w, log_p))
