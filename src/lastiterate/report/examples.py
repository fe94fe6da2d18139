"""A run for every theorem of the table, built from its assumptions: for its picture and its page."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from lastiterate.run.batching import (
    BallsInBins,
    Cyclic,
    FixedSize,
    FullBatch,
    Permuted,
    Poisson,
    RandomAllocation,
    Reshuffled,
)
from lastiterate.run.correlated_noise import Correlated
from lastiterate.run.domains import Ball
from lastiterate.run.facts import LossFacts
from lastiterate.run.losses import Abstract, Logistic
from lastiterate.run.noise import Langevin, NoiseMultiplier
from lastiterate.run.perturbed_minimiser import PerturbedMinimiser
from lastiterate.run.run import Run
from lastiterate.run.starts import GaussianStart
from lastiterate.run.step_sizes import Constant
from lastiterate.run.variance_reduced_steps import VarianceReduced
from lastiterate.theorems.theorem import Theorem

SIGMA, STRONG = 0.01, 0.02
CONVEX: dict[str, float] = {"lipschitz": 1.0, "smooth": 1.0, "strong": 0.0}
PLAIN = Run(n=1000, steps=1000, step_size=Constant(0.5), noise=Langevin(SIGMA), batching=Cyclic(100),
            loss=Abstract(LossFacts(**CONVEX)))
"""Convex losses, 10 blocks in a public order, a fixed start, no domain."""


def _facts(**change: float | None) -> Abstract:
    return Abstract(LossFacts(**{name: value for name, value in (CONVEX | change).items() if value is not None}))


def _changes(needs: set[str]) -> dict[str, Any]:
    """What the assumptions of these names ask for beyond ``PLAIN``; later ones count."""
    strong = _facts(strong=STRONG)
    gibbs = {"loss": strong, "start": GaussianStart(SIGMA * math.sqrt(2 / STRONG))}
    asked: dict[str, dict[str, Any]] = {
        "full_batch": {"batching": FullBatch(), "noise": Langevin(SIGMA / 3)},
        "secret_blocks": {"batching": Permuted(100)}, "fresh_permutations": {"batching": Reshuffled(100)},
        "secret_bins": {"batching": BallsInBins(100)}, "fresh_blocks": {"batching": RandomAllocation(100)},
        "poisson_batches": {"batching": Poisson(0.1)}, "drawn_anew": {"batching": FixedSize(100)},
        "sampled_batches": {"batching": FixedSize(100)}, "counted_batches": {"batching": FixedSize(100)},
        "correlated_noise": {"noise": Correlated(10.0, 10)},
        "bounded_domain": {"domain": Ball(0.01)},
        "strongly_convex": {"loss": strong}, "log_sobolev": gibbs, "gibbs_start": gibbs,
        "bounded_gradient": {"loss": _facts(lipschitz=0.001)},
        "hoelder_gradient": {"loss": _facts(lipschitz=0.01, smooth=None, strong=None, hoelder=0.01,
                                            hoelder_exponent=0.5)},
        "squared_norm": {"loss": _facts(strong=1.0)},
        "perturbed_objective": {"batching": FullBatch(), "noise": NoiseMultiplier(2.0),
                                "method": PerturbedMinimiser(6, 0.3),
                                "loss": Logistic(ridge=0.01)},
        "snapshots_taken": {"batching": Poisson(0.1), "noise": NoiseMultiplier(2.0),
                            "method": VarianceReduced(10, 10.0), "loss": Logistic()},
        "weakly_convex_step": {"loss": _facts(strong=None, weak_convexity=0.02)},
    }
    changes: dict[str, Any] = {}
    for name, change in asked.items():
        changes |= change if name in needs else {}
    if "start" in changes:  # it has the temperature of the noise
        sigma = changes.get("noise", PLAIN.noise).sigma
        changes["start"] = GaussianStart(math.sqrt(2 * sigma**2 / STRONG))
    return changes


def example(theorem: Theorem) -> Run:
    """A run on which all assumptions of ``theorem`` hold."""
    return replace(PLAIN, **_changes({assumption.name for assumption in theorem.assumptions}))
