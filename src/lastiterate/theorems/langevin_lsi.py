"""Noisy gradient descent under a log-Sobolev inequality.

epsilon(alpha) = alpha S_g^2/(2 c sigma^4 n^2) (1 - e^{-sigma^2 c eta K}).

Source: Chourasia et al. 2021, Theorem 2. c is given (``log_sobolev``), or follows from Lemma 5: c = strong/(2 sigma^2).
Proof: docs/theorems/langevin.
"""

from __future__ import annotations

from lastiterate.analysis.langevin_curves import decay, linear, squared_ratio
from lastiterate.curves.renyi import Rdp
from lastiterate.run.run import Run
from lastiterate.theorems.assumptions.diffusion import held_constant, log_sobolev
from lastiterate.theorems.assumptions.langevin import LAST_ITERATE, PAPER
from lastiterate.theorems.theorem import Theorem


def _bound(run: Run) -> Rdp:
    rate = run.temperature * held_constant(run)
    return linear(squared_ratio(run) / (2 * rate) * decay(rate * run.first_step * run.steps))


THEOREM = Theorem(
    name="langevin-lsi",
    kind="upper",
    citation=f"{PAPER}, Theorem 2 (and Lemma 5 for the constant; docs/theorems/langevin)",
    formula="epsilon(alpha) = alpha S_g^2 / (2 c sigma^4 n^2) (1 - exp(-sigma^2 c eta K))",
    assumptions=(*LAST_ITERATE, log_sobolev),
    bound=_bound,
)
