"""A fresh secret permutation in every pass, the last iterate: the record's places are averaged over.

delta(eps) <= sum over groups g of places P[g] delta_{mu_g}(eps) in both directions, mu_g the optimal shift allocation
for the latest places of the group: condition on the places, then joint convexity, and delta_mu grows with mu, mu with
later places.

Source: docs/theorems/shifted-interpolation-reshuffled. Nothing is said about releasing all iterates.
"""

from __future__ import annotations

from lastiterate.analysis.mean_over_places import mean_over_fresh_places
from lastiterate.theorems.assumptions.basic import (
    NOISY_STEPS,
    fresh_permutations,
    last_iterate_only,
    not_averaged,
    plain_updates,
)
from lastiterate.theorems.assumptions.geometry import lipschitz_step
from lastiterate.theorems.theorem import Theorem

THEOREM = Theorem(
    name="shifted-interpolation-reshuffled",
    kind="upper",
    citation="this project, docs/theorems/shifted-interpolation-reshuffled (on Bok, Su, Altschuler 2024)",
    formula="delta(eps) <= sum_g P[g] delta_{mu_g}(eps), mu_g by shifted-interpolation with the record at the latest "
            "places of group g of the last passes, and at the end of every earlier pass",
    assumptions=(*NOISY_STEPS, last_iterate_only, fresh_permutations, plain_updates, not_averaged, lipschitz_step),
    bound=mean_over_fresh_places,
)
