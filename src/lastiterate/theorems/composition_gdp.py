"""Composition of Gaussian mechanisms: every step is charged, whatever is released and however steps are combined.

mu^2 = max over the record's place of the sum, over the steps that it participates in, of
(sensitivity / (b noise_std_k))^2.

Source: Dong, Roth and Su 2022, Theorem 3.2 and Corollary 3.3 (composition of mu-GDP mechanisms). A record participates
once per pass by blocks (anywhere in the pass, where every pass is drawn anew); batches drawn at every step are
conditioned on (joint convexity) and charged at every step, without amplification by sampling.
Proof: docs/theorems/composition.
"""

from __future__ import annotations

import math

import numpy as np

from lastiterate.analysis.shift_allocation import allowance
from lastiterate.curves.gdp import Gdp
from lastiterate.run.facts import known
from lastiterate.run.run import Run
from lastiterate.theorems.assumptions.basic import NOISY_STEPS
from lastiterate.theorems.theorem import Theorem


def composition_mu(run: Run) -> float:
    """mu of releasing every noisy gradient, for the worst place of the record."""
    sensitivity = known(run.facts(), "sensitivity")
    assert sensitivity is not None
    unit = sensitivity.value / run.divisor
    if run.constant:
        participations, std = -(-run.steps // run.blocks), run.first_noise
        charge = math.inf if std == 0 and unit > 0 else participations * (unit / std) ** 2 if unit > 0 else 0.0
    else:
        with np.errstate(divide="ignore"):
            charges = (unit / run.noise_stds) ** 2 if unit > 0 else np.zeros(run.steps)
        if run.batching.drawn == "each pass":  # the place is another one in every pass
            charge = np.maximum.reduceat(charges, np.arange(0, run.steps, run.blocks)).sum()
        else:
            charge = np.bincount(np.arange(run.steps) % run.blocks, weights=charges).max()
    return math.sqrt(charge) * (1 + allowance(run.steps))


THEOREM = Theorem(
    name="composition-gdp",
    kind="upper",
    citation="Dong, Roth, Su: Gaussian differential privacy, JRSSB 84 (2022), Theorem 3.2, Corollary 3.3 "
             "(docs/theorems/composition)",
    formula="mu^2 = sum over the record's steps of (sensitivity / (b noise_std))^2, worst place",
    assumptions=NOISY_STEPS,
    bound=lambda run: Gdp(composition_mu(run)),
    remark="Holds for any loss, with momentum, and when all iterates are released.",
)
