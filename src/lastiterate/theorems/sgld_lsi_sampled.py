"""The published bound for sampled batches under a log-Sobolev inequality. It is false.

epsilon(alpha) = 2 alpha L^2/(c sigma^4 n^2) (1 - e^{-sigma^2 c sum eta_k}) for batches of m < n records drawn afresh.

Source: Ryffel, Bach and Pointcheval 2022, Theorem 3.1 and Corollary 3.1 as published. Lemma 3.3 multiplies a quantity
that is conditioned on the batch by the probability m/n of the batch; the counterexample is in docs/theorems/sgld.
"""

from __future__ import annotations

from lastiterate.analysis.sgld_curves import lsi
from lastiterate.theorems.assumptions.basic import sampled_batches
from lastiterate.theorems.assumptions.diffusion import held_constant
from lastiterate.theorems.assumptions.sgld import LSI, PAPER, REFUTED
from lastiterate.theorems.theorem import Theorem

THEOREM = Theorem(
    name="sgld-lsi-sampled",
    kind="claimed",
    citation=f"{PAPER}, Theorem 3.1 and Corollary 3.1 for m < n (refuted in docs/theorems/sgld)",
    formula="epsilon(alpha) = 2 alpha L^2 / (c sigma^4 n^2) (1 - exp(-sigma^2 c sum_k eta_k))",
    assumptions=(*LSI, sampled_batches),
    bound=lambda run: lsi(run, held_constant(run)),
    remark=REFUTED,
)
