"""The exact law on one quadratic: what no analysis of the run's class of losses can beat.

Data terms are linear with a record that pulls in a fixed direction with its full sensitivity, and the curvature is
h = strong everywhere (h = 0: linear losses). Then theta_K is Gaussian with the same covariance for both neighbours:
mu = S_K / sqrt(X_K), S_K = sum over the record's steps of s_u R_u, X_K = sum of v_u R_u^2 (+ R_0^2 std^2 of the start),
R_u = prod over later steps of (1 - eta h). Blocks in public order: the worst place. A secret place: the exact mixture
over places. Source: docs/theorems/quadratic-witness.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lastiterate.analysis.places import place_weights
from lastiterate.curves.curve import Curve
from lastiterate.curves.gdp import Gdp
from lastiterate.curves.lower_bound import HiddenPlace
from lastiterate.run.arrays import Array
from lastiterate.run.facts import known
from lastiterate.run.run import Run
from lastiterate.theorems.assumptions.basic import (
    everywhere,
    known_noise,
    known_sensitivity,
    last_iterate_only,
    no_momentum,
    not_resampled,
)
from lastiterate.theorems.theorem import Assumption, Broken, Held, Theorem


def _idle_clip(run: Run) -> Held | Broken:
    facts = run.facts()
    return Held() if run.clip is None or known(facts, "smooth") is not None else Broken(
        "the witness keeps its gradients below the clip only when clipping leaves the loss as it is")


idle_clip = Assumption("idle_clip", "no clipping that rotates gradients", _idle_clip)
LONGEST = 200_000
"""Steps that are looked at: with h > 0 the earlier ones are forgotten, with h = 0 there is a closed form."""


def witness_mus(run: Run) -> Array:
    """Signed mu of the exact pair on the quadratic of curvature ``strong`` for every place; shape (blocks,)."""
    facts = run.facts()
    sensitivity, strong = known(facts, "sensitivity"), known(facts, "strong")
    assert sensitivity is not None
    h = strong.value if strong is not None else 0.0
    unit = sensitivity.value / run.divisor
    start = run.start.std**2
    if h == 0 and run.constant:
        eta = run.first_step
        met = (run.steps - 1 - np.arange(run.blocks)) // run.blocks + 1  # meetings of each block, 0 if never reached
        variance = run.steps * (eta * run.first_noise) ** 2 + start
        return _ratio(met * eta * unit, variance, noisy=variance > 0)
    if run.steps > LONGEST:
        return np.zeros(run.blocks)  # no statement; a lower bound of zero is always true
    eta, std = run.step_sizes, run.noise_stds
    block = np.arange(run.steps) % run.blocks
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        later = np.cumprod(np.concatenate(([1.0], (1 - eta * h)[::-1])))[::-1]  # R_0, R_1, ..., R_K
        variance = float((((eta * std) * later[1:]) ** 2).sum()) + start * later[0] ** 2
        shift = np.bincount(block, weights=eta * unit * later[1:], minlength=run.blocks)
    return _ratio(shift, variance, noisy=bool(std.any()) or start > 0)


def _ratio(shift: Any, variance: float, *, noisy: bool) -> Array:
    """shift / sqrt(variance); zero (no statement) outside the range of double precision."""
    shift = np.asarray(shift, dtype=np.float64)
    if not noisy:
        return np.asarray(np.where(shift != 0, math.inf, 0.0), dtype=np.float64)
    if not 0 < variance < math.inf:
        return np.zeros(shift.shape)  # pyright: ignore
    return np.asarray(np.where(np.isfinite(shift), shift / math.sqrt(variance), 0.0), dtype=np.float64)


def _bound(run: Run) -> Curve:
    signed = witness_mus(run) * (1 - 1e-9)
    mus = np.abs(signed)
    if run.batching.drawn == "never":
        return Gdp(float(mus.max()))
    if signed.min() < 0 < signed.max():
        return Gdp(0.0)  # places that pull to opposite sides: no statement
    return HiddenPlace(tuple(map(float, place_weights(run.batching, run.n))), tuple(map(float, mus)))


THEOREM = Theorem(
    name="quadratic-witness",
    kind="lower",
    citation="exact Gaussian recursion on a quadratic of the class (docs/theorems/quadratic-witness)",
    formula="mu >= |sum_u s_u R_u| / sqrt(sum_u v_u R_u^2), R_u = prod_{w>u} (1 - eta_w strong)",
    assumptions=(known_sensitivity, known_noise, last_iterate_only, not_resampled, no_momentum, everywhere, idle_clip),
    bound=_bound,
    remark="The worst loss with these constants, not necessarily yours.",
)
