"""The optimal shift allocation for constant schedules in closed form, for every place of the record at once.

A record in block j of l participates every l steps. With a constant map (c <= 1) the segments from one participation to
the next have falling slopes, so all but the last pool into one geometric sum; with c > 1 they never pool. Both agree
with ``shift_allocation.optimal_mu`` and contain the closed forms of Bok, Su and Altschuler (2024).
"""

from __future__ import annotations

import math

import numpy as np

from lastiterate.analysis.shift_allocation import allowance, best_restart, search
from lastiterate.run.arrays import Array

MOST_PLACES = 256
"""Blocks for which restarts in a bounded domain are searched, place by place; with more, one restart is tried."""


def constant_mus(c: float, s: float, v: float, steps: int, blocks: int, diameter: float = math.inf) -> Array:
    """mu for a record in block 0, ..., blocks - 1 of every pass; shape (blocks,)."""
    places = np.arange(blocks)
    participations = np.maximum((steps - 1 - places) // blocks + 1, 0)
    reached = participations > 0
    if v == 0:
        return np.where(reached & (s > 0), math.inf, 0.0)
    tail = np.where(reached, steps - places - (participations - 1) * blocks, 1)  # steps from the last one on
    if c == 0:  # only a participation in the very last step survives
        mu = np.where(tail == 1, s / math.sqrt(v), 0.0)
    elif c > 1:
        mu = np.sqrt(np.maximum(participations - 1, 0) * _pulse(c, blocks) + _pulse(c, tail)) * s / math.sqrt(v)
    else:
        mu = _pooled(c, s, v, tail, np.maximum(participations - 1, 0), blocks)
    growth = steps * max(math.log(c), 0.0) if c > 0 else 0.0
    mu = np.where(reached, mu * (1 + allowance(steps, growth)), 0.0)
    if math.isfinite(diameter):
        mu = np.minimum(mu, _restarted(c, s, v, steps, blocks, diameter))
    return mu


def _geometric(log_c: float, count: Array) -> Array:
    """log of 1 + c + ... + c^(count - 1), for c <= 1; -inf where count is 0."""
    count = np.asarray(count, dtype=np.float64)
    with np.errstate(divide="ignore"):
        if log_c == 0:
            return np.log(count)
        return np.log(-np.expm1(count * log_c)) - math.log(-math.expm1(log_c))


def _pulse(c: float, count: Array | int) -> Array:
    """theta_c(k) = c^(2k-2) / (1 + c^2 + ... + c^(2k-2)): the cost of one shift spread over k steps, c > 1."""
    count = np.asarray(count, dtype=np.float64)
    return -np.expm1(-2 * math.log(c)) / -np.expm1(-2 * count * math.log(c))


def _pooled(c: float, s: float, v: float, tail: Array, earlier: Array, blocks: int) -> Array:
    log_c = math.log(c)
    dS_last = math.log(s) + (tail - 1) * log_c if s > 0 else np.full(tail.shape, -math.inf)
    dX_last = math.log(v) + _geometric(2 * log_c, tail)
    span = earlier * blocks
    log_s = math.log(s) if s > 0 else -math.inf
    dS = log_s + (tail + blocks - 1) * log_c + _geometric(blocks * log_c, earlier)
    dX = math.log(v) + 2 * tail * log_c + _geometric(2 * log_c, span)
    return np.sqrt(_two_pools(dS, dX, dS_last, dX_last))


def _two_pools(dS: Array, dX: Array, dS_last: Array, dX_last: Array) -> Array:
    """Cost of two blocks in order, pooled where their slopes do not increase; a block with dS = -inf is empty."""
    with np.errstate(invalid="ignore"):
        merged = dS - dX >= dS_last - dX_last
        apart = _cost(dS, dX) + _cost(dS_last, dX_last)
        together = _cost(np.logaddexp(dS, dS_last), np.logaddexp(dX, dX_last))
    return np.where(np.isneginf(dS), _cost(dS_last, dX_last), np.where(merged, together, apart))


def _cost(dS: Array, dX: Array) -> Array:
    with np.errstate(invalid="ignore"):
        return np.where(np.isneginf(dS), 0.0, np.exp(2 * dS - dX))


def _restarted(c: float, s: float, v: float, steps: int, blocks: int, diameter: float) -> Array:
    """The best restart for every place; full batches search all windows, blocks at most the last 4,096 steps."""
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
    if blocks > MOST_PLACES:  # one restart only, before the last step; the bound is larger, and still a bound
        return np.full(blocks, (c * diameter + s) / math.sqrt(v) * (1 + allowance(1)))
    window = min(steps, 4096)
    shape = np.arange(steps - window, steps) % blocks
    full_c, full_v = np.full(window, c), np.full(window, v)
    return np.array([
        best_restart(full_c, np.where(shape == place, s, 0.0), full_v, diameter) for place in range(blocks)
    ])
