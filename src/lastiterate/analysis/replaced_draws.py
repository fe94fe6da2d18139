"""Batches of a fixed size after a restart: who takes the place of a record is published, whether it was drawn is not.

The uniform subset of b records is S + {i} with probability q = b/n and S + {j} otherwise, S a uniform set of b - 1
others and j one of the remaining others, drawn independently of that. Shifts follow the steps over S + {j}; where the
record was drawn instead, the map differs by one record's term, whose change over the distance is counted as part of
what the record adds. Proof: docs/theorems/restarted-fixed-size.
"""

from __future__ import annotations

import numpy as np

from lastiterate.analysis.restart import (
    Lengthened,
    Restart,
    by_itself,
    distances_of_draws,
    nothing_added,
    restarted,
)
from lastiterate.analysis.sampled_steps import levels
from lastiterate.analysis.step_map import step_map
from lastiterate.curves.curve import Curve
from lastiterate.curves.fixed_size_composition import FixedSizeSteps
from lastiterate.curves.gdp import Gdp
from lastiterate.run.adjacency import records_moved
from lastiterate.run.arrays import Array
from lastiterate.run.facts import known
from lastiterate.run.run import Run

UP = 1 + 2.0**-40
"""Above the rounding of a few operations."""


def restarted_subsets(run: Run) -> Curve:
    """The best restarts of a run whose steps draw ``run.divisor`` records each without replacement."""
    rate, factor = run.batching.inclusion_probability(run.n), lengthened(run)
    assert rate is not None

    def tail(run: Run, at: Restart) -> Curve:
        noises, longer = levels(run, at.first, at.share), factor(at.apart, at.closed)
        if noises is None:
            return Gdp(at.mu)
        return FixedSizeSteps(rate, tuple(z / longer for z, _ in noises), tuple(count for _, count in noises),
                              records_moved(run.adjacency) == 2, mu=at.mu)

    return restarted(run, chance=rate, every=1, distances=distances_of_draws(rate), curve=tail,
                     shares=((run.divisor - 1) / run.divisor, 1.0), lengthened=factor,
                     seen=by_itself if records_moved(run.adjacency) == 2 else instead_of_another)


def instead_of_another(square: Array) -> Array:
    """The chi-squared distance of N(2/z) to N(1/z) where most of the law is N(0): a record that takes a place.

    With next to no noise it is infinite, and no factor is 0 then: expm1 is above 1 long before exp overflows."""
    with np.errstate(over="ignore", divide="ignore"):
        one = np.exp(1 / square)
        return one * np.expm1(1 / square) * (one * one + np.expm1(1 / square))


def lengthened(run: Run) -> Lengthened:
    """How much longer than S eta/b what the record adds is, where shifts follow the other record's map.

    Zero-out: by M eta/b times what a shift closes. Replace-one: two maps of one record differ from two of others, and
    the difference of its gradients is taken ``apart`` from where S speaks of it: twice both.
    """
    sensitivity, curvature = known(run.facts(), "sensitivity"), _curvature_of_one(run)
    assert sensitivity is not None
    if not sensitivity.value:
        return nothing_added
    relative = curvature / sensitivity.value
    if records_moved(run.adjacency) == 1:
        return lambda apart, closed: (1 + relative * closed) * UP
    return lambda apart, closed: (1 + 2 * relative * (apart + closed)) * UP


def _curvature_of_one(run: Run) -> float:
    """The Lipschitz constant of one record's gradient: constants of a mean hold where all records are alike, and a clip
    projects on a ball."""
    curvature = step_map(run, (1.0, 1.0))
    assert curvature is not None
    return max(abs(curvature.lowest), abs(curvature.highest))
