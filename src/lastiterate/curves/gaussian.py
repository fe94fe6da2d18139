"""Gaussian differential privacy, mixtures over secret positions, and tails rounded to the safe
side."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import cast, final

import numpy as np

from lastiterate.curves.curve import (
    TINY,
    UP,
    BestOf,
    Curve,
    Exchanged,
    Grouped,
    check_delta,
    check_epsilon,
    check_mixture,
    log_of,
)
from lastiterate.curves.roots import first_within
from lastiterate.errors import InputError
from lastiterate.run.validation import Array, nonnegative

# Gaussian tails, rounded to the safe side.

_SQRT2 = math.sqrt(2.0)
FAR, FARTHEST = 36.0, 1e5
"""Standard deviations at which delta is about 1e-283, and beyond which it is below every double."""


def gdp_delta(epsilon: float | Array, mu: Array) -> Array:
    """Upper ends of delta_mu(eps) = Phi(a) - e^eps Phi(b), a = mu/2 - eps/mu, b = a - mu, for
    finite mu > 0.

    e^eps phi(b) = phi(a), so both tails share one exponential and e^eps never appears: delta =
    exp(-a^2/2)/2 (erfcx(p) - erfcx(p + q)), p = -a/sqrt 2, q = mu/sqrt 2, for a <= 0. erfcx is good
    to a few u = 2^-53, so the difference is off by less than 1e-14 erfcx(p), however much of it
    cancels; exp(-a^2/2) is good to 4 u (1 + a^2 + eps). For a > 0 the first term is Phi(a) >= 1/2
    and errors are absolute, below 8 u. A delta that is smaller than ``TINY`` counts as ``TINY``.
    """
    from scipy.special import erfcx, ndtr  # pyright: ignore

    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        a = np.asarray(_place(epsilon, mu))
        square, p, q = a * a, -a / _SQRT2, mu / _SQRT2
        gauss = np.exp(-0.5 * square) * 0.5
        second: Array = erfcx(p + q)
        first: Array = erfcx(np.maximum(p, 0.0))
        out = np.asarray((first - second + 1e-14 * first) * gauss)
        out *= 1 + 1e-15 * (1 + square + epsilon)
        right = ~(a <= 0)  # few of many: Phi takes as long as all else
        if right.any():
            out[right] = (ndtr(a[right]) - (gauss * second)[right]) * (1 + 1e-14) + 2e-15
    if a.size and not a.min() >= -FARTHEST:
        out = np.where(a < -FARTHEST, TINY, out)
    return np.clip(out, TINY, 1.0)


def gdp_log_delta(epsilon: float | Array, mu: Array) -> Array:
    """Logarithms of ``gdp_delta``, by the same formula and with the same errors where delta is
    below a double."""
    from scipy.special import erfcx  # pyright: ignore

    near = gdp_delta(epsilon, mu)
    with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
        a = np.maximum(
            _place(epsilon, mu), -1e150
        )  # its square stays finite, and delta never increases
        p, q = np.maximum(-a / _SQRT2, 0.0), mu / _SQRT2
        first: Array = erfcx(p)
        rounding = 1e-15 * (1 + a * a + np.minimum(epsilon, 1e300))
        far = -a * a / 2 - math.log(2) + np.log(first * (1 + 1e-14) - erfcx(p + q)) + rounding
        return cast(Array, np.where(a > -FAR, log_of(near), far))


def _place(epsilon: float | Array, mu: Array) -> Array:
    """a = mu/2 - eps/mu."""
    return mu / 2 - epsilon / mu


def delta_of_draw(loss: Array, rate: float, mu: float) -> Array:
    """Upper ends of delta of q N(2 mu) + (1 - q) N(0) against q N(mu) + (1 - q) N(0) at losses e >=
    0, q = ``rate``.

    With k = (e^e - 1)(1 - q)/q the best half line begins at x + 2 mu, mu x = log u - mu^2 / 2, u
    the root of u^2 = e^e u + k e^(-mu^2); there delta = q (Phi(-x) - (e^e / u) exp(-x^2/2)/2
    erfcx((x + mu)/sqrt 2) - ...). Rounding is that of ``gdp_delta``, which this is at q = 1.
    """
    from scipy.special import erfcx, ndtr  # pyright: ignore

    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        grown, others = np.exp(loss), np.expm1(loss) * (1 - rate) / rate * math.exp(-mu * mu)
        root = np.where(
            loss < 300, np.sqrt(grown * grown + 4 * others), np.hypot(grown, 2 * np.sqrt(others))
        )
        u = (grown + root) / 2  # squares overflow: losses reach 470
        x = np.log(u) / mu - mu / 2
        p, gauss = x / _SQRT2, np.exp(-x * x / 2) / 2
        first: Array = erfcx(np.maximum(p, 0.0))
        behind: Array = grown / u * erfcx(p + mu / _SQRT2) + others / u / u * erfcx(
            p + 2 * mu / _SQRT2
        )
        low = gauss * (first - behind + 2e-14 * first) * (1 + 2e-15 * (1 + x * x + np.log(u)))
        high = (ndtr(-x) - gauss * behind) * (1 + 2e-14) + 4e-15
    found = cast(Array, np.where(p >= 0, low, high))
    return rate * np.where(np.isnan(found), 1.0, np.clip(found, 0.0, 1.0))  # what overflowed


def log_sum_exp(values: Array) -> float:
    """log of the sum of exp(values), without overflow; relative error of the sum at most 2^-50
    size(values)."""
    top = float(values.max())
    return top if math.isinf(top) else top + math.log(float(np.exp(values - top).sum()))


# Gaussian differential privacy.


@final
@dataclass(frozen=True)
class Gdp(Curve):
    """mu-Gaussian differential privacy (Dong, Roth, Su 2022, Definition 2.6 and Corollary 2.13)."""

    mu: float

    def __post_init__(self) -> None:
        nonnegative("mu", self.mu)

    def delta(self, epsilon: float) -> float:
        check_epsilon(epsilon)
        if self.mu == 0 or math.isinf(self.mu):
            return 0.0 if self.mu == 0 else 1.0
        return float(gdp_delta(epsilon, np.array([self.mu]))[0])

    def profile(self, epsilons: Array) -> Array:
        if self.mu == 0 or math.isinf(self.mu):
            return np.full((epsilons.size, 2), 0.0 if self.mu == 0 else 1.0)
        deltas = gdp_delta(epsilons, np.array([self.mu]))
        return np.stack([deltas, deltas], axis=1)

    def log_profile(self, epsilons: Array) -> Array:
        if self.mu == 0 or math.isinf(self.mu):
            return np.full((epsilons.size, 2), -math.inf if self.mu == 0 else 0.0)
        logs = gdp_log_delta(epsilons, np.array([self.mu]))
        return np.stack([logs, logs], axis=1)

    def epsilon(self, delta: float) -> float:
        check_delta(delta)
        if math.isinf(self.mu):
            return math.inf
        return _epsilon(self, delta)

    def rdp(self, alpha: float) -> float:
        return alpha * self.mu**2 / 2 * UP

    def group(self, size: int) -> Gdp:
        return Gdp(self.mu * size * UP)


def compose_known_steps(multipliers: tuple[float, ...], counts: tuple[int, ...], mu: float) -> Gdp:
    """Return the curve of ``counts[i]`` steps of noise multiplier ``multipliers[i]`` in known
    batches, and of a ``mu``-Gaussian mechanism."""
    if min(multipliers) == 0:
        return Gdp(math.inf)
    squares = sum(n / z**2 for z, n in zip(multipliers, counts, strict=True))
    return Gdp(math.sqrt(squares + mu**2) * UP)


@lru_cache(maxsize=4096)
def _epsilon(curve: Gdp, delta: float) -> float:
    """Return epsilon, cached: a certificate, its additional statements and their verification ask
    for the same values again."""
    return first_within(curve.delta, delta, 0.0, bound_epsilon(curve.mu, delta))


def bound_epsilon(mu: float, delta: float) -> float:
    """An epsilon at which mu-GDP surely has at most ``delta`` (zCDP conversion, Bun and Steinke
    2016)."""
    return mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta)) + mu * 1e-6 + 1e-300


# Mixtures of Gaussian pairs.


@final
@dataclass(frozen=True)
class GdpMixture(Curve):
    """The pair (J, N(mu_J, 1)) against (J, N(0, 1)) with P[J = j] = weights[j] (docs: one secret
    permutation)."""

    weights: tuple[float, ...]
    mus: tuple[float, ...]

    def __post_init__(self) -> None:
        check_mixture(self.weights, self.mus)
        if not all(mu >= 0 for mu in self.mus):
            raise InputError("mus", "must be numbers >= 0", self.mus)

    def _finite(self) -> tuple[Array, Array, float]:
        """Weights and mus of the finite positive atoms, and the weight of the infinite ones."""
        w, mu = np.array(self.weights), np.array(self.mus)
        keep = (mu > 0) & np.isfinite(mu) & (w > 0)
        return w[keep], mu[keep], float(w[np.isinf(mu)].sum())

    def delta(self, epsilon: float) -> float:
        check_epsilon(epsilon)
        w, mu, lost = self._finite()
        total = float((w * gdp_delta(epsilon, mu)).sum()) if w.size else 0.0
        return min(1.0, (total + lost) * UP)

    def profile(self, epsilons: Array) -> Array:
        w, mu, lost = self._finite()
        total = np.array([float((w * gdp_delta(float(epsilon), mu)).sum()) for epsilon in epsilons])
        deltas = np.minimum(1.0, (total + lost) * UP)
        return np.stack([deltas, deltas], axis=1)

    def log_profile(self, epsilons: Array) -> Array:
        w, mu, lost = self._finite()
        terms = np.log(np.append(w, lost) if lost > 0 else w)
        rest = [0.0] if lost > 0 else []
        if not terms.size:
            return np.full((epsilons.size, 2), -math.inf)
        logs = [
            log_sum_exp(terms + np.append(gdp_log_delta(float(epsilon), mu), rest))
            for epsilon in epsilons
        ]
        least = np.minimum(np.array(logs) + 1e-12, 0.0)
        return np.stack([least, least], axis=1)

    def epsilon(self, delta: float) -> float:
        check_delta(delta)
        _, mu, lost = self._finite()
        if lost * UP >= delta:
            return math.inf
        if not mu.size:
            return 0.0
        # with an infinite atom the finite ones must do with less
        return first_within(
            self.delta, delta, 0.0, bound_epsilon(float(mu.max()), (delta - lost) / 2)
        )

    def rdp(self, alpha: float) -> float:
        if alpha <= 1:
            raise InputError("alpha", "must exceed 1", alpha)
        w, mu, lost = self._finite()
        if lost > 0:
            return math.inf
        rest = max(0.0, 1 - float(w.sum()))
        terms = np.log(np.append(w, rest + 1e-300)) + np.append(
            (alpha - 1) * alpha * mu**2 / 2, 0.0
        )
        return max(0.0, log_sum_exp(terms) / (alpha - 1)) * UP + 1e-12 / (alpha - 1)

    def replace_one_curve(self) -> BestOf:
        return BestOf((self.group(2), Exchanged(self)))

    def group(self, size: int) -> Curve:
        if size == 1:
            return self
        # its trade-off function lies above G(max mu), whose group privacy is size * max mu
        return BestOf((Gdp(max(self.mus) * size * UP), Grouped(self, size)))
