"""Shifts of the last iterate by one record: allocated along the steps, in the draws of correlated
noise, and the closed forms that Langevin bounds share.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from lastiterate.analysis.step_map import StepMap
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
    ``allowance`` covers."""
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


# The optimal allocation of shifts: mu of the last iterate for any schedule, in the log domain.
# Proof: docs/theorems/shifted-interpolation.  With R_t the product of the later Lipschitz
# constants, write S_t, X_t for the running sums of s_u R_u and v_u R_u^2. The optimum is the
# greatest convex minorant of (0, 0), (X_1, S_1), ..., (X_T, S_T): pool adjacent violators until the
# slopes dS/dX increase; mu^2 is the sum of dS^2 / dX over the pools.


def allowance(steps: int, growth: float = 0.0) -> float:
    """Relative rounding allowance of mu: below 1e-12 up to 1,000 non-expanding steps, growing with
    the length.

    A factor R_t of k steps carries a relative error of at most k u (1 + |log R_t|), u = 2^-53;
    where R_t decays, the term's weight R_t |log R_t| <= 1/e absorbs the logarithm, where it grows
    (``growth`` = largest log R_t) it stays. Square roots and pools halve relative errors, so 2^-52
    k (1 + growth) covers S and X together.
    """
    return 1e-13 + 2.0**-52 * steps * (1.0 + max(growth, 0.0))


def pool(log_shift: Array, log_noise: Array) -> tuple[Array, Array]:
    """Pools of the greatest convex minorant, given log dS and log dX of consecutive blocks in
    common coordinates.

    Every maximal run of non-increasing slopes is pooled at once; the order of pooling does not
    matter.
    """
    while log_shift.size > 1:
        slope = log_shift - log_noise
        starts = np.flatnonzero(np.concatenate(([True], slope[1:] > slope[:-1])))
        if starts.size == slope.size:
            break
        log_shift = np.logaddexp.reduceat(log_shift, starts)
        log_noise = np.logaddexp.reduceat(log_noise, starts)
    return log_shift, log_noise


def optimal_mu(c: ArrayLike, s: ArrayLike, v: ArrayLike, start: float = 0.0) -> float:
    """The optimal mu for Lipschitz constants ``c``, sensitivities ``s`` and noise variances ``v``
    (each length T).

    ``start``: distance of the two starts, or the diameter after a restart. Steps without noise
    absorb no shift and are folded into the next noisy one.
    """
    c, s, v = (np.asarray(x, dtype=np.float64) for x in (c, s, v))
    last = np.flatnonzero(c == 0)
    if last.size:  # a constant map forgets everything before it
        c, s, v, start = c[last[-1] :].copy(), s[last[-1] :], v[last[-1] :], 0.0
        c[0] = 1.0
    if start > 0:
        s = s.copy()
        s[0] += c[0] * start
    if not (s > 0).any():
        return 0.0
    noisy = v > 0
    if not noisy.any() or (s[np.flatnonzero(noisy)[-1] + 1 :] > 0).any():
        return math.inf
    with np.errstate(divide="ignore"):
        later = np.concatenate((np.cumsum(np.log(c[::-1]))[::-1][1:], [0.0]))  # log R_t
        dS, dX = np.log(s) + later, np.log(v) + 2 * later
    if not (dS.max() < math.inf and dX.max() < math.inf):  # a nan is its own maximum
        return math.inf  # outside double precision: no statement
    # noise without a shift helps the block before (the first: nothing is there to absorb); a shift
    # without noise has an infinite slope, and is pooled with the noise that follows
    shifted = np.flatnonzero(dS > -math.inf)
    dS, dX = pool(dS[shifted], np.logaddexp.reduceat(dX, shifted))
    mu = math.sqrt(float(np.exp(2 * dS - dX).sum()))
    return mu * (1 + allowance(c.size, float(later.max())))


ALL = 2**15
"""Steps times restarts up to which every restart is tried."""


def best_restart(c: Array, s: Array, v: Array, diameter: float) -> float:
    """The smallest mu over restarts at distance ``diameter``; any subset of restart times is a
    valid bound.

    A restart at an earlier step without the record costs no more where that step's map does not
    expand: it begins at most as far apart, and more noise hides the distance. So restarts right
    behind the record's steps are all.
    """
    steps = c.size

    def cost(window: int) -> float:
        return optimal_mu(c[steps - window :], s[steps - window :], v[steps - window :], diameter)

    def cost_of(number: int) -> float:
        return cost(windows[number - 1])

    behind = steps - 1 - np.flatnonzero(s > 0)[::-1]
    windows = np.append(behind[behind > 0], steps).tolist()
    least = (
        min(map(cost, windows)) if len(windows) * steps <= ALL else search(cost_of, len(windows))
    )
    return min(least, search(cost, steps)) if len(windows) < steps and (c > 1).any() else least


