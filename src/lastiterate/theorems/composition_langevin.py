"""The baseline of Chourasia et al.: composition by moments.  epsilon(alpha) = alpha S_g^2 eta K / (4 n^2 sigma^2).

Source: their Figure 1 and Appendix E (the moments accountant of Abadi et al. 2016 on Algorithm 1). Proof:
docs/theorems/composition.
"""

from __future__ import annotations

from lastiterate.analysis.langevin_curves import linear, squared_ratio
from lastiterate.theorems.assumptions.langevin import ALGORITHM, PAPER
from lastiterate.theorems.theorem import Theorem

THEOREM = Theorem(
    name="composition-langevin",
    kind="upper",
    citation=f"{PAPER}, Appendix E (baseline; docs/theorems/composition)",
    formula="epsilon(alpha) = alpha S_g^2 eta K / (4 n^2 sigma^2)",
    assumptions=ALGORITHM,
    bound=lambda run: linear(squared_ratio(run) * run.first_step * run.steps / 4),
    remark="Holds for any loss, with momentum, and when all iterates are released.",
)
