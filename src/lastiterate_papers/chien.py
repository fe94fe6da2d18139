"""Chien and Li 2024, a privacy loss that converges; Chien, Wang, Chen and Li 2024, a record that is
forgotten."""

from __future__ import annotations

import math
from dataclasses import replace

import lastiterate as li
from lastiterate.curves import Gdp
from lastiterate_papers.comparisons import assumed, curve
from lastiterate_papers.item import Item, Panel, Result, Row, Work, traced

CHIEN_LI, FORGETTING = (
    "Chien, Li 2024 (arXiv:2410.01068)",
    "Chien, Wang, Chen, Li 2024 (arXiv:2401.10371)",
)
DELTA = 1e-5


def chien_li(work: Work) -> Result:
    """Privacy loss that converges without convexity, and without smoothness, in a bounded domain."""
    counts = (10, 100, 1000, 10_000)
    base = li.Run(
        n=100,
        steps=1,
        step_size=0.1,
        noise=li.GradientNoise(0.5),
        adjacency="replace-one",
        domain=li.domains.Ball(0.05),
        loss=assumed(lipschitz=1.0, smooth=1.0, weak_convexity=0.05),
    )
    hoelder = replace(base, loss=assumed(lipschitz=1.0, hoelder=0.05, hoelder_exponent=0.5))
    cases = {
        "composition": ("composition-gdp", base),
        "nonconvex, smooth": ("shifted-interpolation", base),
        "Hoelder gradients, exponent 1/2": ("hoelder-bounded-domain", hoelder),
    }
    lines = {
        name: [curve(row, replace(run, steps=k)).epsilon(DELTA) for k in counts]
        for name, (row, run) in cases.items()
    }
    rows = [
        Row(f"{name}, {k} steps: epsilon at {DELTA:g}", value)
        for name, line in lines.items()
        for k, value in zip(counts, line, strict=True)
    ]
    rows += [
        Row(f"{name}: growth over the last tenfold of steps", line[-1] - line[-2], 0.0, 1e-6)
        for name, line in lines.items()
        if name != "composition"
    ]
    return Result(
        tuple(rows),
        (
            Panel(
                "diameter 0.1, n = 100",
                "steps",
                f"epsilon at {DELTA:g}",
                traced(counts, lines, "composition", "certified", "other upper"),
                True,
                True,
            ),
        ),
        {
            "n": base.n,
            "step": 0.1,
            "noise": 0.5,
            "diameter": 0.1,
            "smooth": 1.0,
            "weak convexity": 0.05,
            "Hoelder": [0.05, 0.5],
        },
        (
            "Published: that the loss converges. Their Theorem 3.1 is contained in "
            "shifted-interpolation with "
            "a step's Lipschitz constant 1 + step M, and their Hoelder form in "
            "hoelder-bounded-domain; their "
            "own numbers come from nonlinear programmes and are not at hand.",
        ),
    )


def forgetting(work: Work) -> Result:
    """Noisy steps without a record after training with it, against never having seen it: exact and
    bounded."""
    counts, c, std, rows = (1, 3, 10, 30, 100, 300), 0.98, 0.02, list[Row]()
    apart = (
        0.1  # distance of the weights that training leaves, the most that strong convexity allows
    )

    def mu(steps: int) -> float:
        return apart * c**steps / (std * math.sqrt(sum(c ** (2 * k) for k in range(steps))))

    def exact(steps: int) -> float:
        gap, variance = apart, 0.0
        for _ in range(steps):
            gap, variance = c * gap, c * c * variance + std**2
        return gap / math.sqrt(variance)

    epsilons = [Gdp(mu(k)).epsilon(DELTA) for k in counts]
    rows = [Row(f"{k} steps: mu, exact on quadratics", exact(k), mu(k), 1e-9) for k in counts]
    rows += [
        Row(f"{k} steps: epsilon at {DELTA:g}", value)
        for k, value in zip(counts, epsilons, strict=True)
    ]
    again = math.ceil(math.log(1e3) / -math.log(c))
    rows.append(Row("steps of a new training that shrinks its start a thousandfold", again))
    return Result(
        tuple(rows),
        (
            Panel(
                "distance 0.1 after training",
                "steps",
                f"epsilon at {DELTA:g}",
                traced(counts, {"continued without the record": epsilons}, "certified"),
                True,
                True,
            ),
        ),
        {"contraction": c, "noise on the iterate": std, "distance": apart, "delta": DELTA},
        (
            "Published represents mu = z c^K/sqrt(sum of v c^(2k)), in our form "
            "(docs/theorems/forgetting); "
            "their bound for whole trainings is compared in "
            "benchmarks/utility/forgetting_bounds.py.",
        ),
        restored=True,
    )


ITEMS = (
    Item(
        "chien-li-convergence",
        CHIEN_LI,
        "Convergent privacy loss without convexity and smoothness",
        "matches",
        chien_li,
        finding="In a bounded domain the certified loss stops growing after some hundred steps "
        "([nonconvex, smooth, "
        "1000 steps: epsilon at 1e-05] for smooth nonconvex losses), while composition's keeps "
        "growing.",
    ),
    Item(
        "chien-forgetting",
        FORGETTING,
        "Forgetting a record by continuing without it",
        "restored",
        forgetting,
        finding="100 noisy steps bring epsilon from [1 steps: epsilon at 1e-05] to [100 steps: "
        "epsilon at 1e-05]; a "
        "new training would take [steps of a new training that shrinks its start a thousandfold].",
    ),
)