def search(cost: Callable[[int], float], longest: int) -> float:
    """Smallest value of ``cost(w)`` found on a geometric grid of 1 <= w <= longest, then around its
    best point."""
    grid = sorted({round(longest ** (i / 24)) for i in range(25)})
    values = {w: cost(w) for w in grid}
    best = min(grid, key=values.__getitem__)
    place = grid.index(best)
    low, high = grid[max(place - 1, 0)], grid[min(place + 1, len(grid) - 1)]
    while high - low > 2:
        left, right = low + (high - low) // 3, high - (high - low) // 3
        values |= {w: cost(w) for w in (left, right) if w not in values}
        low, high = (low, right) if values[left] <= values[right] else (left, high)
    values |= {w: cost(w) for w in range(low, high + 1) if w not in values}
    return min(values.values())


# The optimal shift allocation for constant schedules in closed form, for every position of the
# record at once.  A record in block j of l participates every l steps. With a constant map (c <= 1)
# the segments from one participation to the next have falling slopes, so all but the last pool into
# one geometric sum; with c > 1 they never pool. Both agree with ``optimal_mu`` and
# contain the closed forms of Bok, Su and Altschuler (2024).

MOST_PLACES = 256
"""Blocks for which restarts in a bounded domain are searched, position by position; with more, one
restart is tried."""


