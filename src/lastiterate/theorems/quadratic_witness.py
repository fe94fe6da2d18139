"""The exact law on one quadratic: what no analysis of the run's class of losses can beat.

Data terms are linear with a record that pulls in a fixed direction with its full sensitivity, and the curvature is
h = strong everywhere (h = 0: linear losses). Then theta_K is Gaussian with the same covariance for both neighbours:
mu = S_K / sqrt(X_K), S_K = sum over the record's steps of s_u R_u, X_K = sum of v_u R_u^2 (+ R_0^2 std^2 of the start),
R_u = prod over later steps of (1 - eta h). Blocks in public order: the worst place. Source: elementary; PROOFS A3.
"""

from __future__ import annotations

import math

import numpy as np

from lastiterate.assumptions import (
    everywhere,
    known,
    known_noise,
    known_sensitivity,
    last_iterate_only,
    no_momentum,
    public_order,
)
from lastiterate.curve import Gdp
from lastiterate.run import Run
from lastiterate.schedules import GaussianStart
from lastiterate.theorem import Assumption, Broken, Held, Theorem


def _idle_clip(run: Run) -> Held | Broken:
    facts = run.facts()
    return Held() if run.clip is None or known(facts, "smooth") is not None else Broken(
        "the witness keeps its gradients below the clip only when clipping leaves the loss as it is")


idle_clip = Assumption("idle_clip", "no clipping that rotates gradients", _idle_clip)
LONGEST = 200_000
"""Steps that are looked at: with h > 0 the earlier ones are forgotten, with h = 0 there is a closed form."""


def witness_mu(run: Run) -> float:
    """mu of the exact pair on the quadratic of curvature ``strong``, for the worst place of the record."""
    facts = run.facts()
    sensitivity, strong = known(facts, "sensitivity"), known(facts, "strong")
    assert sensitivity is not None
    h = strong.value if strong is not None else 0.0
    unit = sensitivity.value / run.divisor
    start = run.start.std**2 if isinstance(run.start, GaussianStart) else 0.0
    if h == 0 and run.constant:
        eta, met = run.step_size.at(0), -(-run.steps // run.blocks)
        variance = run.steps * (eta * run.noise_std(0)) ** 2 + start
        shift = met * eta * unit
        return shift / math.sqrt(variance) if variance > 0 else math.inf if shift > 0 else 0.0
    if run.steps > LONGEST:
        return 0.0  # no statement; a lower bound of zero is always true
    eta = np.array([run.step_size.at(step) for step in range(run.steps)])
    std = np.array([run.noise_std(step) for step in range(run.steps)])
    block = np.arange(run.steps) % run.blocks
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        later = np.cumprod(np.concatenate(([1.0], (1 - eta * h)[::-1])))[::-1]  # R_0, R_1, ..., R_K
        variance = float((((eta * std) * later[1:]) ** 2).sum()) + start * later[0] ** 2
        shift = float(np.abs(np.bincount(block, weights=eta * unit * later[1:])).max())
    if not std.any() and start == 0:
        return math.inf if shift > 0 else 0.0
    # out of double precision's range: no statement
    return shift / math.sqrt(variance) if 0 < variance < math.inf and math.isfinite(shift) else 0.0


THEOREM = Theorem(
    name="quadratic-witness",
    kind="lower",
    citation="exact Gaussian recursion on a quadratic of the class (docs/theorems/quadratic-witness)",
    formula="mu >= |sum_u s_u R_u| / sqrt(sum_u v_u R_u^2), R_u = prod_{w>u} (1 - eta_w strong)",
    assumptions=(known_sensitivity, known_noise, last_iterate_only, public_order, no_momentum, everywhere, idle_clip),
    bound=lambda run: Gdp(witness_mu(run) * (1 - 1e-9)),
    remark="The worst loss with these constants, not necessarily yours.",
)
