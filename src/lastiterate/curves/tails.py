"""Gaussian tails with stated error bounds, rounded to the safe side."""

from __future__ import annotations

import math
from typing import cast

import numpy as np

from lastiterate.curves.curve import TINY, log_of
from lastiterate.run.arrays import Array

_SQRT2 = math.sqrt(2.0)
FAR, FARTHEST = 36.0, 1e5
"""Standard deviations at which delta is about 1e-283, and beyond which it is below every double."""


def gdp_delta(epsilon: float | Array, mu: Array) -> Array:
    """Upper ends of delta_mu(eps) = Phi(a) - e^eps Phi(b), a = mu/2 - eps/mu, b = a - mu, for finite mu > 0.

    e^eps phi(b) = phi(a), so both tails share one exponential and e^eps never appears:
    delta = exp(-a^2/2)/2 (erfcx(p) - erfcx(p + q)), p = -a/sqrt 2, q = mu/sqrt 2, for a <= 0. erfcx is good to a few
    u = 2^-53, so the difference is off by less than 1e-14 erfcx(p), however much of it cancels; exp(-a^2/2) is good
    to 4 u (1 + a^2 + eps). For a > 0 the first term is Phi(a) >= 1/2 and errors are absolute, below 8 u. A delta that
    is smaller than ``TINY`` counts as ``TINY``.
    """
    from scipy.special import erfcx, ndtr  # pyright: ignore

    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        a = _place(epsilon, mu)
        p, q = -a / _SQRT2, mu / _SQRT2
        gauss = np.exp(-a * a / 2) / 2
        second: Array = erfcx(p + q)
        first: Array = erfcx(np.maximum(p, 0.0))
        low = gauss * (first - second + 1e-14 * first) * (1 + 1e-15 * (1 + a * a + epsilon))
        high = (ndtr(a) - gauss * second) * (1 + 1e-14) + 2e-15
    out = cast(Array, np.where(a <= 0, low, high))
    return np.clip(np.where(a < -FARTHEST, TINY, out), TINY, 1.0)


def gdp_log_delta(epsilon: float | Array, mu: Array) -> Array:
    """Logarithms of ``gdp_delta``, by the same formula and with the same errors where delta is below a double."""
    from scipy.special import erfcx  # pyright: ignore

    near = gdp_delta(epsilon, mu)
    with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
        a = np.maximum(_place(epsilon, mu), -1e150)  # its square stays finite, and delta never increases
        p, q = np.maximum(-a / _SQRT2, 0.0), mu / _SQRT2
        first: Array = erfcx(p)
        rounding = 1e-15 * (1 + a * a + np.minimum(epsilon, 1e300))
        far = -a * a / 2 - math.log(2) + np.log(first * (1 + 1e-14) - erfcx(p + q)) + rounding
        return cast(Array, np.where(a > -FAR, log_of(near), far))


def _place(epsilon: float | Array, mu: Array) -> Array:
    """a = mu/2 - eps/mu."""
    return mu / 2 - epsilon / mu


def drawn_delta(loss: Array, rate: float, mu: float) -> Array:
    """Upper ends of delta of q N(2 mu) + (1 - q) N(0) against q N(mu) + (1 - q) N(0) at losses e >= 0, q = ``rate``.

    With k = (e^e - 1)(1 - q)/q the best half line begins at x + 2 mu, mu x = log u - mu^2 / 2, u the root of u^2 =
    e^e u + k e^(-mu^2); there delta = q (Phi(-x) - (e^e / u) exp(-x^2/2)/2 erfcx((x + mu)/sqrt 2) - ...). Rounding is
    that of ``gdp_delta``, which this is at q = 1.
    """
    from scipy.special import erfcx, ndtr  # pyright: ignore

    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        grown, others = np.exp(loss), np.expm1(loss) * (1 - rate) / rate * math.exp(-mu * mu)
        root = np.where(loss < 300, np.sqrt(grown * grown + 4 * others), np.hypot(grown, 2 * np.sqrt(others)))
        u = (grown + root) / 2  # squares overflow: losses reach 470
        x = np.log(u) / mu - mu / 2
        p, gauss = x / _SQRT2, np.exp(-x * x / 2) / 2
        first: Array = erfcx(np.maximum(p, 0.0))
        behind: Array = grown / u * erfcx(p + mu / _SQRT2) + others / u / u * erfcx(p + 2 * mu / _SQRT2)
        low = gauss * (first - behind + 2e-14 * first) * (1 + 2e-15 * (1 + x * x + np.log(u)))
        high = (ndtr(-x) - gauss * behind) * (1 + 2e-14) + 4e-15
    return rate * np.clip(cast(Array, np.where(p >= 0, low, high)), 0.0, 1.0)


def log_sum_exp(values: Array) -> float:
    """log of the sum of exp(values), without overflow; relative error of the sum at most 2^-50 size(values)."""
    top = float(values.max())
    return top if math.isinf(top) else top + math.log(float(np.exp(values - top).sum()))
