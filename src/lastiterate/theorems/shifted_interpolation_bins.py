"""Secret independent bins, the last iterate: the record's bin is averaged over, given how full the bins are.

delta(eps) <= (1/l) sum_j delta_{mu_j}(eps) + P[some bin holds more records than m, or fewer than k] in both directions,
mu_j the optimal shift allocation for a record in bin j whose steps have the curvature of k to m records over the public
divisor: condition on everybody's bin, then joint convexity of the hockey-stick divergence. The best of several (k, m).

Source: docs/theorems/balls-in-bins. Nothing is said about releasing all iterates: that is balls-in-bins-pld.
"""

from __future__ import annotations

from lastiterate.analysis.loads import mean_over_bins
from lastiterate.theorems.assumptions.basic import (
    NOISY_STEPS,
    last_iterate_only,
    not_averaged,
    plain_updates,
    secret_bins,
)
from lastiterate.theorems.assumptions.geometry import lipschitz_step
from lastiterate.theorems.theorem import Theorem

THEOREM = Theorem(
    name="shifted-interpolation-bins",
    kind="upper",
    citation="this project, docs/theorems/balls-in-bins (on Bok, Su, Altschuler 2024)",
    formula="delta(eps) <= (1/l) sum_j delta_{mu_j}(eps) + l P[Bin(n - 1, 1/l) > m], mu_j by shifted-interpolation "
            "with the record in bin j and at most m others in any bin",
    assumptions=(*NOISY_STEPS, last_iterate_only, secret_bins, plain_updates, not_averaged, lipschitz_step),
    bound=mean_over_bins,
)
