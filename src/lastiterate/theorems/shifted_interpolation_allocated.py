"""Secret blocks drawn anew in every pass, the last iterate: the record's places are averaged over, given full blocks.

delta(eps) <= sum over groups g of places P[g] delta_{mu_g}(eps) + P[some block of some pass holds more other records
than m, or fewer than k] in both directions, mu_g the optimal shift allocation for the latest places of the group with
the curvature of k to m records over the public divisor: condition on everybody's draws in all passes, then joint
convexity. The best of several (k, m).

Source: docs/theorems/random-allocation. Nothing is said about releasing all iterates: that is random-allocation-pld.
"""

from __future__ import annotations

from lastiterate.analysis.loads import mean_over_fresh_blocks
from lastiterate.theorems.assumptions.basic import (
    NOISY_STEPS,
    counted_records,
    fresh_blocks,
    last_iterate_only,
    not_averaged,
    plain_updates,
)
from lastiterate.theorems.assumptions.geometry import lipschitz_step
from lastiterate.theorems.theorem import Theorem

THEOREM = Theorem(
    name="shifted-interpolation-allocated",
    kind="upper",
    citation="this project, docs/theorems/random-allocation (on Bok, Su, Altschuler 2024)",
    formula="delta(eps) <= sum_g P[g] delta_{mu_g}(eps) + l E P[Bin(n - 1, 1/l) > m], mu_g as for reshuffled blocks "
            "with at most m others in any block of any of E passes",
    assumptions=(*NOISY_STEPS, last_iterate_only, fresh_blocks, counted_records, plain_updates, not_averaged,
                 lipschitz_step),
    bound=mean_over_fresh_blocks,
)
