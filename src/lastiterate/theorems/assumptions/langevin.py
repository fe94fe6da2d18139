"""What Algorithm 1 of Chourasia, Ye and Shokri (2021) fixes."""

from __future__ import annotations

from lastiterate.theorems.assumptions.basic import (
    NOISY_STEPS,
    constant_step,
    full_batch,
    last_iterate_only,
    no_prox,
    not_averaged,
    plain_updates,
)
from lastiterate.theorems.assumptions.diffusion import langevin_noise

PAPER = "Chourasia, Ye, Shokri: Differential privacy dynamics of Langevin diffusion and noisy gradient descent, " \
        "NeurIPS 2021 (arXiv:2102.05855)"



ALGORITHM = (*NOISY_STEPS, full_batch, constant_step, langevin_noise, no_prox)
"""What their Algorithm 1 fixes."""



LAST_ITERATE = (*ALGORITHM, last_iterate_only, plain_updates, not_averaged)
"""The same with a hidden state: only theta_K is released, by plain steps."""
