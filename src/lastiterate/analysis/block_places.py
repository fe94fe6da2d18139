"""mu of the last iterate for every place that a record can have in the order of the batches."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from lastiterate.analysis.constant_shift import constant_mus
from lastiterate.analysis.fresh_places import latest_shift
from lastiterate.analysis.shift_allocation import best_restart, optimal_mu
from lastiterate.analysis.step_map import StepMap, shrinkage, step_map
from lastiterate.run.arrays import Array
from lastiterate.run.batching import Batching
from lastiterate.run.facts import known
from lastiterate.run.run import Run


@lru_cache(maxsize=256)
def _unit_mus(c: float, steps: int, blocks: int, diameter: float) -> Array:
    """``constant_mus`` for shifts and noise of size 1 and a diameter in units of the shift: mu is proportional to the
    shift and inversely to the noise, so that a search computes this once."""
    return constant_mus(c, 1.0, 1.0, steps, blocks, diameter)


MOST_WORK = 2_000_000
"""Steps times places up to which a constant schedule with a short block is followed block by block; a fiftieth of it
where restarts are searched as well."""


@lru_cache(maxsize=64)
def place_mus(run: Run, shares: tuple[float, float] | None = None) -> Array:
    """mu for a record in block 0, ..., run.blocks - 1, by the optimal shift allocation; shape (blocks,).

    ``shares``: the fewest and the most records of every batch over the divisor, if not what the run can have at worst.
    """
    curvature, sensitivity = step_map(run, shares), known(run.facts(), "sensitivity")
    assert curvature is not None and sensitivity is not None
    delta, diameter = sensitivity.value / run.divisor, run.domain.diameter()
    full = full_map(run) if shares is None else curvature
    if run.constant:
        eta = run.first_step
        k = float(shrinkage(run, np.array([eta]))[0])
        whole, any_block, eta = k * full.lipschitz(eta), k * curvature.lipschitz(eta), k * eta
        s = eta * delta
        if s == 0:
            return np.zeros(run.blocks)
        unit = _unit_mus(any_block, run.steps, run.blocks, diameter / s) * (s / eta)
        work = run.steps * run.blocks * (50 if math.isfinite(diameter) else 1)
        if whole < any_block and work <= MOST_WORK:  # both bounds hold for every place
            unit = np.minimum(unit, _unit_by_block(whole, any_block, s, eta, run.steps, run.blocks, diameter))
        std = run.first_noise
        return unit / std if std > 0 else np.where(unit > 0, np.inf, 0.0)
    eta = run.step_sizes
    k = shrinkage(run, eta)
    c = block_constants(run) if shares is None else k * curvature.lipschitz_each(eta)
    return _each_place(c, k * eta * delta, (k * eta * run.noise_stds) ** 2, run.blocks, diameter)


def full_map(run: Run) -> StepMap:
    """What is known about the map of a full block; all that is known about a short last one is ``step_map(run)``."""
    curvature = step_map(run, (1.0, 1.0) if run.batching.sizes == "last shorter" else None)
    assert curvature is not None
    return curvature


def block_constants(run: Run) -> Array:
    """The Lipschitz constant of every step, its proximal map included; shape (steps,)."""
    short, c = step_map(run), full_map(run).lipschitz_each(run.step_sizes)
    assert short is not None
    last = slice(run.blocks - 1, None, run.blocks)
    c[last] = short.lipschitz_each(run.step_sizes[last])
    return c * shrinkage(run, run.step_sizes)


@lru_cache(maxsize=64)
def _unit_by_block(full: float, last: float, s: float, eta: float, steps: int, blocks: int, diameter: float) -> Array:
    """mu at noise std 1 for a constant schedule whose last block has its own Lipschitz constant."""
    c = np.where(np.arange(steps) % blocks == blocks - 1, last, full)
    return _each_place(c, np.full(steps, s), np.full(steps, eta * eta), blocks, diameter)


def _each_place(c: Array, s: Array, v: Array, blocks: int, diameter: float) -> Array:
    """mu of every place, step by step; where that is too much work, of groups of places, each at its worst."""
    mus = np.zeros(blocks)  # a block that the run never reaches leaks nothing
    reached = min(blocks, c.size)
    searched = 50 if math.isfinite(diameter) else 1
    few = max(FEWEST_GROUPS, MOST_FOLLOWED // (c.size * searched))
    for first, last in _groups(reached, (c.size - 1) % blocks + 1, few):
        shifts = np.zeros(c.size)
        if first == last:
            shifts[first::blocks] = s[first::blocks]
        for begin in range(0, c.size - first, blocks) if first < last else ():
            at = min(begin + last, c.size - 1)
            shifts[at] = latest_shift(c, s, begin + first, at)
        mu = optimal_mu(c, shifts, v)
        mus[first : last + 1] = min(mu, best_restart(c, shifts, v, diameter)) if math.isfinite(diameter) else mu
    return mus


MOST_FOLLOWED, FEWEST_GROUPS = 20_000_000, 64
"""Steps times places (a fiftieth where restarts are searched) up to which places are followed alone; fewest groups."""


def _groups(reached: int, end: int, most: int) -> list[tuple[int, int]]:
    """First and last place of at most about ``most`` groups of places 0 .. reached - 1, finer before the places where
    the run and its passes end: a group counts with its last place (docs/theorems/shifted-interpolation-reshuffled)."""
    if reached <= most:
        return [(place, place) for place in range(reached)]
    near = np.geomspace(1, reached + 1, most // 3 + 1) - 1
    edges = np.concatenate((np.linspace(0, reached, most // 3 + 1), reached - near, end - near))
    cuts = sorted({0, reached, *np.round(edges[edges > 0]).astype(int).tolist()})
    return [(first, after - 1) for first, after in pairwise(cuts)]


def place_weights(batching: Batching, n: int) -> Array:
    """Probability of each block for one record, where its place is secret; shape (blocks,)."""
    weights = batching.place_probabilities(n)
    assert weights is not None
    return weights


MOST_MERGED, PER_OCTAVE = 4096, 1024
"""Places up to which every one is kept, and the marks that mus are rounded to, beyond, whenever mu doubles."""


def merged(weights: Array, mus: Array, *, up: bool) -> tuple[Array, Array]:
    """The mixture over places with few different mus: at most ``PER_OCTAVE`` of them whenever mu doubles.

    With more than ``MOST_MERGED`` places mus >= 0 are rounded up (or down) to marks that do not depend on the run, by
    less than 0.07 %, so that a larger mu never becomes a smaller one. A larger mu dominates: delta_mu grows with mu.
    """
    if mus.size <= MOST_MERGED:
        return weights, mus
    apart = (mus == 0) | np.isinf(mus)
    sums: list[float] = [math.fsum(weights[mus == value]) for value in (0.0, math.inf)]
    marks = [0.0, math.inf]
    if not apart.all():
        exact: Array = np.log2(mus[~apart]) * PER_OCTAVE
        level = (np.ceil(exact + 1e-6) if up else np.floor(exact - 1e-6)).astype(np.int64)
        low = int(level.min())
        sums += _sums(level - low, weights[~apart]).tolist()
        marks += np.exp2(np.arange(low, int(level.max()) + 1) / PER_OCTAVE).tolist()
    total, mu = np.array(sums), np.array(marks)
    return total[total > 0], mu[total > 0]


def _sums(level: NDArray[np.int64], weights: Array) -> Array:
    """The sums of the weights on every level; all blocks but the last are alike, so that few roundings happen."""
    alike = weights == weights[0]
    sums: Array = np.bincount(level[alike], minlength=int(level.max()) + 1) * np.float64(weights[0])
    np.add.at(sums, level[~alike], weights[~alike])
    return sums
