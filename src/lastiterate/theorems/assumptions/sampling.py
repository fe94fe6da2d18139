"""What bounds for Poisson batches need."""

from __future__ import annotations

from lastiterate.theorems.assumptions.basic import (
    NOISY_STEPS,
    dp_accounting_installed,
    not_replace_one,
    poisson_batches,
)

ASSUMPTIONS = (*NOISY_STEPS, poisson_batches, not_replace_one, dp_accounting_installed)
