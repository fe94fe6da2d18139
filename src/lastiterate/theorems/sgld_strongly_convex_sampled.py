"""The published bound for sampled batches, strongly convex. It is false.

epsilon(alpha) = 4 alpha L^2/(lambda sigma^2 n^2) (1 - e^{-lambda sum eta_k / 2}) for m < n records drawn afresh.

Source: Ryffel, Bach and Pointcheval 2022, Theorem 3.2, Corollaries 3.2 and 3.3 as published (see sgld-lsi-sampled).
Counterexample: n = 100, m = 1, one step eta = 0.9, sigma = 0.1, |theta - x|^2/2 on [-1, 1]: claimed order-2 divergence
0.116, true 168.8. What holds for batches: sgld-strongly-convex-batch.
"""

from __future__ import annotations

from lastiterate.analysis.sgld_curves import strongly_convex_slope
from lastiterate.theorems.assumptions.basic import sampled_batches
from lastiterate.theorems.assumptions.sgld import PAPER, REFUTED, STRONGLY_CONVEX
from lastiterate.theorems.theorem import Theorem

THEOREM = Theorem(
    name="sgld-strongly-convex-sampled",
    kind="claimed",
    citation=f"{PAPER}, Theorem 3.2, Corollaries 3.2 and 3.3 for m < n (refuted in docs/theorems/sgld)",
    formula="epsilon(alpha) = 4 alpha L^2 / (lambda sigma^2 n^2) (1 - exp(-lambda sum_k eta_k / 2))",
    assumptions=(*STRONGLY_CONVEX, sampled_batches),
    bound=strongly_convex_slope,
    remark=REFUTED,
)
