"""The statements of a certificate in addition to epsilon, in the numbers and words that readers ask
for.

Everything here is derived from what is certified, so that ``verify`` derives it again. What cannot
be derived is the releaser's statement (``lastiterate.certificate_statement``), and what the process that trained
recorded of itself (``software``).
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise
from typing import Any

from lastiterate.accounting.certificate_subject import CAVEATS, NEIGHBOURS, finite
from lastiterate.accounting.guarantee import Guarantee
from lastiterate.curves.curve import UP, Curve
from lastiterate.curves.gaussian import Gdp, gdp_delta
from lastiterate.curves.roots import smallest_true
from lastiterate.run.facts import Fact
from lastiterate.run.run import Run
from lastiterate.theorems.theorem import Applies

DELTAS = (1e-3, 1e-5, 1e-7, 1e-9)
"""Deltas at which epsilon is stated, in addition to the certificate's own."""
RATES = (0.001, 0.01, 0.1)
"""False-positive rates at which true-positive rates are bounded."""
POINTS = 32
"""Points of a curve that is not Gaussian which its closest Gaussian one is laid above."""


def summarise_guarantee(guarantee: Guarantee, delta: float) -> dict[str, Any]:
    """JSON-ready: unit, neighbours, the guarantee in several forms, and how a run makes it hold.

    Where something certifies, by the curve of the smallest epsilon at ``delta``, and by what its
    theorem rests on.
    """
    run, curve, best = guarantee.subject.run, guarantee.best_curve(delta), guarantee.best(delta)
    facts = best.result.facts if best is not None and isinstance(best.result, Applies) else ()
    body: dict[str, Any] = {
        "unit": guarantee.subject.describe_unit(guarantee.unit),
        "neighbours": NEIGHBOURS[guarantee.adjacency],
        "guarantees": [
            {"delta": d, "epsilon": finite(guarantee.epsilon(d))}
            for d in sorted({*DELTAS, delta}, reverse=True)
        ],
        "mu": None if curve is None else closest_gaussian(curve, delta),
        "right_guesses": None if curve is None else bound_right_guesses(curve),
        "true_positive_rates": []
        if curve is None
        else [
            {"false_positive_rate": rate, "at_most": true_positive_rate(curve, rate, delta)}
            for rate in RATES
        ],
        "rests_on": [
            {"what": fact.why, "value": finite(fact.value), "evidence": fact.evidence.name}
            for fact in sorted(facts, key=lambda fact: (-fact.evidence, fact.why, fact.value))
        ],
        "secret": [*guarantee.subject.words.secret, CAVEATS[2]],
        "charged": [*([] if run is None else [_steps(run)]), *guarantee.subject.words.charged],
        "not_charged": [CAVEATS[0]],
    }
    return body if run is None else body | execution(run)


def bound_right_guesses(curve: Curve) -> float:
    """Return how often a guess between two equally likely neighbours is right, at most."""
    return min(
        1.0, (1 + (curve if isinstance(curve, Gdp) else curve.coarser()).delta(0.0)) / 2 * UP
    )


def execution(run: Run) -> dict[str, Any]:
    """Return how contributions are bounded and divided, how batches are drawn, and which noise is
    added."""
    batching, scale = run.batching, run.noise_unit
    sensitivity = run.facts().sensitivity
    assert sensitivity is None or isinstance(sensitivity, Fact)
    return {
        "contributions": {
            "clipping_norm": run.clip,
            "bounded_by": scale,
            "sensitivity": None if sensitivity is None else finite(sensitivity.value),
            "divisor": run.divisor,
            "divisor_is": "a public number, the same at every step, never the number of records "
            "that were drawn",
        },
        "batches": {
            "kind": type(batching).__name__,
            "drawn": batching.drawn,
            "sizes": batching.sizes,
            "expected_size": batching.expected_batch(run.n),
            "blocks": run.blocks,
            "place_secret": bool(batching.secret),
            "words": DRAWN[batching.drawn],
        },
        "noise": run.method.describe_noise(run),
        "release": run.release,
        "steps": run.steps,
        "records": run.n,
    }


