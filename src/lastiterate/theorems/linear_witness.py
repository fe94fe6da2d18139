"""Batches drawn afresh on linear losses: an exact law that no analysis of convex Lipschitz losses can beat.

Every record's loss is 0 but one's, whose gradient has a fixed direction and full length; it is drawn K ~ Bin(T, q)
times. So theta_T is N(k m, 1) with probability Bin(k; T, q) in units of the noise along it, against N(0, 1)
without the record: m = eta L / (b sqrt(T (eta noise_std)^2 + std^2 of the start)). The likelihood ratio increases, so
two thresholds give delta exactly. Source: docs/theorems/linear-witness.
"""

from __future__ import annotations

import math

import numpy as np

from lastiterate.curves.lower_bound import MixturePair
from lastiterate.run.arrays import Array
from lastiterate.run.facts import known
from lastiterate.run.run import Run
from lastiterate.theorems.assumptions.basic import (
    constant_schedule,
    everywhere,
    flat_losses,
    known_noise,
    known_sensitivity,
    no_momentum,
    not_replace_one,
    resampled,
)
from lastiterate.theorems.theorem import Theorem

MOST_ATOMS = 2000
"""Different numbers of draws; further ones are rounded down, which makes the pair harder to distinguish."""


def draws(steps: int, rate: float) -> tuple[Array, Array]:
    """Numbers of draws and their binomial probabilities; what lies beyond 10 standard deviations counts as 0 draws."""
    if rate == 1:
        return np.array([float(steps)]), np.array([1.0])
    reach = 10 * math.sqrt(steps * rate * (1 - rate)) + 40
    low, high = max(0, math.floor(steps * rate - reach)), min(steps, math.ceil(steps * rate + reach))
    count = np.arange(low, high + 1, dtype=np.float64)
    ratio = np.log((steps - count[:-1]) / count[1:]) + math.log(rate) - math.log1p(-rate)
    log_p = np.concatenate(([0.0], np.cumsum(ratio)))
    found = np.exp(log_p - log_p.max())
    width = -(-count.size // MOST_ATOMS)
    starts = np.arange(0, count.size, width)
    found = np.add.reduceat(found, starts) / found.sum() * (1 - 1e-11)
    return np.append(0.0, count[starts]), np.append(1 - found.sum(), found)


def _bound(run: Run) -> MixturePair:
    facts = run.facts()
    sensitivity, lipschitz = known(facts, "sensitivity"), known(facts, "lipschitz")
    rate = run.batching.inclusion_probability(run.n)
    assert sensitivity is not None and rate is not None
    gradient = min(sensitivity.value, math.inf if lipschitz is None else lipschitz.value)
    eta, std = run.first_step, run.first_noise
    start = run.start.std
    spread = math.hypot(math.sqrt(run.steps) * eta * std, start)
    if spread == 0 or gradient == 0:
        return MixturePair.of_one(math.inf if gradient > 0 and rate == 1 else 0.0)
    unit = eta * gradient / run.divisor / spread * (1 - 1e-9)
    count, weights = draws(run.steps, rate)
    return MixturePair(tuple(weights.tolist()), tuple((count * unit).tolist()))


THEOREM = Theorem(
    name="linear-witness",
    kind="lower",
    citation="exact mixture on linear losses (docs/theorems/linear-witness)",
    formula="delta >= H_eps(sum_k Bin(k; T, q) N(k m, 1) || N(0, 1)), "
            "m = L / (b noise_std sqrt(T))",
    assumptions=(known_sensitivity, known_noise, resampled, not_replace_one, no_momentum, everywhere, constant_schedule,
                 flat_losses),
    bound=_bound,
    remark="The worst loss with these constants, not necessarily yours.",
)
