"""The table of theorems: one row per theorem, one file each; names are for ever."""

from __future__ import annotations

from lastiterate.theorem import Theorem
from lastiterate.theorems import (
    composition_gdp,
    composition_langevin,
    langevin_linear,
    langevin_lower_bound,
    langevin_lsi,
    langevin_squared_norm,
    langevin_strongly_convex,
    quadratic_witness,
    shifted_interpolation,
    shifted_interpolation_permuted,
)

TABLE: dict[str, Theorem] = {
    module.THEOREM.name: module.THEOREM
    for module in (
        composition_gdp,
        composition_langevin,
        langevin_linear,
        langevin_lsi,
        langevin_strongly_convex,
        langevin_squared_norm,
        langevin_lower_bound,
        shifted_interpolation,
        shifted_interpolation_permuted,
        quadratic_witness,
    )
}
"""Every theorem by name."""
