"""Langevin noise, strongly convex, any batches of a public size: as if the record participated in every step.

mu^2 = S_K^2/X_K, S_K = (S/lambda)(1 - R_0), X_K = 2 sigma^2 sum_u eta_u R_u^2, R_u = prod_{w>u} (1 - eta_w lambda), S
the sensitivity of the batch's mean gradient (2 L/m under replace-one). At most (S^2/(lambda sigma^2)) (1 - R_0)/
(1 + R_0), which implies the published form with the batch size m in place of n.

Source: docs/theorems/sgld; it repairs Theorem 3.2 of Ryffel, Bach and Pointcheval (2022). Regime: any steps
eta_k <= 2/(lambda + beta), any start that does not depend on the data, with or without projection.
"""

from __future__ import annotations

import math

import numpy as np

from lastiterate.analysis.shift_allocation import allowance
from lastiterate.curves.gdp import Gdp
from lastiterate.run.facts import known
from lastiterate.run.run import Run
from lastiterate.theorems.assumptions.basic import counted_batches
from lastiterate.theorems.assumptions.geometry import contracting_step, strongly_convex
from lastiterate.theorems.assumptions.sgld import ALGORITHM, PAPER
from lastiterate.theorems.theorem import Theorem

LONGEST = 200_000
"""Steps that are looked at one by one; without the noise of earlier ones, and with 1 for 1 - R_0, mu only grows."""


def _sums(run: Run, strong: float) -> tuple[float, float]:
    """(1 - R_0) / strong, and the sum of eta_u R_u^2."""
    if run.step_size.constant:
        eta = run.first_step
        if eta * strong >= 1:
            return 1 / strong, eta
        log_c = math.log1p(-eta * strong)
        return (-math.expm1(run.steps * log_c) / strong,
                eta * math.expm1(2 * run.steps * log_c) / math.expm1(2 * log_c))
    eta = run.step_size.sizes(max(0, run.steps - LONGEST), run.steps)
    with np.errstate(divide="ignore", under="ignore"):
        logs = np.log1p(-np.minimum(eta * strong, 1.0))
        later = np.concatenate((np.cumsum(logs[::-1])[::-1], [0.0]))  # log R_0, log R_1, ..., log R_K
        noise = float((eta * np.exp(2 * later[1:])).sum())
    forgotten = 1.0 if eta.size < run.steps else -math.expm1(float(later[0]))
    return forgotten / strong, noise


def batch_mu(run: Run) -> float:
    """mu of the last iterate when the record is in every batch."""
    sensitivity, strong = known(run.facts(), "sensitivity"), known(run.facts(), "strong")
    assert sensitivity is not None and strong is not None
    ridge, (fewest, _) = run.loss.ridge, run.shares
    shift, noise = _sums(run, ridge + (strong.value - ridge) * fewest)  # a short block has less curvature
    mu = sensitivity.value / run.divisor * shift / math.sqrt(2 * run.temperature * noise)
    return mu * (1 + allowance(min(run.steps, LONGEST)))


THEOREM = Theorem(
    name="sgld-strongly-convex-batch",
    kind="upper",
    citation=f"this project, docs/theorems/sgld (repairs Theorem 3.2 of {PAPER})",
    formula="mu^2 = (S/lambda)^2 (1 - R_0)^2 / (2 sigma^2 sum_u eta_u R_u^2), R_u = prod_{w>u} (1 - eta_w lambda), "
            "S = 2 L/m",
    assumptions=(*ALGORITHM, strongly_convex, contracting_step, counted_batches),
    bound=lambda run: Gdp(batch_mu(run)),
    remark="No amplification by sampling: the record is charged as if it were in every batch.",
)
