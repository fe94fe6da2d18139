"""Averages over secret positions, and how many records fall into secret bins."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from lastiterate.analysis.block_positions import (
    block_constants,
    constant_atoms,
    full_map,
    merge_places,
    place_mus,
    place_weights,
    shifts_of_schedule,
)
from lastiterate.analysis.shifts import best_restart, optimal_mu
from lastiterate.analysis.step_map import find_known_map, shrinkage
from lastiterate.curves.curve import BestOf, Curve, WithFailure
from lastiterate.curves.gaussian import Gdp, GdpMixture
from lastiterate.run.adjacency import records_moved
from lastiterate.run.batching import Batching
from lastiterate.run.facts import require_fact
from lastiterate.run.run import Run

# mu averaged over positions that are drawn again in every pass, as a curve: shared by the theorems
# about the last iterate.  Proofs: docs/theorems/shifted-interpolation-reshuffled, and
# random-allocation for loads.

LONGEST_WINDOW = 4096
"""Steps from the end within which restarts in a bounded domain are looked for, if it holds a pass.
"""
LONGEST_FOLLOWED = 100_000
"""Steps of a constant run that are followed one by one where the last block of a pass is short."""
FEW_ATOMS = 16
"""Groups where every one of them is a search, or where schedules vary."""


def _mixture(weights: list[float], mus: list[float]) -> GdpMixture:
    return GdpMixture(tuple(weights), tuple(mus))


@lru_cache(maxsize=64)
def _unit_mixture(
    c: float, s: float, v: float, steps: int, n: int, batching: Batching
) -> GdpMixture:
    weights, mus = constant_atoms(c, s, v, steps, place_weights(batching, n))
    return _mixture(weights.tolist(), mus.tolist())


@lru_cache(maxsize=64)
def _unit_restarts(
    c: float, s: float, v: float, steps: int, n: int, batching: Batching, diameter: float
) -> GdpMixture | None:
    """Shifts restarted at the diameter of the domain, somewhere in the last passes."""
    weights = place_weights(batching, n)
    window = (
        steps - max(steps - LONGEST_WINDOW, 0) // weights.size * weights.size
    )  # begins with a pass
    if window > 2 * LONGEST_WINDOW:
        return None
    full_c, full_v = np.full(window, c), np.full(window, v)
    atoms = list(shifts_of_schedule(full_c, np.full(window, s), weights, FEW_ATOMS))
    return _mixture(
        [w for w, _ in atoms],
        [best_restart(full_c, shifts, full_v, diameter) for _, shifts in atoms],
    )


def _scale_noise(mixture: GdpMixture, std: float) -> GdpMixture:
    """mu is inversely proportional to the noise, so that a search computes the mixture at noise std
    1 once."""
    return GdpMixture(
        mixture.weights,
        tuple(mu / std if std > 0 else math.inf if mu > 0 else 0.0 for mu in mixture.mus),
    )


def mean_over_fresh_places(run: Run, shares: tuple[float, float] | None = None) -> Curve:
    """Return the mean over a record's positions, drawn again in every pass and grouped: the best
    known curve.

    ``shares``: the fewest and the most records of every batch over the divisor, if not what the run
    can have at worst.
    """
    curvature, sensitivity = find_known_map(run, shares), require_fact(run.facts(), "sensitivity")
    if sensitivity.value == 0:
        return Gdp(0.0)
    delta, diameter = sensitivity.value / run.divisor, run.domain.diameter()
    if not run.constant:
        return _bound_schedule(run, delta, diameter, shares)
    eta, std = run.first_step, run.first_noise
    k = float(shrinkage(run, np.array([eta]))[0])
    full = full_map(run) if shares is None else curvature
    whole, c, eta = k * full.lipschitz(eta), k * curvature.lipschitz(eta), k * eta
    s, length = eta * delta, (run.steps, run.n, run.batching)
    curves = [_scale_noise(_unit_mixture(c, s, eta * eta, *length), std)]
    if whole < c and run.steps <= LONGEST_FOLLOWED:  # only the short block is worse
        curves.append(_bound_schedule(run, delta, math.inf))
    if math.isfinite(diameter):
        restarted = _unit_restarts(c, s, eta * eta, *length, diameter)
        curves += [] if restarted is None else [_scale_noise(restarted, std)]
    return curves[0] if len(curves) == 1 else BestOf(tuple(curves))


@lru_cache(maxsize=16)
def _bound_schedule(
    run: Run, delta: float, diameter: float, shares: tuple[float, float] | None = None
) -> GdpMixture:
    """Step by step, for any schedule."""
    curvature, k = find_known_map(run, shares), shrinkage(run, run.step_sizes)
    c = block_constants(run) if shares is None else k * curvature.lipschitz_each(run.step_sizes)
    eta = k * run.step_sizes
    v = (eta * run.noise_stds) ** 2
    weights: list[float] = []
    mus: list[float] = []
    for weight, shifts in shifts_of_schedule(
        c, eta * delta, place_weights(run.batching, run.n), FEW_ATOMS
    ):
        mu = optimal_mu(c, shifts, v)
        weights.append(weight)
        mus.append(min(mu, best_restart(c, shifts, v, diameter)) if math.isfinite(diameter) else mu)
    return _mixture(weights, mus)


# How many records fall into secret bins: what holds for all bins at once except with a stated
# probability.  The other records' bins are independent and uniform, so a bin holds Bin(n - 1, 1/l)
# of them. Proof that maps may count with such loads: docs/theorems/balls-in-bins.

FAILURES = (0.0, 1e-30, 1e-20, 1e-15, 1e-12, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3)
"""Probabilities that some bin's load is outside of its range; the first one costs nothing and says
nothing."""
FEW = (0.0, 1e-20, 1e-10, 1e-7)
"""The same where every position of every schedule is a computation of its own."""


def usual_loads(others: int, bins: int, failure: float, times: int = 1) -> tuple[int, int]:
    """The fewest and the most of ``others`` records in each of ``bins`` bins, each of the ``times``
    that they are drawn, except with probability ``failure``."""
    return usual_counts(others, 1 / bins, failure, bins * times)


@lru_cache(maxsize=512)
def usual_counts(others: int, chance: float, failure: float, draws: int) -> tuple[int, int]:
    """The fewest and the most of ``others`` records, each there with probability ``chance``, in
    each of ``draws`` batches, except with probability ``failure``.

    Exact binomial tails (incomplete beta functions, enlarged for their rounding), half of
    ``failure`` for each end, shared by all batches (union bound).
    """
    if failure == 0 or others == 0:
        return 0, others
    each = failure / (2 * draws) * (1 - 1e-6)
    most = _first(lambda k: _more_than(others, chance, k) <= each, others)
    fewest = others - _first(lambda k: _more_than(others, 1 - chance, k) <= each, others)
    return fewest, most


def _more_than(trials: int, chance: float, count: int) -> float:
    """P[Bin(trials, chance) > count]."""
    from scipy.special import betainc  # pyright: ignore

    return 0.0 if count >= trials else float(betainc(count + 1, trials - count, chance))


def _first(holds: Callable[[int], bool], most: int) -> int:
    """Return the least integer from which ``holds`` is true, given that it is true at ``most``."""
    low, high = -1, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def mean_over_bins(run: Run, failures: tuple[float, ...] = ()) -> Curve:
    """delta(eps) <= (1/l) sum_j delta_{mu_j}(eps) + failure, mu_j for a record in bin j and loads
    that are usual.

    The best of several ``failures``.
    """
    weights = place_weights(run.batching, run.n)

    def mixture(shares: tuple[float, float]) -> GdpMixture:
        chances, mus = merge_places(weights, place_mus(run, shares), up=True)
        return GdpMixture(tuple(chances.tolist()), tuple(mus.tolist()))

    return _best(run, failures, 1, mixture)


def mean_over_fresh_blocks(run: Run, failures: tuple[float, ...] = ()) -> Curve:
    """Return the same where all records draw their blocks again in every pass: the loads of all
    passes are usual."""
    passes = -(-run.steps // run.blocks)
    return _best(run, failures, passes, lambda shares: mean_over_fresh_places(run, shares))


def _best(
    run: Run, failures: tuple[float, ...], times: int, curve: Callable[[tuple[float, float]], Curve]
) -> Curve:
    """The best over ``failures`` of the curve for usual loads, except with the probability that
    they are not.

    One map of each pair must have the constants, and without the record it has the other records'
    alone. Under replace-one both maps of the record's own bin hold one more, and every other bin
    the others alone.
    """
    own = records_moved(run.adjacency) - 1
    by_maps: dict[Any, Curve] = {}
    for failure in failures or (FAILURES if run.constant else FEW):
        fewest, most = usual_loads(run.n - 1, run.blocks, failure, times)
        shares = (fewest / run.divisor, (most + own) / run.divisor)
        step = find_known_map(run, shares)
        maps = step.lipschitz(run.first_step) if run.constant else shares
        if maps not in by_maps:  # a larger failure that buys nothing is left out
            by_maps[maps] = WithFailure(curve(shares), failure) if failure else curve(shares)
    curves = tuple(by_maps.values())
    return curves[0] if len(curves) == 1 else BestOf(curves)