def constant_mus(
    c: float, s: float, v: float, steps: int, blocks: int, diameter: float = math.inf
) -> Array:
    """mu for a record in block 0, ..., blocks - 1 of every pass; shape (blocks,)."""
    places = np.arange(blocks)
    participations = np.maximum((steps - 1 - places) // blocks + 1, 0)
    reached = participations > 0
    if v == 0:
        return np.where(reached & (s > 0), math.inf, 0.0)
    tail = np.where(
        reached, steps - places - (participations - 1) * blocks, 1
    )  # steps from the last one on
    if c == 0:  # only a participation in the very last step survives
        mu = np.where(tail == 1, s / math.sqrt(v), 0.0)
    elif c > 1:
        mu = (
            np.sqrt(np.maximum(participations - 1, 0) * _pulse(c, blocks) + _pulse(c, tail))
            * s
            / math.sqrt(v)
        )
    else:
        mu = _pool(c, s, v, tail, np.maximum(participations - 1, 0), blocks)
    growth = steps * max(math.log(c), 0.0) if c > 0 else 0.0
    mu = np.where(reached, mu * (1 + allowance(steps, growth)), 0.0)
    if math.isfinite(diameter):
        mu = np.minimum(mu, _search_restarts(c, s, v, steps, blocks, diameter))
    return mu


def _geometric(log_c: float, count: Array) -> Array:
    """log of 1 + c + ... + c^(count - 1), for c <= 1; -inf where count is 0."""
    count = np.asarray(count, dtype=np.float64)
    with np.errstate(divide="ignore"):
        if log_c == 0:
            return np.log(count)
        return np.log(-np.expm1(count * log_c)) - math.log(-math.expm1(log_c))


def _pulse(c: float, count: Array | int) -> Array:
    """theta_c(k) = c^(2k-2) / (1 + c^2 + ... + c^(2k-2)): the cost of one shift spread over k
    steps, c > 1."""
    count = np.asarray(count, dtype=np.float64)
    return -np.expm1(-2 * math.log(c)) / -np.expm1(-2 * count * math.log(c))


def _pool(c: float, s: float, v: float, tail: Array, earlier: Array, blocks: int) -> Array:
    log_c = math.log(c)
    dS_last = math.log(s) + (tail - 1) * log_c if s > 0 else np.full(tail.shape, -math.inf)
    dX_last = math.log(v) + _geometric(2 * log_c, tail)
    span = earlier * blocks
    log_s = math.log(s) if s > 0 else -math.inf
    dS = log_s + (tail + blocks - 1) * log_c + _geometric(blocks * log_c, earlier)
    dX = math.log(v) + 2 * tail * log_c + _geometric(2 * log_c, span)
    return np.sqrt(_two_pools(dS, dX, dS_last, dX_last))


def _two_pools(dS: Array, dX: Array, dS_last: Array, dX_last: Array) -> Array:
    """Cost of two blocks in order, pooled where their slopes do not increase; a block with dS =
    -inf is empty."""
    with np.errstate(invalid="ignore"):
        merged = dS - dX >= dS_last - dX_last
        apart = _cost(dS, dX) + _cost(dS_last, dX_last)
        together = _cost(np.logaddexp(dS, dS_last), np.logaddexp(dX, dX_last))
    return np.where(np.isneginf(dS), _cost(dS_last, dX_last), np.where(merged, together, apart))


def _cost(dS: Array, dX: Array) -> Array:
    with np.errstate(invalid="ignore"):
        return np.where(np.isneginf(dS), 0.0, np.exp(2 * dS - dX))


def _search_restarts(
    c: float, s: float, v: float, steps: int, blocks: int, diameter: float
) -> Array:
    """Return the best restart for every position; full batches search all windows, blocks at most
    the last 4,096 steps."""
    if blocks == 1 and 0 < c <= 1:
        # full batches: start and pulses pool, because slopes fall
        def cost(window: int) -> float:
            w = np.array(float(window))
            log_c = math.log(c)
            log_s = math.log(s) + _geometric(log_c, w) if s > 0 else np.array(-math.inf)
            dS = np.logaddexp(math.log(diameter) + window * log_c, log_s)
            dX = math.log(v) + _geometric(2 * log_c, w)
            return float(np.exp(dS - dX / 2)) * (1 + allowance(window))

        return np.array([search(cost, steps)])
    if (
        blocks > MOST_PLACES
    ):  # one restart only, before the last step; the bound is larger, and still a bound
        return np.full(blocks, (c * diameter + s) / math.sqrt(v) * (1 + allowance(1)))
    window = min(steps, 4096)
    shape = np.arange(steps - window, steps) % blocks
    full_c, full_v = np.full(window, c), np.full(window, v)
    return np.array(
        [
            best_restart(full_c, np.where(shape == place, s, 0.0), full_v, diameter)
            for place in range(blocks)
        ]
    )


# What the bounds of Kong and Ribero (2025) share: Lipschitz constants of weakly convex steps, and a
# shift's cost.  Proposition 2.1, as restored in docs/theorems/cyclic-weakly-convex, for Hessians in
# [-m, M] and step lam: L_lam^2 = 1 + 2 lam m (1 + m / (2 (M + m))) without clipping, lam <= 1/(M +
# m); sqrt(2) L_lam with clipping, lam <= 1/(2 (M + m)). Both hold, and neither is the best
# constant: shifted-interpolation uses the exact one.


def excess(step: float, weak: float, smooth: float) -> float:
    """L_lam^2 - 1 = 2 lam m (1 + m / (2 (M + m))), equation (13)."""
    return 2 * step * weak * (1 + weak / (2 * (smooth + weak))) if weak > 0 else 0.0


def longest_weakly_convex_step(curvature: StepMap) -> float:
    """The longest step that Proposition 2.1 covers: 1/(M + m), or half of it where clips can act.

    A ridge outside the clip shrinks the map to (1 - lam ridge) times a clipped step of length lam /
    (1 - lam ridge).
    """
    if not curvature.clipped:
        weak, smooth = (
            max(0.0, -(curvature.ridge + curvature.lowest)),
            max(0.0, curvature.ridge + curvature.highest),
        )
        return 1 / (smooth + weak) if smooth + weak > 0 else math.inf
    total = 2 * (max(0.0, curvature.highest) + max(0.0, -curvature.lowest)) + curvature.ridge
    return 1 / total if total > 0 else math.inf


def log_square(curvature: StepMap, step: float) -> float:
    """log of the squared Lipschitz constant of Proposition 2.1, never below 0."""
    if not curvature.clipped:
        weak, smooth = (
            max(0.0, -(curvature.ridge + curvature.lowest)),
            max(0.0, curvature.ridge + curvature.highest),
        )
        return math.log1p(excess(step, weak, smooth))
    shrink = 1 - step * curvature.ridge
    if shrink <= 0:  # only where the data term is linear, and then the map is constant
        return 0.0
    inner = excess(step / shrink, max(0.0, -curvature.lowest), max(0.0, curvature.highest))
    return max(0.0, 2 * math.log(shrink) + math.log(2) + math.log1p(inner))


def theta(log_square: float, steps: int) -> float:
    """theta_L(k) = L^(2k-2) / (1 + L^2 + ... + L^(2k-2)), equation (15): the cost of a shift spread
    over k steps."""
    return (
        math.expm1(-log_square) / math.expm1(-steps * log_square) if log_square > 0 else 1 / steps
    )


def unit_shift(run: Run) -> float:
    """s / sqrt(v) of one step that the record participates in: sensitivity / (b noise_std)."""
    sensitivity, std = require_fact(run.facts(), "sensitivity"), run.first_noise
    unit = sensitivity.value / run.divisor
    return unit / std if std > 0 else (math.inf if unit > 0 else 0.0)


def cyclic_mu(run: Run, log_square: float) -> float:
    """Return mu for the worst position: mu^2 = (s^2/v) ((E - 1) theta_L(l) + 1), E = ceil(T/l) the
    passes that were started.

    A record in the block of the last step participates E times, the last time with no step to
    follow; at every other position it participates no more often, and later steps hide it. The
    longest step allowed is itself rounded, so a map may expand by 1 + 2^-52: the allowance grows
    with the number of steps.
    """
    passes = -(-run.steps // run.blocks)
    mu = unit_shift(run) * math.sqrt((passes - 1) * theta(log_square, run.blocks) + 1)
    return mu * (1 + allowance(run.steps))
