"""Noisy gradient descent with any step sizes, strongly convex, full batches.

epsilon(alpha) = alpha S^2/(lambda sigma^2 n^2) (1 - e^{-lambda sum eta_k / 2}); S = 2 L under replace-one.

Source: Ryffel, Bach and Pointcheval 2022, Theorem 3.2, Corollary 3.2 (constant steps) and Corollary 3.3 (steps
1/(2 beta + lambda k/2)), for m = n; proof without a log-Sobolev inequality in docs/theorems/sgld. The steps are
k = 0, ..., K - 1 as in their Algorithm 1: their closed form of Corollary 3.3 is the sum over k = 1, ..., K, which is
smaller. Regime: eta_k < 1/beta, start projected N(0, 2 sigma^2/lambda I).
"""

from __future__ import annotations

from lastiterate.analysis.sgld_curves import strongly_convex_slope
from lastiterate.theorems.assumptions.basic import full_batch
from lastiterate.theorems.assumptions.sgld import PAPER, STRONGLY_CONVEX
from lastiterate.theorems.theorem import Theorem

THEOREM = Theorem(
    name="sgld-strongly-convex",
    kind="upper",
    citation=f"{PAPER}, Theorem 3.2, Corollaries 3.2 and 3.3 with m = n (docs/theorems/sgld)",
    formula="epsilon(alpha) = alpha S^2 / (lambda sigma^2 n^2) (1 - exp(-lambda sum_k eta_k / 2))",
    assumptions=(*STRONGLY_CONVEX, full_batch),
    bound=strongly_convex_slope,
)
