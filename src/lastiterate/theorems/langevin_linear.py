"""Linear Renyi bound for tracing diffusions.

epsilon(alpha) = alpha S_v^2 T / (4 sigma^2), S_v = S_g/n, T = eta K.

Source: Chourasia et al. 2021, Theorem 1 with Lemma 4. Regime: any loss, any domain; never decreasing in K.
Proof: docs/theorems/langevin.
"""

from __future__ import annotations

from lastiterate.analysis.langevin_curves import linear, squared_ratio
from lastiterate.theorems.assumptions.langevin import LAST_ITERATE, PAPER
from lastiterate.theorems.theorem import Theorem

THEOREM = Theorem(
    name="langevin-linear",
    kind="upper",
    citation=f"{PAPER}, Theorem 1 and Lemma 4 (docs/theorems/langevin)",
    formula="epsilon(alpha) = alpha S_g^2 eta K / (4 n^2 sigma^2)",
    assumptions=LAST_ITERATE,
    bound=lambda run: linear(squared_ratio(run) * run.first_step * run.steps / 4),
    remark="The same number as composition: without isoperimetry the diffusion gives nothing more.",
)
