"""How many records fall into secret bins: what holds for all bins at once except with a stated probability.

The other records' bins are independent and uniform, so a bin holds Bin(n - 1, 1/l) of them. Proof that maps may count
with such loads: docs/theorems/balls-in-bins.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from lastiterate.analysis.block_places import merged, place_mus, place_weights
from lastiterate.analysis.mean_over_places import mean_over_fresh_places
from lastiterate.analysis.step_map import step_map
from lastiterate.curves.curve import BestOf, Curve
from lastiterate.curves.failure import WithFailure
from lastiterate.curves.mixtures import GdpMixture
from lastiterate.run.adjacency import records_moved
from lastiterate.run.run import Run

FAILURES = (0.0, 1e-30, 1e-20, 1e-15, 1e-12, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3)
"""Probabilities that some bin's load is outside of its range; the first one costs nothing and says nothing."""
FEW = (0.0, 1e-20, 1e-10, 1e-7)
"""The same where every place of every schedule is a computation of its own."""


def usual_loads(others: int, bins: int, failure: float, times: int = 1) -> tuple[int, int]:
    """The fewest and the most of ``others`` records in each of ``bins`` bins, each of the ``times`` that they are
    drawn, except with probability ``failure``."""
    return usual_counts(others, 1 / bins, failure, bins * times)


@lru_cache(maxsize=512)
def usual_counts(others: int, chance: float, failure: float, draws: int) -> tuple[int, int]:
    """The fewest and the most of ``others`` records, each there with probability ``chance``, in each of ``draws``
    batches, except with probability ``failure``.

    Exact binomial tails (incomplete beta functions, enlarged for their rounding), half of ``failure`` for each end,
    shared by all batches (union bound).
    """
    if failure == 0 or others == 0:
        return 0, others
    each = failure / (2 * draws) * (1 - 1e-6)
    most = _first(lambda k: _more_than(others, chance, k) <= each, others)
    fewest = others - _first(lambda k: _more_than(others, 1 - chance, k) <= each, others)
    return fewest, most


def _more_than(trials: int, chance: float, count: int) -> float:
    """P[Bin(trials, chance) > count]."""
    from scipy.special import betainc  # pyright: ignore

    return 0.0 if count >= trials else float(betainc(count + 1, trials - count, chance))


def _first(holds: Callable[[int], bool], most: int) -> int:
    """The first whole number up to ``most``, where it holds, from which on it holds."""
    low, high = -1, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def mean_over_bins(run: Run, failures: tuple[float, ...] = ()) -> Curve:
    """delta(eps) <= (1/l) sum_j delta_{mu_j}(eps) + failure, mu_j for a record in bin j and loads that are usual.

    The best of several ``failures``.
    """
    weights = place_weights(run.batching, run.n)

    def mixture(shares: tuple[float, float]) -> GdpMixture:
        chances, mus = merged(weights, place_mus(run, shares), up=True)
        return GdpMixture(tuple(chances.tolist()), tuple(mus.tolist()))

    return _best(run, failures, 1, mixture)


def mean_over_fresh_blocks(run: Run, failures: tuple[float, ...] = ()) -> Curve:
    """The same for a record and others that fall into blocks anew in every pass: the loads of all passes are usual."""
    passes = -(-run.steps // run.blocks)
    return _best(run, failures, passes, lambda shares: mean_over_fresh_places(run, shares))


def _best(run: Run, failures: tuple[float, ...], times: int, curve: Callable[[tuple[float, float]], Curve]) -> Curve:
    """The best over ``failures`` of the curve for usual loads, except with the probability that they are not.

    One map of each pair must have the constants, and without the record it has the other records' alone. Under
    replace-one both maps of the record's own bin hold one more, and every other bin the others alone.
    """
    own = records_moved(run.adjacency) - 1
    by_maps: dict[Any, Curve] = {}
    for failure in failures or (FAILURES if run.constant else FEW):
        fewest, most = usual_loads(run.n - 1, run.blocks, failure, times)
        shares = (fewest / run.divisor, (most + own) / run.divisor)
        step = step_map(run, shares)
        assert step is not None
        maps = step.lipschitz(run.first_step) if run.constant else shares
        if maps not in by_maps:  # a larger failure that buys nothing is left out
            by_maps[maps] = WithFailure(curve(shares), failure) if failure else curve(shares)
    curves = tuple(by_maps.values())
    return curves[0] if len(curves) == 1 else BestOf(curves)
