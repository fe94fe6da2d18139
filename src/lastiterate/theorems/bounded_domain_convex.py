"""Full batches, convex and smooth, a bounded domain: more iterations without more privacy loss.

mu^2 = min(T s^2/v, min over 1 <= k <= T of (D + k s)^2/(k v)), s = eta sensitivity/n, v = (eta noise_std)^2, D the
diameter: the last k steps absorb what the domain lets the states differ by, and their own shifts. epsilon(alpha) =
alpha mu^2/2. The minimum lies at a neighbour of k = D/s, where it is about 4 D s/v: alpha (2 D L)/(eta n noise_std^2)
times two under replace-one, whatever T.

Source: Altschuler and Talwar 2022, Theorem 3.1 for full batches (there up to constants); with these constants by a
restart in docs/theorems/shifted-interpolation. Regime: step <= 2/smooth. The longest step allowed is itself rounded, so
a map may expand by 1 + 2^-52: the allowance grows with the number of steps that count.
"""

from __future__ import annotations

import math

from lastiterate.analysis.shift_allocation import allowance
from lastiterate.analysis.weakly_convex_shift import unit_shift
from lastiterate.curves.gdp import Gdp
from lastiterate.run.run import Run
from lastiterate.theorems.assumptions.basic import (
    NOISY_STEPS,
    bounded_domain,
    constant_schedule,
    full_batch,
    last_iterate_only,
    not_averaged,
    plain_updates,
)
from lastiterate.theorems.assumptions.geometry import convex, nonexpansive_step
from lastiterate.theorems.theorem import Theorem


def _bound(run: Run) -> Gdp:
    shift, std = unit_shift(run), run.first_noise
    if shift == 0 or std == 0:
        return Gdp(shift)
    apart = run.domain.diameter() / (run.first_step * std)

    def restarted(k: int) -> float:
        return (apart + k * shift) / math.sqrt(k) * (1 + allowance(k))

    # (D + k s)^2 / k is convex in k with its least value at D / s; any whole number is a valid k
    whole = min(run.steps, max(1, math.floor(apart / shift)))
    unbounded = math.sqrt(run.steps) * shift * (1 + allowance(run.steps))
    return Gdp(min(unbounded, restarted(whole), restarted(min(run.steps, whole + 1))))


THEOREM = Theorem(
    name="bounded-domain-convex",
    kind="upper",
    citation="Altschuler, Talwar: Privacy of noisy stochastic gradient descent: more iterations without more privacy "
             "loss, NeurIPS 2022 (arXiv:2205.13710), full batch (constants by docs/theorems/shifted-interpolation)",
    formula="mu^2 = min(T s^2, min_k (D + k s)^2 / k) / v; epsilon(alpha) = alpha mu^2 / 2",
    assumptions=(*NOISY_STEPS, last_iterate_only, full_batch, plain_updates, not_averaged, constant_schedule,
                 bounded_domain, convex, nonexpansive_step),
    bound=_bound,
    remark="D is the diameter, not the radius.",
)
