"""The table of theorems: one row per theorem, one file each; names are for ever."""

from __future__ import annotations

import copyreg
from collections.abc import Callable

from lastiterate.errors import InputError
from lastiterate.theorems import (
    balls_in_bins_pld,
    bounded_domain_convex,
    composition_gdp,
    composition_langevin,
    correlated_gdp,
    cyclic_weakly_convex,
    cyclic_weakly_convex_bounded,
    delayed_shifts_allocated,
    delayed_shifts_fixed_size,
    delayed_shifts_poisson,
    fixed_size_amplified,
    hoelder_bounded_domain,
    langevin_linear,
    langevin_lower_bound,
    langevin_lsi,
    langevin_squared_norm,
    langevin_strongly_convex,
    linear_witness,
    lipschitz_bounded_domain,
    objective_perturbation,
    pabi_convex,
    poisson_pld,
    poisson_rdp,
    quadratic_witness,
    random_allocation_pld,
    restarted_allocation_pld,
    restarted_fixed_size,
    restarted_poisson_pld,
    sgld_lsi,
    sgld_lsi_sampled,
    sgld_strongly_convex,
    sgld_strongly_convex_batch,
    sgld_strongly_convex_sampled,
    shifted_interpolation,
    shifted_interpolation_allocated,
    shifted_interpolation_bins,
    shifted_interpolation_permuted,
    shifted_interpolation_reshuffled,
    smooth_bounded_domain,
    variance_reduction,
)
from lastiterate.theorems.theorem import Applies, Fails, Theorem, match

__all__ = ["TABLE", "Applies", "Fails", "Theorem", "by_name", "match", "words"]

TABLE: dict[str, Theorem] = {
    module.THEOREM.name: module.THEOREM
    for module in (
        composition_gdp,
        composition_langevin,
        correlated_gdp,
        langevin_linear,
        langevin_lsi,
        langevin_strongly_convex,
        langevin_squared_norm,
        langevin_lower_bound,
        sgld_lsi,
        sgld_lsi_sampled,
        sgld_strongly_convex,
        sgld_strongly_convex_sampled,
        sgld_strongly_convex_batch,
        cyclic_weakly_convex,
        cyclic_weakly_convex_bounded,
        pabi_convex,
        bounded_domain_convex,
        smooth_bounded_domain,
        shifted_interpolation,
        shifted_interpolation_permuted,
        shifted_interpolation_bins,
        shifted_interpolation_allocated,
        shifted_interpolation_reshuffled,
        lipschitz_bounded_domain,
        hoelder_bounded_domain,
        quadratic_witness,
        poisson_rdp,
        poisson_pld,
        random_allocation_pld,
        restarted_poisson_pld,
        delayed_shifts_poisson,
        restarted_allocation_pld,
        delayed_shifts_allocated,
        balls_in_bins_pld,
        fixed_size_amplified,
        restarted_fixed_size,
        delayed_shifts_fixed_size,
        objective_perturbation,
        variance_reduction,
        linear_witness,
    )
}
"""Every theorem by name."""


def by_name(name: str) -> Theorem:
    """The theorem of that name, or an error that lists the names."""
    if name not in TABLE:
        raise InputError("theorem", "must be one of " + ", ".join(TABLE), name)
    return TABLE[name]


def words(theorem: Theorem) -> tuple[str, str]:
    """Title and text of the theorem's own file: what it says, its source, the boundaries of its regime."""
    (module,) = [entry for entry in globals().values() if getattr(entry, "THEOREM", None) is theorem]
    title, _, rest = (module.__doc__ or "").partition("\n\n")
    return title.replace("\n", " "), rest.strip()


def _reduce(theorem: Theorem) -> tuple[Callable[[str], Theorem], tuple[str]]:
    return by_name, (theorem.name,)


copyreg.pickle(Theorem, _reduce)  # a theorem is its name: verdicts and certificates can be pickled
