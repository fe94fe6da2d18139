"""Noisy gradient descent with any step sizes under a log-Sobolev inequality, full batches.

epsilon(alpha) = alpha S^2/(2 c sigma^4 n^2) (1 - e^{-sigma^2 c sum eta_k}); S = 2 L under replace-one.

Source: Ryffel, Bach and Pointcheval 2022, Theorem 3.1 and (constant steps) Corollary 3.1, for m = n. c is given, or
follows from Lemma 3.4: c = strong/(2 sigma^2). For m < n: sgld-lsi-sampled.
"""

from __future__ import annotations

from lastiterate.analysis.sgld_curves import lsi
from lastiterate.theorems.assumptions.basic import full_batch
from lastiterate.theorems.assumptions.diffusion import held_constant
from lastiterate.theorems.assumptions.sgld import LSI, PAPER
from lastiterate.theorems.theorem import Theorem

THEOREM = Theorem(
    name="sgld-lsi",
    kind="upper",
    citation=f"{PAPER}, Theorem 3.1 and Corollary 3.1 with m = n (and Lemma 3.4 for the constant; docs/theorems/sgld)",
    formula="epsilon(alpha) = alpha S^2 / (2 c sigma^4 n^2) (1 - exp(-sigma^2 c sum_k eta_k))",
    assumptions=(*LSI, full_batch),
    bound=lambda run: lsi(run, held_constant(run)),
)
