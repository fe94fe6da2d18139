"""One secret permutation, then blocks in order, the last iterate: the record's place is averaged over.

delta(eps) <= sum_j (n_j / n) delta_{mu_j}(eps) in both directions, mu_j the optimal shift allocation for a record in
block j (n_j records): condition on the place, then joint convexity of the hockey-stick divergence.

Source: docs/theorems/shifted-interpolation-permuted. Nothing is said about releasing all iterates: the place can
then be seen.
"""

from __future__ import annotations

from lastiterate.analysis.block_places import merged, place_mus, place_weights
from lastiterate.curves.mixtures import GdpMixture
from lastiterate.run.run import Run
from lastiterate.theorems.assumptions.basic import (
    NOISY_STEPS,
    last_iterate_only,
    not_averaged,
    plain_updates,
    secret_blocks,
)
from lastiterate.theorems.assumptions.geometry import lipschitz_step
from lastiterate.theorems.theorem import Theorem


def _bound(run: Run) -> GdpMixture:
    weights, mus = merged(place_weights(run.batching, run.n), place_mus(run), up=True)
    return GdpMixture(tuple(weights.tolist()), tuple(mus.tolist()))


THEOREM = Theorem(
    name="shifted-interpolation-permuted",
    kind="upper",
    citation="this project, docs/theorems/shifted-interpolation-permuted (on Bok, Su, Altschuler 2024)",
    formula="delta(eps) <= sum_j (n_j / n) delta_{mu_j}(eps), mu_j by shifted-interpolation with the record in block j",
    assumptions=(*NOISY_STEPS, last_iterate_only, secret_blocks, plain_updates, not_averaged, lipschitz_step),
    bound=_bound,
)
