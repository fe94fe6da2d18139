"""Composition: every step is charged, whatever is released."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from lastiterate.analysis.shifts import allowance, linear, shift_in_draws, signal_to_noise
from lastiterate.curves.gaussian import Gdp
from lastiterate.run.facts import require_fact
from lastiterate.run.noise import Correlated
from lastiterate.run.run import Run
from lastiterate.theorems.assumptions import (
    NOISY_STEPS,
    correlated_noise,
    kept_places,
    known_noise,
    known_sensitivity,
    noisy_steps,
)
from lastiterate.theorems.diffusion_assumptions import LANGEVIN_ALGORITHM, LANGEVIN_PAPER
from lastiterate.theorems.theorem import EXAMPLE, EXAMPLE_FULL_BATCH, Theorem, register


def composition_mu(run: Run) -> float:
    """mu of releasing every noisy gradient, for the worst place of the record."""
    sensitivity = require_fact(run.facts(), "sensitivity")
    unit = sensitivity.value / run.divisor
    if run.constant:
        participations, std = -(-run.steps // run.blocks), run.first_noise
        charge = (
            math.inf
            if std == 0 and unit > 0
            else participations * (unit / std) ** 2
            if unit > 0
            else 0.0
        )
    else:
        with np.errstate(divide="ignore"):
            charges = (unit / run.noise_stds) ** 2 if unit > 0 else np.zeros(run.steps)
        if run.batching.drawn == "each pass":  # the position is another one in every pass
            charge = np.maximum.reduceat(charges, np.arange(0, run.steps, run.blocks)).sum()
        else:
            charge = np.bincount(np.arange(run.steps) % run.blocks, weights=charges).max()
    return math.sqrt(charge) * (1 + allowance(run.steps))


COMPOSITION_GDP = register(
    Theorem(
        name="composition-gdp",
        kind="upper",
        family="composition",
        statement="""
Composition of Gaussian mechanisms: every step is charged, whatever is released and however steps
are combined.

mu^2 = max over the record's position of the sum, over the steps that it participates in, of
(sensitivity / (b noise_std_k))^2.

Source: Dong, Roth and Su 2022, Theorem 3.2 and Corollary 3.3 (composition of mu-GDP mechanisms). A
record participates once per pass by blocks (anywhere in the pass, where blocks are drawn again in
every pass);
batches drawn at every step are conditioned on (joint convexity) and charged at every step, without
amplification by sampling. Proof: docs/theorems/composition.""",
        citation="Dong, Roth, Su: Gaussian differential privacy, JRSSB 84 (2022), Theorem 3.2, "
        "Corollary 3.3 "
        "(docs/theorems/composition)",
        formula="mu^2 = sum over the record's steps of (sensitivity / (b noise_std))^2, worst "
        "place",
        latex=r"\mu^2 = \sum_{\text{steps of the record}} \left(\frac{\text{sensitivity}}{b \, "
        r"\text{noise_std}}\right)^2, \text{ worst place}",
        assumptions=NOISY_STEPS,
        bound=lambda run: Gdp(composition_mu(run)),
        example=EXAMPLE,
        remark="Holds for any loss, with momentum, and when all iterates are released.",
    )
)


COMPOSITION_LANGEVIN = register(
    Theorem(
        name="composition-langevin",
        kind="upper",
        family="composition",
        statement="""
The baseline of Chourasia et al.: composition by moments.  epsilon(alpha) = alpha S_g^2 eta K / (4
n^2 sigma^2).

Source: their Figure 1 and Appendix E (the moments accountant of Abadi et al. 2016 on Algorithm 1).
Proof: docs/theorems/composition.""",
        citation=f"{LANGEVIN_PAPER}, Appendix E (baseline; docs/theorems/composition)",
        formula="epsilon(alpha) = alpha S_g^2 eta K / (4 n^2 sigma^2)",
        latex=r"\epsilon(\alpha) = \frac{\alpha S_g^2 \eta K}{4 n^2 \sigma^2}",
        assumptions=LANGEVIN_ALGORITHM,
        bound=lambda run: linear(signal_to_noise(run) * run.first_step * run.steps / 4),
        example=EXAMPLE_FULL_BATCH,
        remark="Holds for any loss, with momentum, and when all iterates are released.",
    )
)


def mu_of_correlated(run: Run) -> float:
    """mu of releasing every noisy gradient, for the worst place of the record."""
    sensitivity, noise = require_fact(run.facts(), "sensitivity"), run.noise
    assert isinstance(noise, Correlated)
    if sensitivity.value == 0:
        return 0.0
    if run.first_noise == 0:
        return math.inf
    moved = shift_in_draws(noise, run.blocks, run.steps)
    return moved * sensitivity.value / (run.divisor * run.first_noise) * (1 + allowance(run.steps))


CORRELATED_GDP = register(
    Theorem(
        name="correlated-gdp",
        kind="upper",
        family="composition",
        statement="""
Correlated noise (matrix mechanism): the draws, moved by all contributions of one record together.

mu = s sensitivity / (b noise_std), s^2 = max_j sum_{e, f} |<C_{j+el}, C_{j+fl}>| over the columns
of C at the steps of the record's position j, l blocks in a pass, noise_std of one draw. No entry of
C below 0: s = |sum_e C_{el}|, attained.

Source: docs/theorems/correlated-noise (with Denisov et al. 2022, arXiv:2202.08312; Choquette-Choo
et al. 2023, arXiv:2306.08153). Regime: any loss, contributions that depend on everything released
before; the batches need not be secret, and a record takes part at most once in every pass, at the
same position. Positions that are drawn once are conditioned on (joint convexity).""",
        citation="Denisov, McMahan, Rush, Smith, Thakurta: Improved differential privacy for SGD "
        "via optimal private "
        "linear operators on adaptive streams, 2022 (arXiv:2202.08312); Choquette-Choo et al.: "
        "(Amplified) banded "
        "matrix factorization, 2023 (arXiv:2306.08153) (docs/theorems/correlated-noise)",
        formula="mu = s sensitivity / (b noise_std), s^2 = max_j sum_{e, f} |<C_{j+el}, C_{j+fl}>|",
        latex=r"\mu = \frac{s \, \text{sensitivity}}{b \, \text{noise_std}}, \quad s^2 = \max_j "
        r"\sum_{e, f} |\langle C_{j+el}, C_{j+fl} \rangle|",
        assumptions=(noisy_steps, known_sensitivity, known_noise, correlated_noise, kept_places),
        bound=lambda run: Gdp(mu_of_correlated(run)),
        example=replace(EXAMPLE, noise=Correlated(10.0, 10)),
        remark="Holds for any loss, with momentum, and when all iterates are released. That only "
        "the last one is released "
        "buys nothing that anybody has proved.",
    )
)