DRAWN = {
    "never": "in public order, the same in every pass; nothing is drawn",
    "once": "one secret draw, the same batches in every pass",
    "each pass": "a fresh secret draw before every pass",
    "each step": "a fresh secret draw at every step",
}


def _steps(run: Run) -> str:
    released = "the last iterate" if run.release == "last" else "all iterates"
    return f"{run.steps} steps, {released} released"


@lru_cache(maxsize=64)
def profile(curve: Curve, delta: float) -> tuple[tuple[float, float], ...]:
    """(epsilon, delta) pairs of ``curve`` on a grid, 0 first, the last one at ``delta``: from a
    coarser, looser curve where its own numbers are expensive."""
    top, cheap = curve.epsilon(delta), curve.coarser()
    grid = [top * (i / (POINTS - 1)) ** 1.5 for i in range(POINTS)] if math.isfinite(top) else [0.0]
    return tuple((epsilon, cheap.delta(epsilon)) for epsilon in grid)


def true_positive_rate(curve: Curve, rate: float, delta: float) -> float:
    """The largest true-positive rate at a false-positive rate that ``curve`` leaves to any test,
    rounded up.

    For every epsilon: TPR <= e^epsilon FPR + delta, and TPR <= 1 - e^-epsilon (1 - delta - FPR), at
    the points of its ``profile``; for a Gaussian curve Phi(Phi^-1(FPR) + mu).
    """
    if isinstance(curve, Gdp):
        from scipy.special import ndtr, ndtri  # pyright: ignore

        return min(1.0, float(ndtr(float(ndtri(rate)) + curve.mu * UP)) * (1 + 1e-9))
    return min(test_bound(epsilon, height, rate) for epsilon, height in profile(curve, delta))


def test_bound(epsilon: float, delta: float, rate: float) -> float:
    """The true-positive rate that one (epsilon, delta) leaves at a false-positive rate, rounded up."""
    if epsilon > 700:  # beyond the range of exp: nothing is bounded
        return 1.0
    one = math.exp(epsilon) * rate + delta
    return min(1.0, max(rate, min(one, 1 - math.exp(-epsilon) * (1 - delta - rate))) * UP)


def closest_gaussian(curve: Curve, delta: float) -> dict[str, Any] | None:
    """mu of a Gaussian curve, or the least found whose curve lies above ``curve`` for every delta
    from ``delta`` up.

    Between two points of a grid e < e' of epsilon, delta(e) of the curve is not above delta_mu(e'):
    both fall.
    """
    if isinstance(curve, Gdp):
        return (
            {"value": curve.mu, "exact": True, "for_delta_of_at_least": 0.0}
            if math.isfinite(curve.mu)
            else None
        )
    if not math.isfinite(curve.epsilon(delta)):
        return None
    value = max(
        (_least_mu(above, height) for (_, height), (above, _) in pairwise(profile(curve, delta))),
        default=0.0,
    )
    return (
        {"value": value, "exact": False, "for_delta_of_at_least": delta}
        if math.isfinite(value)
        else None
    )


@lru_cache(maxsize=4096)
def _least_mu(epsilon: float, delta: float) -> float:
    """The least mu (rounded up) whose curve reaches ``delta`` at ``epsilon``."""
    import numpy as np

    if delta <= 0:
        return 0.0
    if delta >= 1:
        return math.inf

    def is_reached(mu: float) -> bool:
        return float(gdp_delta(epsilon, np.array([mu]))[0]) * (1 - 1e-9) >= delta

    high = 1.0
    while not is_reached(high):
        high *= 2
        if high > 1e6:
            return math.inf
    return smallest_true(is_reached, 1e-12, high, 1e-9)
