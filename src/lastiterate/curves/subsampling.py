"""Poisson-subsampled Gaussian mechanisms through the library dp-accounting, imported when first
needed.

One step with rate q and noise multiplier z has the dominating pair (1 - q) N(0, z^2) + q N(1, z^2)
against N(0, z^2), in both orders (Zhu, Dong, Wang 2022, Theorem 11; Mironov, Talwar, Zhang 2019,
section 3); steps compose adaptively.
"""

# pyright: basic
# the library has no type stubs
from __future__ import annotations

import logging
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from lastiterate.run.validation import Array

WIDEST, NARROWEST, SHARE = 2e-4, 1e-6, 16
"""Interval of the privacy loss grid: a sixteenth of one step's standard deviation, within these
bounds. Splitting a loss between two grid points adds about a sixth of the squared interval to its
variance, here 1/1500; below 1e-6 rounding would add more mass to the grid than its width does."""
VARIED_SHARE, COARSE_SHARE = 8, 4
"""The same where more than four noises vary (1/400 of the variance; their rounding to levels weighs
more), and on coarse grids."""
MOST_SINGLE, MOST_TOTAL = 2**15, 2**20
"""Grid points of one step (four different steps may have as many each) and of the composition; the
interval widens where more would be needed."""


def is_installed() -> bool:
    """Whether dp-accounting can be imported."""
    return sys.modules.get("dp_accounting", True) is not None and _is_found()


@cache
def _is_found() -> bool:
    try:
        return find_spec("dp_accounting") is not None
    except (ImportError, ValueError):
        return False


