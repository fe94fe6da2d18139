"""Secret independent bins by their exact pair, whatever is released: the record hides among the bins.

P = (1/l) sum_j N(a_j e_j, I) against Q = N(0, I), both orders, a_j^2 = sum over the steps of bin j of (sensitivity /
(b noise_std_t))^2. The likelihood ratio is the mean of l independent lognormal factors; its law is computed on grids
rounded to the safe side.

Source: docs/theorems/balls-in-bins. Regime: any loss, any schedule (many different noises are rounded down to a few);
zero-out. Attained by linear losses when all iterates are released.
"""

from __future__ import annotations

import math

import numpy as np

from lastiterate.analysis.shift_allocation import allowance
from lastiterate.curves.curve import Curve
from lastiterate.curves.gdp import Gdp
from lastiterate.curves.secret_bins import SecretBins
from lastiterate.run.facts import known
from lastiterate.run.run import Run
from lastiterate.theorems.assumptions.basic import (
    NOISY_STEPS,
    not_replace_one,
    secret_bins,
)
from lastiterate.theorems.theorem import Theorem


def strengths(run: Run) -> tuple[tuple[float, int], ...]:
    """(a, bins of this strength): the root of the sum of squared signal-to-noise ratios of a bin's steps."""
    sensitivity = known(run.facts(), "sensitivity")
    assert sensitivity is not None
    unit, up = sensitivity.value / run.divisor, 1 + allowance(run.steps)
    if unit == 0:
        return ((0.0, run.blocks),)
    if run.constant:
        std = run.first_noise
        passes, more = divmod(run.steps, run.blocks)
        groups = ((passes, run.blocks - more), (passes + 1, more))
        return tuple((math.sqrt(used) * unit / std * up if std > 0 else math.inf if used else 0.0, count)
                     for used, count in groups if count)
    with np.errstate(divide="ignore"):
        charges = (unit / run.noise_stds) ** 2
    each = np.bincount(np.arange(run.steps) % run.blocks, weights=charges, minlength=run.blocks)
    values, counts = np.unique(np.sqrt(each) * up, return_counts=True)
    return tuple(zip(values.tolist(), counts.tolist(), strict=True))


def _bound(run: Run) -> Curve:
    bins = strengths(run)
    if max(a for a, _ in bins) == 0:
        return Gdp(0.0)
    return SecretBins(tuple(a for a, _ in bins), tuple(count for _, count in bins))


THEOREM = Theorem(
    name="balls-in-bins-pld",
    kind="upper",
    citation="this project, docs/theorems/balls-in-bins",
    formula="delta(eps) = H_eps((1/l) sum_j N(a_j e_j, I) || N(0, I)), the larger of both orders, a_j^2 = sum over the "
            "steps of bin j of (sensitivity / (b noise_std))^2",
    assumptions=(*NOISY_STEPS, secret_bins, not_replace_one),
    bound=_bound,
    remark="Holds for any loss, with momentum, and when all iterates are released.",
)
