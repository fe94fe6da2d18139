"""What Algorithm 1 of Ryffel, Bach and Pointcheval (2022) fixes, but for the batches."""

from __future__ import annotations

from lastiterate.theorems.assumptions.basic import (
    NOISY_STEPS,
    last_iterate_only,
    no_prox,
    not_averaged,
    plain_updates,
)
from lastiterate.theorems.assumptions.diffusion import gibbs_start, langevin_noise, log_sobolev
from lastiterate.theorems.assumptions.geometry import short_step, strongly_convex

PAPER = "Ryffel, Bach, Pointcheval: Differential privacy guarantees for stochastic gradient Langevin dynamics, 2022 " \
        "(arXiv:2201.11980)"



ALGORITHM = (*NOISY_STEPS, langevin_noise, last_iterate_only, plain_updates, not_averaged, no_prox)
"""What their Algorithm 1 fixes, but for the batches."""



LSI = (*ALGORITHM, log_sobolev)



STRONGLY_CONVEX = (*ALGORITHM, strongly_convex, short_step, gibbs_start)



REFUTED = "Refuted: a record that is drawn rarely is seen clearly when it is drawn (docs/theorems/sgld)."