@contextmanager
def _quiet() -> Iterator[None]:
    """dp-accounting logs every order whose series does not converge; such an order is simply not
    used."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@lru_cache(maxsize=4096)
def renyi(
    z: float, rate: float, orders: tuple[float, ...] | None = None
) -> tuple[tuple[float, ...], Array]:
    """Orders (dp-accounting's own by default) and upper ends of one step's Renyi divergence at
    each, rounded up.

    The divergence is log A / (alpha - 1), A a sum of at most 1,026 terms whose logarithms
    (log-gamma values up to 1e4, added to the Gaussian's exponent) are accurate to 1e-11 + 1e-12
    log A; the series of fractional orders stops at a relative remainder of e^-30.
    """
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, rdp

    with _quiet(), np.errstate(over="ignore", invalid="ignore"):
        accountant = rdp.RdpAccountant(orders)
        accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(z)))
    listed = np.asarray(accountant.orders, dtype=np.float64)
    values = np.asarray(accountant.rdp, dtype=np.float64)
    values = np.where(np.isnan(values), np.inf, np.maximum(values, 0.0))
    return tuple(map(float, listed)), values * (1 + 1e-12) + 1e-11 / (listed - 1)


def spread(z: float, rate: float) -> float:
    """About the standard deviation of one step's privacy loss, rate sqrt(e^(1/z^2) - 1), and at
    most the Gaussian's."""
    return min(rate * math.sqrt(math.expm1(min(z**-2, 700.0))), 1 / z)


def largest_loss(z: float, rate: float) -> float:
    """About the width of one step's privacy loss grid (dp-accounting cuts Gaussians at 10 standard
    deviations)."""
    high = 10 / z + 1 / (2 * z * z)
    top = high + math.log(rate) if high > 600 else math.log1p(rate * math.expm1(high))
    return max(top, 0.0) + (high if rate == 1 else -math.log1p(-rate))


def interval(
    levels: tuple[tuple[float, int], ...], rate: float, mu: float, *, coarse: bool
) -> float:
    """Grid interval for the composition of ``levels`` (noise multiplier, steps) and one Gaussian
    mechanism ``mu``.

    Where noises vary much, their rounding to levels outweighs the widest interval, and it is left
    out.
    """
    steps = sum(count for _, count in levels)
    variance = sum(count * spread(z, rate) ** 2 for z, count in levels)
    width = max(largest_loss(z, rate) for z, _ in levels) + 10 * mu + mu * mu
    total = width + 16 * math.sqrt(variance + mu * mu)
    varied = len(levels) > 4
    widest, share = (
        (math.inf, COARSE_SHARE if coarse else VARIED_SHARE)
        if coarse or varied
        else (WIDEST, SHARE)
    )
    wanted = max(NARROWEST, min(widest, math.sqrt(variance / steps) / share))
    return max(wanted, width * max(1.0, len(levels) / 4) / MOST_SINGLE, total / MOST_TOTAL)


@lru_cache(maxsize=64)
def _single(z: float, rate: float, grid: float) -> Any:
    from dp_accounting.pld import privacy_loss_distribution as pld

    orders = (True, False) if rate < 1 else (True,)  # both are alike
    return pld.PrivacyLossDistribution(
        *(_one_order(z, rate, grid, removed=removed) for removed in orders)
    )


def _one_order(z: float, rate: float, grid: float, *, removed: bool) -> Any:
    """``from_gaussian_mechanism``'s distribution of one order, whose formulas it evaluates for all
    points at once."""
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld import privacy_loss_mechanism as mechanisms

    order = mechanisms.AdjacencyType.REMOVE if removed else mechanisms.AdjacencyType.ADD
    step = mechanisms.GaussianPrivacyLoss(z, sampling_prob=rate, adjacency_type=order)
    bounds: Any = step.connect_dots_bounds()
    low, high = math.floor(bounds.epsilon_lower / grid), math.ceil(bounds.epsilon_upper / grid)
    epsilons = np.arange(low, high + 1) * grid
    losses = epsilons if removed else -epsilons
    at = (0.5 + (_loss_when_drawn(losses, rate) if rate < 1 else losses) * z * z) * (
        -1 if removed else 1
    )
    deltas = step.mu_upper_cdf(at) - np.exp(epsilons + step.mu_lower_log_cdf(at))
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
        grid, low, high, np.clip(deltas, 0, 1)
    )


def _loss_when_drawn(losses: Array, rate: float) -> Array:
    """log(1 + (e^loss - 1) / rate): the loss of a record that is drawn, -inf where no outcome's
    loss is as small."""
    none = losses <= math.log1p(-rate) * (1 - 1e-9)
    scaled = np.where(none, 0.0, losses) - math.log(rate)
    return np.where(none, -np.inf, scaled + np.log1p(-np.exp(math.log(1 / rate - 1) - scaled)))


@lru_cache(maxsize=4)
def losses(levels: tuple[tuple[float, int], ...], rate: float, mu: float, grid: float) -> Any:
    """dp-accounting's pessimistic privacy loss distribution of all steps and of one Gaussian
    mechanism ``mu``."""
    total: Any = None
    with _quiet(), np.errstate(all="ignore"):
        for z, count in levels:
            part = _repeat(_single(z, rate, grid), count)
            total = part if total is None else total.compose(part)
        if mu > 0:
            total = total.compose(_single(1 / mu, 1.0, grid))
    return total


def directions(pld: object, epsilon: float) -> tuple[float, float]:
    """dp-accounting's delta of each order: the record is in the first data set, and in the second."""
    removed, added = (
        getattr(pld, name) for name in ("_pmf_remove", "_pmf_add")
    )  # its method gives the larger
    return float(removed.get_delta_for_epsilon(float(epsilon))), float(
        added.get_delta_for_epsilon(float(epsilon))
    )


def profile(pld: Any, epsilons: Array) -> Array:
    """``directions`` at every one of rising ``epsilons``, in one pass over the losses; shape
    (points, 2)."""
    orders = [pld._pmf_remove, pld._pmf_add]
    columns = [
        _hockey_sticks(order.to_dense_pmf(), epsilons)
        for order in orders[: 2 - (orders[0] is orders[1])]
    ]
    return np.stack([columns[0], columns[-1]], axis=1)


def _hockey_sticks(order: Any, epsilons: Array) -> Array:
    """delta(e) = infinite + sum over losses l > e of p (1 - e^(e - l)) at rising ``epsilons``, from
    the last one down.

    1 - e^(e - l) = (1 - w) + w (1 - e^(f - l)), w = e^(e - f), for e < f < l: delta(e) is (1 - w)
    (mass above f)
    + w delta(f) + the part of e < l <= f. No term is negative, so that as little is lost as in one
      sum for each e.
    """
    losses = (np.arange(order.size) + order._lower_loss) * order._discretization
    begins = np.append(np.searchsorted(losses, epsilons, side="right"), losses.size)
    deltas, above, delta, nearer = np.empty(epsilons.size), 0.0, 0.0, math.inf
    for k in range(epsilons.size - 1, -1, -1):
        part = slice(begins[k], begins[k + 1])
        masses, epsilon = order._probs[part], float(epsilons[k])
        kept = math.exp(epsilon - nearer)
        delta = -math.expm1(epsilon - nearer) * above + kept * delta
        delta -= float(np.dot(np.expm1(epsilon - losses[part]), masses))
        above, nearer = above + float(masses.sum()), epsilon
        deltas[k] = delta
    return order._infinity_mass + deltas


def _repeat(part: Any, count: int) -> Any:
    """``count`` compositions of one distribution (in two stages where dp-accounting would compute
    size ** count)."""
    if count <= 2**16:
        return part.self_compose(count)
    head, rest = divmod(count, 64)
    total = part.self_compose(64, 1e-15 / head).self_compose(head)
    return total.compose(part.self_compose(rest)) if rest else total


def merge_levels(levels: tuple[tuple[float, int], ...], most: int) -> tuple[tuple[float, int], ...]:
    """At most ``most`` levels (noise multiplier, steps): multipliers are rounded *down* to a
    geometric grid.

    Less noise is never more private. A multiplier of 0 cannot be merged with others, and is left
    alone.
    """
    least, largest = min(z for z, _ in levels), max(z for z, _ in levels)
    if len(levels) <= most or least == 0:
        return levels
    width = math.log(largest / least) / most
    counts: dict[float, int] = {}
    for z, count in levels:
        step = min(most - 1, math.floor(math.log(z / least) / width))
        floor = min(z, least * math.exp(width * step))
        counts[floor] = counts.get(floor, 0) + count
    return tuple(sorted(counts.items()))


def allowance(levels: tuple[tuple[float, int], ...], rate: float, grid: float) -> float:
    """Bound on what rounding can take from dp-accounting's delta; u = 2^-53.

    The grid's masses are differences of one step's delta(eps), good to 1e-14, over the interval:
    telescoped back, their rounding moves delta by less than 3 u E[loss^2] / interval more. One
    record of steps' errors adds up (the other steps' losses only average it). Fast Fourier
    transforms of at most 2^23 points have errors of 100 u in each coefficient, times the number of
    steps in their power; a step-like function of bounded variation weighs coefficient k by at most
    1/k, in total below 17. The inverse transform adds 100 u sqrt(2^23) in the sum of absolute
    values.
    """
    total = 1e-10 * (2 * len(levels) + 1)
    for z, count in levels:
        total += count * (2e-13 + 1e-14 + 4e-16 * spread(z, rate) ** 2 / grid)
    return total
