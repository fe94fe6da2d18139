"""The picture of docs/guides/posterior-sample.md: a private posterior, and SGLD on its way there.

python -m benchmarks.figures.posterior_and_sgld docs/figures/posterior.png          (half a minute; needs matplotlib)
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lastiterate.bayes import Breach, breach
from lastiterate.bayes.sgld_law import common_law, neighbour_laws
from lastiterate.bayes.sgld_privacy import best_witness, chernoff_epsilon, pair_on_grid

BUDGET = (1.0, 1e-5, 20.0)


@dataclass(frozen=True)
class Lines:
    """Epsilon at delta over passes: certified for the posterior, and three times from below for SGLD."""

    epochs: tuple[int, ...]
    posterior: float
    chernoff: tuple[float, ...]
    half_line: tuple[float, ...]
    exact: tuple[float, ...]


def over_epochs(found: Breach, points: int = 41, grid: int = 2001) -> Lines:
    """The curves of Heller and Fetaya's Figure 1 for a problem found by ``breach``."""
    turning = found.epochs
    epochs = tuple(int(k) for k in np.unique(np.geomspace(turning / 60, turning * 12, points).astype(int)))
    chain, delta = found.chain, found.delta
    steps = [k * chain.n for k in epochs]
    return Lines(epochs, found.posterior_epsilon,
                 tuple(chernoff_epsilon(chain, step, delta) for step in steps),
                 tuple(best_witness(chain, step, delta).epsilon(delta) for step in steps),
                 tuple(pair_on_grid(chain, step, grid).epsilon(delta) for step in steps))


def main(path: Path) -> None:
    """Draw both panels."""
    from matplotlib.figure import Figure

    found = breach(*BUDGET)
    lines, chain = over_epochs(found), found.chain
    made = Figure(figsize=(10.5, 4.0), layout="constrained")
    left, right = made.subplots(1, 2)
    left.plot(lines.epochs, lines.exact, color="black", linewidth=2, label="SGLD, exact law of one pair")
    left.plot(lines.epochs, lines.half_line, ":", color="#7570b3", linewidth=3, label="SGLD, one event")
    left.plot(lines.epochs, lines.chernoff, "--", color="#d95f02", label="SGLD, Chernoff bound as published")
    left.axhline(lines.posterior, color="#1b9e77", linewidth=4, alpha=0.6, label="posterior sample, certified")
    left.set(xscale="log", xlabel="passes over the data", ylabel=f"epsilon at delta = {found.delta:g}", ylim=(0, None))
    left.set_title(f"n = {chain.n}, ratio c = {found.domain.ratio:.0f}", fontsize=10)
    left.legend(frameon=False, fontsize=8)
    mean, variance = common_law(chain, found.step)
    means, variances = neighbour_laws(chain, found.step)
    x = np.linspace(float(means.min()) - 5 * math.sqrt(variance), mean + 5 * math.sqrt(variance), 500)
    right.plot(x, np.exp(-((x - mean) ** 2) / (2 * variance)) / math.sqrt(2 * math.pi * variance), color="#7570b3",
               label="SGLD, data set 1")
    mixed = [np.mean(np.exp(-((at - means) ** 2) / (2 * variances)) / np.sqrt(2 * math.pi * variances)) for at in x]
    right.plot(x, mixed, color="#d95f02", label="SGLD, data set 2")
    right.set(xlabel="theta - c", ylabel="density", yticks=[])
    right.set_title(f"one number released after {found.epochs} passes", fontsize=10)
    right.legend(frameon=False, fontsize=8)
    made.savefig(path, dpi=130)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/figures/posterior.png"))
