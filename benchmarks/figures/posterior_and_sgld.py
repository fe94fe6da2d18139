"""The picture of docs/guides/posterior-sample.md: a private posterior, and SGLD on its way there.

python -m benchmarks.figures.posterior_and_sgld docs/figures/posterior.png          (half a minute; needs matplotlib)
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lastiterate_papers.interim_breach import Breach, breach
from lastiterate_papers.sgld_law import Chain, common_law, neighbour_laws
from lastiterate_papers.sgld_privacy import best_witness, chernoff_epsilon

BUDGET = (1.0, 1e-5, 20.0)


@dataclass(frozen=True)
class Lines:
    """Epsilon at delta over passes: certified for the posterior, and three times from below for
    SGLD."""

    epochs: tuple[int, ...]
    posterior: float
    chernoff: tuple[float, ...]
    half_line: tuple[float, ...]
    exact: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class PairOnGrid:
    """Densities of data set 1 (``log_p``) and 2 (``log_q``) at one step, on a grid of shape (m,)
    with its spacing."""

    spacing: float
    log_p: np.ndarray
    log_q: np.ndarray

    def deltas(self, epsilon: float) -> tuple[float, float]:
        """delta(epsilon) of set 1 against 2 and of 2 against 1, by the trapezium rule: an estimate
        of both."""
        with np.errstate(over="ignore", under="ignore"):
            one = np.exp(self.log_p) * -np.expm1(np.minimum(epsilon + self.log_q - self.log_p, 0.0))
            two = np.exp(self.log_q) * -np.expm1(np.minimum(epsilon + self.log_p - self.log_q, 0.0))
        return float(one.sum() * self.spacing), float(two.sum() * self.spacing)

    def delta(self, epsilon: float) -> float:
        """The larger of both directions."""
        return max(self.deltas(epsilon))

    def epsilon(self, delta: float) -> float:
        """The epsilon at which ``delta(epsilon)`` is ``delta``, by bisection."""
        low, high = 0.0, 1.0
        while self.delta(high) > delta:
            low, high = high, 2 * high
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if self.delta(middle) > delta else (low, middle)
        return high


def pair_on_grid(chain: Chain, step: int, points: int = 4001) -> PairOnGrid:
    """The pair at one step, on a grid that holds all but 1e-30 of both laws; O(n points) work."""
    from scipy.special import logsumexp  # pyright: ignore

    total: Any = logsumexp
    mean, variance = common_law(chain, step)
    means, variances = neighbour_laws(chain, step)
    reach = 12 * math.sqrt(max(variance, float(variances.max())))
    x = np.linspace(
        min(mean, float(means.min())) - reach, max(mean, float(means.max())) + reach, points
    )
    log_p = -((x - mean) ** 2) / (2 * variance) - math.log(2 * math.pi * variance) / 2
    log_q = np.empty(points)
    for part in np.array_split(np.arange(points), max(1, points * chain.n // 4_000_000)):
        logs = (
            -((x[part, None] - means) ** 2) / (2 * variances) - np.log(2 * math.pi * variances) / 2
        )
        log_q[part] = total(logs, axis=1) - math.log(chain.n)
    return PairOnGrid(float(x[1] - x[0]), log_p, log_q)


def over_epochs(found: Breach, points: int = 41, grid: int = 2001) -> Lines:
    """The curves of Heller and Fetaya's Figure 1 for a problem found by ``breach``."""
    turning = found.epochs
    epochs = tuple(
        int(k) for k in np.unique(np.geomspace(turning / 60, turning * 12, points).astype(int))
    )
    chain, delta = found.chain, found.delta
    steps = [k * chain.n for k in epochs]
    return Lines(
        epochs,
        found.posterior_epsilon,
        tuple(chernoff_epsilon(chain, step, delta) for step in steps),
        tuple(best_witness(chain, step, delta).epsilon(delta) for step in steps),
        tuple(pair_on_grid(chain, step, grid).epsilon(delta) for step in steps),
    )


def main(path: Path) -> None:
    """Draw both panels."""
    from matplotlib.figure import Figure

    found = breach(*BUDGET)
    lines, chain = over_epochs(found), found.chain
    made = Figure(figsize=(10.5, 4.0), layout="constrained")
    left, right = made.subplots(1, 2)
    left.plot(
        lines.epochs, lines.exact, color="black", linewidth=2, label="SGLD, exact law of one pair"
    )
    left.plot(
        lines.epochs, lines.half_line, ":", color="#7570b3", linewidth=3, label="SGLD, one event"
    )
    left.plot(
        lines.epochs,
        lines.chernoff,
        "--",
        color="#d95f02",
        label="SGLD, Chernoff bound as published",
    )
    left.axhline(
        lines.posterior,
        color="#1b9e77",
        linewidth=4,
        alpha=0.6,
        label="posterior sample, certified",
    )
    left.set(
        xscale="log",
        xlabel="passes over the data",
        ylabel=f"epsilon at delta = {found.delta:g}",
        ylim=(0, None),
    )
    left.set_title(f"n = {chain.n}, ratio c = {found.domain.ratio:.0f}", fontsize=10)
    left.legend(frameon=False, fontsize=8)
    mean, variance = common_law(chain, found.step)
    means, variances = neighbour_laws(chain, found.step)
    x = np.linspace(
        float(means.min()) - 5 * math.sqrt(variance), mean + 5 * math.sqrt(variance), 500
    )
    right.plot(
        x,
        np.exp(-((x - mean) ** 2) / (2 * variance)) / math.sqrt(2 * math.pi * variance),
        color="#7570b3",
        label="SGLD, data set 1",
    )
    mixed = [
        np.mean(np.exp(-((at - means) ** 2) / (2 * variances)) / np.sqrt(2 * math.pi * variances))
        for at in x
    ]
    right.plot(x, mixed, color="#d95f02", label="SGLD, data set 2")
    right.set(xlabel="theta - c", ylabel="density", yticks=[])
    right.set_title(f"one number released after {found.epochs} passes", fontsize=10)
    right.legend(frameon=False, fontsize=8)
    made.savefig(path, dpi=130)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/figures/posterior.png"))
