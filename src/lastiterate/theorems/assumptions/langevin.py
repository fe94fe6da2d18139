"""What Algorithm 1 of Chourasia, Ye and Shokri (2021) fixes."""

from __future__ import annotations

from lastiterate.theorems.assumptions.basic import (
    constant_step,
    full_batch,
    known_noise,
    known_sensitivity,
    last_iterate_only,
    no_momentum,
    no_prox,
)
from lastiterate.theorems.assumptions.diffusion import langevin_noise

PAPER = "Chourasia, Ye, Shokri: Differential privacy dynamics of Langevin diffusion and noisy gradient descent, " \
        "NeurIPS 2021 (arXiv:2102.05855)"



ALGORITHM = (known_sensitivity, known_noise, full_batch, constant_step, langevin_noise, no_prox)
"""What their Algorithm 1 fixes."""



LAST_ITERATE = (*ALGORITHM, last_iterate_only, no_momentum)
"""The same with a hidden state: only theta_K is released, by plain steps."""
