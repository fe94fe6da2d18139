"""mu averaged over places that are drawn anew in every pass, as a curve: what theorems about the last iterate share.

Proofs: docs/theorems/shifted-interpolation-reshuffled, and random-allocation for loads.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from lastiterate.analysis.block_places import block_constants, full_map, place_weights
from lastiterate.analysis.fresh_places import constant_atoms, scheduled_shifts
from lastiterate.analysis.shift_allocation import best_restart, optimal_mu
from lastiterate.analysis.step_map import shrinkage, step_map
from lastiterate.curves.curve import BestOf, Curve
from lastiterate.curves.gdp import Gdp
from lastiterate.curves.mixtures import GdpMixture
from lastiterate.run.batching import Batching
from lastiterate.run.facts import known
from lastiterate.run.run import Run

LONGEST_WINDOW = 4096
"""Steps from the end within which restarts in a bounded domain are looked for, if it holds a pass."""
LONGEST_FOLLOWED = 100_000
"""Steps of a constant run that are followed one by one where the last block of a pass is short."""
FEW_ATOMS = 16
"""Groups where every one of them is a search, or where schedules vary."""


def _mixture(weights: list[float], mus: list[float]) -> GdpMixture:
    return GdpMixture(tuple(weights), tuple(mus))


@lru_cache(maxsize=64)
def _unit_mixture(c: float, s: float, v: float, steps: int, n: int, batching: Batching) -> GdpMixture:
    weights, mus = constant_atoms(c, s, v, steps, place_weights(batching, n))
    return _mixture(weights.tolist(), mus.tolist())


@lru_cache(maxsize=64)
def _unit_restarts(c: float, s: float, v: float, steps: int, n: int, batching: Batching, diameter: float
                   ) -> GdpMixture | None:
    """Shifts restarted at the diameter of the domain, somewhere in the last passes."""
    weights = place_weights(batching, n)
    window = steps - max(steps - LONGEST_WINDOW, 0) // weights.size * weights.size  # begins with a pass
    if window > 2 * LONGEST_WINDOW:
        return None
    full_c, full_v = np.full(window, c), np.full(window, v)
    atoms = list(scheduled_shifts(full_c, np.full(window, s), weights, FEW_ATOMS))
    return _mixture([w for w, _ in atoms], [best_restart(full_c, shifts, full_v, diameter) for _, shifts in atoms])


def _scaled(mixture: GdpMixture, std: float) -> GdpMixture:
    """mu is inversely proportional to the noise, so that a search computes the mixture at noise std 1 once."""
    return GdpMixture(mixture.weights, tuple(mu / std if std > 0 else math.inf if mu > 0 else 0.0
                                             for mu in mixture.mus))


def mean_over_fresh_places(run: Run, shares: tuple[float, float] | None = None) -> Curve:
    """The mean over the places of a record that are drawn anew in every pass, grouped; the best of what is known.

    ``shares``: the fewest and the most records of every batch over the divisor, if not what the run can have at worst.
    """
    curvature, sensitivity = step_map(run, shares), known(run.facts(), "sensitivity")
    assert curvature is not None and sensitivity is not None
    if sensitivity.value == 0:
        return Gdp(0.0)
    delta, diameter = sensitivity.value / run.divisor, run.domain.diameter()
    if not run.constant:
        return _scheduled(run, delta, diameter, shares)
    eta, std = run.first_step, run.first_noise
    k = float(shrinkage(run, np.array([eta]))[0])
    full = full_map(run) if shares is None else curvature
    whole, c, eta = k * full.lipschitz(eta), k * curvature.lipschitz(eta), k * eta
    s, length = eta * delta, (run.steps, run.n, run.batching)
    curves = [_scaled(_unit_mixture(c, s, eta * eta, *length), std)]
    if whole < c and run.steps <= LONGEST_FOLLOWED:  # only the short block is worse
        curves.append(_scheduled(run, delta, math.inf))
    if math.isfinite(diameter):
        restarted = _unit_restarts(c, s, eta * eta, *length, diameter)
        curves += [] if restarted is None else [_scaled(restarted, std)]
    return curves[0] if len(curves) == 1 else BestOf(tuple(curves))


@lru_cache(maxsize=16)
def _scheduled(run: Run, delta: float, diameter: float, shares: tuple[float, float] | None = None) -> GdpMixture:
    """Step by step, for any schedule."""
    curvature, k = step_map(run, shares), shrinkage(run, run.step_sizes)
    assert curvature is not None
    c = block_constants(run) if shares is None else k * curvature.lipschitz_each(run.step_sizes)
    eta = k * run.step_sizes
    v = (eta * run.noise_stds) ** 2
    weights: list[float] = []
    mus: list[float] = []
    for weight, shifts in scheduled_shifts(c, eta * delta, place_weights(run.batching, run.n), FEW_ATOMS):
        mu = optimal_mu(c, shifts, v)
        weights.append(weight)
        mus.append(min(mu, best_restart(c, shifts, v, diameter)) if math.isfinite(diameter) else mu)
    return _mixture(weights, mus)
