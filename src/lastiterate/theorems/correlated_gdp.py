"""Correlated noise (matrix mechanism): the draws, moved by all contributions of one record together.

mu = s sensitivity / (b noise_std), s^2 = max_j sum_{e, f} |<C_{j+el}, C_{j+fl}>| over the columns of C at the steps of
the record's place j, l blocks in a pass, noise_std of one draw. No entry of C below 0: s = |sum_e C_{el}|, attained.

Source: docs/theorems/correlated-noise (with Denisov et al. 2022, arXiv:2202.08312; Choquette-Choo et al. 2023,
arXiv:2306.08153). Regime: any loss, contributions that depend on everything released before; the batches need not be
secret, and a record takes part at most once in every pass, at the same place. Places that are drawn once are
conditioned on (joint convexity).
"""

from __future__ import annotations

import math

from lastiterate.analysis.matrix_columns import moved_draws
from lastiterate.analysis.shift_allocation import allowance
from lastiterate.curves.gdp import Gdp
from lastiterate.run.correlated_noise import Correlated
from lastiterate.run.facts import known
from lastiterate.run.run import Run
from lastiterate.theorems.assumptions.basic import (
    correlated_noise,
    kept_places,
    known_noise,
    known_sensitivity,
    noisy_steps,
)
from lastiterate.theorems.theorem import Theorem


def correlated_mu(run: Run) -> float:
    """mu of releasing every noisy gradient, for the worst place of the record."""
    sensitivity, noise = known(run.facts(), "sensitivity"), run.noise
    assert sensitivity is not None and isinstance(noise, Correlated)
    if sensitivity.value == 0:
        return 0.0
    if run.first_noise == 0:
        return math.inf
    moved = moved_draws(noise, run.blocks, run.steps)
    return moved * sensitivity.value / (run.divisor * run.first_noise) * (1 + allowance(run.steps))


THEOREM = Theorem(
    name="correlated-gdp",
    kind="upper",
    citation="Denisov, McMahan, Rush, Smith, Thakurta: Improved differential privacy for SGD via optimal private "
             "linear operators on adaptive streams, 2022 (arXiv:2202.08312); Choquette-Choo et al.: (Amplified) banded "
             "matrix factorization, 2023 (arXiv:2306.08153) (docs/theorems/correlated-noise)",
    formula="mu = s sensitivity / (b noise_std), s^2 = max_j sum_{e, f} |<C_{j+el}, C_{j+fl}>|",
    assumptions=(noisy_steps, known_sensitivity, known_noise, correlated_noise, kept_places),
    bound=lambda run: Gdp(correlated_mu(run)),
    remark="Holds for any loss, with momentum, and when all iterates are released. That only the last one is released "
           "buys nothing that anybody has proved.",
)
