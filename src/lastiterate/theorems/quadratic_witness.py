"""The exact law on one quadratic: what no analysis of the run's class of losses can beat.

Data terms are linear with a record whose gradient is constant and as long as the constants allow, and the curvature is
h = strong everywhere (h = 0: linear losses). Then theta_K is Gaussian with the same covariance for both neighbours:
mu = S_K / sqrt(X_K), S_K = sum over the record's steps of s_u R_u, X_K = sum of v_u R_u^2 (+ R_0^2 std^2 of the start),
R_u = prod over later steps of (1 - eta h). Blocks in public order: the worst place. A secret place: the exact mixture
over places. Curvature that is not a ridge may sit in the records, and a short last block has less of it: both readings
are computed, and the smaller mu of every place counts. Source: docs/theorems/quadratic-witness.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from lastiterate.analysis.block_places import MOST_MERGED, merged, place_weights
from lastiterate.analysis.witness_losses import curvature, geometric, largest_gradient, power, signed_log
from lastiterate.curves.lower_bound import Largest, LowerBound, MixturePair
from lastiterate.run.arrays import Array
from lastiterate.run.run import Run
from lastiterate.theorems.assumptions.basic import (
    NOISY_STEPS,
    everywhere,
    last_iterate_only,
    not_averaged,
    not_resampled,
    plain_updates,
    released_as_left,
)
from lastiterate.theorems.assumptions.witness import idle_clip, public_curvature
from lastiterate.theorems.theorem import Theorem

LONGEST = 200_000
"""Steps of a varying schedule, or of one with a short block, that are looked at."""


def witness_mus(run: Run) -> Array:
    """Signed mu of the exact pair for every place, the neighbour having no such record; shape (blocks,)."""
    ridge, inside = curvature(run)
    everywhere_alike = _mus(run, np.full(run.blocks, ridge + inside))
    if inside == 0 or run.shares[0] == 1:
        return everywhere_alike
    shares = np.ones(run.blocks)
    shares[-1] = run.shares[0]
    in_records = _mus(run, ridge + inside * shares)
    both = np.concatenate((in_records, everywhere_alike))
    if run.batching.drawn == "once" and both.min() < 0 < both.max():
        return np.zeros(run.blocks)  # which of two is harder to see depends on the other places: no statement
    return np.minimum(np.abs(in_records), np.abs(everywhere_alike))


def _mus(run: Run, bends: Array) -> Array:
    """mu of every place where the steps on block j are 1 - eta bends[j]."""
    unit, start = largest_gradient(run).ahead / run.divisor, run.start.std**2
    if run.constant and (bends == bends[0]).all():
        return _constant_mus(run, float(bends[0]), unit, start)
    if run.steps > LONGEST:
        return np.zeros(run.blocks)  # no statement; a lower bound of zero is always true
    eta, std = run.step_sizes, run.noise_stds
    block = np.arange(run.steps) % run.blocks
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        later = np.cumprod(np.concatenate(([1.0], (1 - eta * bends[block])[::-1])))[::-1]  # R_0, R_1, ..., R_K
        variance = float((((eta * std) * later[1:]) ** 2).sum()) + start * later[0] ** 2
        shift = np.bincount(block, weights=eta * unit * later[1:], minlength=run.blocks)
    return _ratio(shift, variance, noisy=bool(std.any()) or start > 0)


def _constant_mus(run: Run, bend: float, unit: float, start: float) -> Array:
    """The same in closed form: R_u = r^(K-u), r = 1 - eta bend."""
    eta, std = run.first_step, run.first_noise
    places = np.arange(run.blocks)
    participations = np.maximum((run.steps - 1 - places) // run.blocks + 1, 0)  # 0 if never
    # steps after the last of them
    tail = np.where(participations > 0, run.steps - 1 - places - (participations - 1) * run.blocks, 0)
    if eta * bend >= 1 and run.steps > LONGEST:
        return np.zeros(run.blocks)  # next to r = -1 powers are not known well enough
    with np.errstate(divide="ignore", over="ignore", invalid="ignore", under="ignore"):
        sign, rate = signed_log(eta * bend)
        decayed = power(sign, rate, tail) * geometric(sign**run.blocks, rate * run.blocks, participations)
        variance = (eta * std) ** 2 * geometric(1, 2 * rate, np.array([run.steps]))
        variance += start * power(1, 2 * rate, np.array([run.steps]))
    return _ratio(decayed * eta * unit, float(variance[0]), noisy=std > 0 or start > 0)


def _ratio(shift: ArrayLike, variance: float, *, noisy: bool) -> Array:
    """shift / sqrt(variance); zero (no statement) outside the range of double precision."""
    shift = np.asarray(shift, dtype=np.float64)
    if not noisy:
        return np.asarray(np.where(shift != 0, math.inf, 0.0), dtype=np.float64)
    if not 0 < variance < math.inf:
        return np.zeros(shift.shape)  # pyright: ignore
    return np.asarray(np.where(np.isfinite(shift), shift / math.sqrt(variance), 0.0), dtype=np.float64)


def _bound(run: Run) -> LowerBound:
    mus, opposed = witness_mus(run), largest_gradient(run).opposed
    if run.batching.drawn == "never":
        return MixturePair((1.0,), (float(np.abs(mus).max()),), opposed)
    sides = [sign * mus for sign in (1, -1) if (sign * mus > 0).any()]
    if len(sides) > 1 and mus.size > MOST_MERGED:
        return MixturePair.of_one(0.0)  # many places that shift to opposite sides: no statement
    pairs = [merged(place_weights(run.batching, run.n), side, up=False) for side in sides]
    mixtures = [MixturePair(tuple(weights.tolist()), tuple(mu.tolist()), opposed) for weights, mu in pairs]
    return mixtures[0] if len(mixtures) == 1 else Largest(tuple(mixtures)) if mixtures else MixturePair.of_one(0.0)


THEOREM = Theorem(
    name="quadratic-witness",
    kind="lower",
    citation="exact Gaussian recursion on a quadratic of the class (docs/theorems/quadratic-witness)",
    formula="mu >= |sum_u s_u R_u| / sqrt(sum_u v_u R_u^2), R_u = prod_{w>u} (1 - eta_w strong)",
    assumptions=(*NOISY_STEPS, last_iterate_only, not_resampled, plain_updates, not_averaged, released_as_left,
                 everywhere, idle_clip, public_curvature),
    bound=_bound,
    remark="The worst loss with these constants, not necessarily yours.",
)
