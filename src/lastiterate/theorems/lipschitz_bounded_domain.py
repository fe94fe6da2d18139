"""Bounded gradients in a bounded domain: neither convexity nor smoothness, any blocks.

mu^2 = min(T (2 eta L)^2, min over k <= T of (D + 2 k eta L)^2 / k) / (eta noise_std)^2: two states at distance z are at
most z + 2 eta L apart after a step, whatever the two gradients, and D is never exceeded. k = 1 is the last step alone.

Source: k = 1: Kong and Ribero 2025 (arXiv:2407.05237 v3), Theorem 2.2, first bound (as restored in this project);
k > 1: docs/theorems/bounded-domain. Regime: clipped gradients suffice; step * ridge <= 2.
"""

from __future__ import annotations

from lastiterate.analysis.continuity import Modulus, scaled_mu
from lastiterate.curves.gdp import Gdp
from lastiterate.run.facts import FLOAT_SLACK, known
from lastiterate.run.run import Run
from lastiterate.theorems.assumptions.basic import (
    bounded_domain,
    constant_schedule,
    counted_batches,
    independent_noise,
    known_noise,
    last_iterate_only,
    noisy_steps,
    not_averaged,
    plain_updates,
)
from lastiterate.theorems.assumptions.geometry import bounded_gradient
from lastiterate.theorems.theorem import Theorem


def largest_move(run: Run) -> float:
    """2 eta L: how far apart two (clipped) mean gradients can send one state."""
    lipschitz = known(run.facts(), "lipschitz")
    assert lipschitz is not None
    return 2 * run.first_step * lipschitz.value * (1 + FLOAT_SLACK)


THEOREM = Theorem(
    name="lipschitz-bounded-domain",
    kind="upper",
    citation="Kong, Ribero: Privacy of the last iterate in cyclically-sampled DP-SGD on nonconvex composite losses "
             "(arXiv:2407.05237 v3), Theorem 2.2, and docs/theorems/bounded-domain",
    formula="mu^2 = min(T (2 eta L)^2, min over k <= T of (D + 2 k eta L)^2 / k) / (eta noise_std)^2",
    assumptions=(noisy_steps, known_noise, independent_noise, last_iterate_only, counted_batches, plain_updates,
                 not_averaged, constant_schedule, bounded_domain, bounded_gradient),
    bound=lambda run: Gdp(scaled_mu(Modulus(0.0, 1.0, largest_move(run)), run)),
    remark="Holds for any loss whose gradients are clipped, convex or not.",
)
