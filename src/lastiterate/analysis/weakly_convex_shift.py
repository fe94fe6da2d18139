"""What the bounds of Kong and Ribero (2025) share: Lipschitz constants of weakly convex steps, and a shift's cost.

Proposition 2.1, as restored in docs/theorems/cyclic-weakly-convex, for Hessians in [-m, M] and step lam:
L_lam^2 = 1 + 2 lam m (1 + m / (2 (M + m))) without clipping, lam <= 1/(M + m); sqrt(2) L_lam with clipping,
lam <= 1/(2 (M + m)). Both hold, and neither is the best constant: shifted-interpolation uses the exact one.
"""

from __future__ import annotations

import math

from lastiterate.analysis.shift_allocation import allowance
from lastiterate.analysis.step_map import StepMap
from lastiterate.run.facts import known
from lastiterate.run.run import Run


def excess(step: float, weak: float, smooth: float) -> float:
    """L_lam^2 - 1 = 2 lam m (1 + m / (2 (M + m))), equation (13)."""
    return 2 * step * weak * (1 + weak / (2 * (smooth + weak))) if weak > 0 else 0.0


def longest_weakly_convex_step(curvature: StepMap) -> float:
    """The longest step that Proposition 2.1 covers: 1/(M + m), or half of it where clips can act.

    A ridge outside the clip shrinks the map to (1 - lam ridge) times a clipped step of length lam / (1 - lam ridge).
    """
    if not curvature.clipped:
        weak, smooth = max(0.0, -(curvature.ridge + curvature.lowest)), max(0.0, curvature.ridge + curvature.highest)
        return 1 / (smooth + weak) if smooth + weak > 0 else math.inf
    total = 2 * (max(0.0, curvature.highest) + max(0.0, -curvature.lowest)) + curvature.ridge
    return 1 / total if total > 0 else math.inf


def log_square(curvature: StepMap, step: float) -> float:
    """log of the squared Lipschitz constant of Proposition 2.1, never below 0."""
    if not curvature.clipped:
        weak, smooth = max(0.0, -(curvature.ridge + curvature.lowest)), max(0.0, curvature.ridge + curvature.highest)
        return math.log1p(excess(step, weak, smooth))
    shrink = 1 - step * curvature.ridge
    if shrink <= 0:  # only where the data term is linear, and then the map is constant
        return 0.0
    inner = excess(step / shrink, max(0.0, -curvature.lowest), max(0.0, curvature.highest))
    return max(0.0, 2 * math.log(shrink) + math.log(2) + math.log1p(inner))


def theta(log_square: float, steps: int) -> float:
    """theta_L(k) = L^(2k-2) / (1 + L^2 + ... + L^(2k-2)), equation (15): the cost of a shift spread over k steps."""
    return math.expm1(-log_square) / math.expm1(-steps * log_square) if log_square > 0 else 1 / steps


def unit_shift(run: Run) -> float:
    """s / sqrt(v) of one step that the record participates in: sensitivity / (b noise_std)."""
    sensitivity, std = known(run.facts(), "sensitivity"), run.first_noise
    assert sensitivity is not None
    unit = sensitivity.value / run.divisor
    return unit / std if std > 0 else (math.inf if unit > 0 else 0.0)


def cyclic_mu(run: Run, log_square: float) -> float:
    """mu for the worst place: mu^2 = (s^2/v) ((E - 1) theta_L(l) + 1), E = ceil(T/l) the passes that were started.

    A record in the block of the last step participates E times, the last time with no step to follow; at every other
    place it participates no more often, and later steps hide it. The longest step allowed is itself rounded, so a map
    may expand by 1 + 2^-52: the allowance grows with the number of steps.
    """
    passes = -(-run.steps // run.blocks)
    mu = unit_shift(run) * math.sqrt((passes - 1) * theta(log_square, run.blocks) + 1)
    return mu * (1 + allowance(run.steps))
