"""The table of theorems: one row per theorem, one file each; names are for ever."""

from __future__ import annotations

import copyreg
from collections.abc import Callable

from lastiterate.errors import InputError
from lastiterate.theorems import (sampling as balls_in_bins_pld, iteration as bounded_domain_convex, composition as composition_gdp, composition as composition_langevin, composition as correlated_gdp, iteration as cyclic_weakly_convex, iteration as cyclic_weakly_convex_bounded, last_iterate_sampling as delayed_shifts_allocated, last_iterate_sampling as delayed_shifts_fixed_size, last_iterate_sampling as delayed_shifts_poisson, sampling as fixed_size_amplified, iteration as hoelder_bounded_domain, langevin as langevin_linear, witnesses as langevin_lower_bound, langevin as langevin_lsi, langevin as langevin_squared_norm, langevin as langevin_strongly_convex, witnesses as linear_witness, iteration as lipschitz_bounded_domain, other_methods as objective_perturbation, iteration as pabi_convex, sampling as poisson_pld, sampling as poisson_rdp, witnesses as quadratic_witness, sampling as random_allocation_pld, last_iterate_sampling as restarted_allocation_pld, last_iterate_sampling as restarted_fixed_size, last_iterate_sampling as restarted_poisson_pld, sgld as sgld_lsi, sgld as sgld_lsi_sampled, sgld as sgld_strongly_convex, sgld as sgld_strongly_convex_batch, sgld as sgld_strongly_convex_sampled, shifted_interpolation, shifted_interpolation as shifted_interpolation_allocated, shifted_interpolation as shifted_interpolation_bins, shifted_interpolation as shifted_interpolation_permuted, shifted_interpolation as shifted_interpolation_reshuffled, iteration as smooth_bounded_domain, other_methods as variance_reduction)
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
