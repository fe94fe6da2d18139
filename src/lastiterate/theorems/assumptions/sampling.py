"""What bounds for Poisson batches need."""

from __future__ import annotations

from lastiterate.theorems.assumptions.basic import (
    dp_accounting_installed,
    known_noise,
    known_sensitivity,
    not_replace_one,
    poisson_batches,
)

ASSUMPTIONS = (known_sensitivity, known_noise, poisson_batches, not_replace_one, dp_accounting_installed)
