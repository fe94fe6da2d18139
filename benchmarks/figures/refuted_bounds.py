"""The picture of docs/guides/how-bounds-fail.md: what was claimed, what is true, and what
certifies.

python -m benchmarks.figures.refuted_bounds docs/figures/refuted.png          (seconds; needs matplotlib)
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import lastiterate as li
from lastiterate.analysis.shifts import best_restart
from lastiterate.curves.gaussian import Gdp
from lastiterate.theorems import TABLE
from lastiterate.theorems.theorem import Applies, match

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from lastiterate.testing.exact_distributions import exact_mu
from oracles.gaussian import chain_delta, mixture_renyi, projected_mixture_renyi
from oracles.plane import expanding

ORDERS = tuple(float(a) for a in np.geomspace(1.05, 64, 30))


@dataclass(frozen=True)
class Panel:
    """One mistake: the claim, the truth and our bound over ``x``."""

    title: str
    x_name: str
    y_name: str
    x: tuple[float, ...]
    claimed: tuple[float, ...]
    true: tuple[float, ...]
    ours: tuple[float, ...]
    log: bool = False


def curve(name: str, run: li.Run) -> Any:
    """The curve of a theorem that applies."""
    found = match(TABLE[name], run)
    assert isinstance(found, Applies), found
    return found.curve


def _assumed(**constants: float) -> li.KnownConstants:
    return li.KnownConstants(li.LossFacts(**constants))


def averaged_drift() -> Panel:
    """Ryffel, Bach and Pointcheval, Theorem 3.2 with m < n: one record in a hundred, one step."""
    run = li.Run(
        n=100,
        steps=1,
        step_size=li.Constant(0.9),
        noise=li.Langevin(0.1),
        batching=li.FixedSize(1),
        domain=li.domains.Ball(1.0),
        start=li.GaussianStart(0.1 * math.sqrt(2)),
        adjacency="replace-one",
        loss=_assumed(lipschitz=2.0, smooth=1.0, strong=1.0),
    )
    p, q, std = (
        ([0.99, 0.01], [-0.9, 0.9]),
        ([1.0], [-0.9]),
        math.sqrt(0.1**2 * 0.02 + 2 * 0.9 * 0.01),
    )
    return Panel(
        "a drift averaged over the draw",
        "order",
        "Renyi divergence",
        ORDERS,
        tuple(curve("sgld-strongly-convex-sampled", run).rdp(a) for a in ORDERS),
        tuple(projected_mixture_renyi(a, p, q, std, -1, 1, points=100_001) for a in ORDERS),
        tuple(curve("sgld-strongly-convex-batch", run).rdp(a) for a in ORDERS),
        log=True,
    )


def averaged_divergence() -> Panel:
    """Liang et al., Theorem 3.3 as their script computes it: linear losses, one record in a
    hundred, one step."""
    run = li.Run(
        n=100,
        steps=1,
        step_size=li.Constant(1.0),
        noise=li.GradientNoise(1.0),
        batching=li.FixedSize(1),
        domain=li.domains.Ball(100.0),
        adjacency="replace-one",
        loss=_assumed(lipschitz=1.0, smooth=1.0, strong=0.0),
    )
    p, q = ([0.99, 0.01], [-1.0, 1.0]), ([1.0], [-1.0])
    return Panel(
        "a divergence averaged over the draw",
        "order",
        "Renyi divergence",
        ORDERS,
        tuple(curve("smooth-bounded-domain", run).rdp(a) for a in ORDERS),
        tuple(mixture_renyi(a, p, q, 1.0, points=100_001) for a in ORDERS),
        tuple(curve("composition-gdp", run).rdp(a) for a in ORDERS),
        log=True,
    )


def unfinished_pass() -> Panel:
    """Counting floor(T/l) passes: two blocks, linear losses, an odd number of steps."""
    counts = tuple(range(3, 30, 2))

    def run(steps: int) -> li.Run:
        return li.Run(
            n=2,
            steps=steps,
            step_size=li.Constant(1.0),
            noise=li.GradientNoise(1.0),
            batching=li.Cyclic(1),
            loss=_assumed(sensitivity=1.0, smooth=1.0, strong=0.0),
        )

    def true(steps: int) -> float:
        ones, at = np.ones(steps), np.arange(steps) % 2
        return max(exact_mu(0.0, ones, ones, np.where(at == j, 1.0, 0.0)) ** 2 for j in (0, 1))

    return Panel(
        "a pass that was only begun",
        "steps, in passes of 2",
        "mu^2 v / s^2",
        tuple(map(float, counts)),
        tuple((steps // 2 - 1) / 2 + 1 for steps in counts),
        tuple(map(true, counts)),
        tuple(curve("pabi-convex", run(steps)).mu ** 2 for steps in counts),
    )


def radius() -> Panel:
    """A restart priced by the radius of the domain: to the ends of [-1, 1], and one noisy step."""
    v, epsilons = 0.3, tuple(float(e) for e in np.linspace(0, 6, 25))
    steps = [(lambda x: 0 * x - 5, lambda x: 0 * x + 5, 1e-12), (lambda x: x, lambda x: x, v)]
    c, s, noise = np.array([0.0, 1.0]), np.array([10.0, 0.0]), np.array([1e-12, v])
    ours = Gdp(best_restart(c, s, noise, 2.0))
    return Panel(
        "the radius for the diameter",
        "epsilon",
        "delta",
        epsilons,
        tuple(Gdp(1 / math.sqrt(v)).delta(e) for e in epsilons),
        tuple(chain_delta(e, steps, -1, 1, cells=801) for e in epsilons),
        tuple(ours.delta(e) for e in epsilons),
    )


def rotation() -> Panel:
    """Clipped steps of a convex smooth loss taken for nonexpansive ones: a chain in the plane that
    stretches."""
    chain, passes = (
        expanding(2, size=20_000, std=1 / 20_000 / 0.5),
        (4, 8, 12, 16, 20, 26, 32, 40, 50),
    )
    run = li.Run(
        n=100_000,
        steps=5,
        step_size=li.Constant(1.0),
        noise=li.GradientNoise(chain.std),
        clip=1.0,
        batching=li.Cyclic(20_000),
        loss=_assumed(smooth=1.0, strong=0.0),
    )
    free = replace(run, clip=None, loss=_assumed(sensitivity=1.0, smooth=1.0, strong=0.0))

    def over(name: str, of: li.Run) -> tuple[float, ...]:
        return tuple(curve(name, replace(of, steps=5 * e)).mu for e in passes)

    return Panel(
        "clipping taken for nonexpansive",
        "passes of 5 steps",
        "mu",
        tuple(map(float, passes)),
        over("pabi-convex", free),
        tuple(chain.exact_mu(e)[0] for e in passes),
        over("shifted-interpolation", run),
    )


def short_block() -> Panel:
    """The strong constant of a mean used for a block of one record that is divided by five: n = 6,
    b = 5."""
    eta, strong, counts = 0.3, 1.0, tuple(range(2, 42, 2))

    def bound(batching: li.Cyclic, n: int, steps: int) -> float:
        run = li.Run(
            n=n,
            steps=steps,
            step_size=li.Constant(eta),
            noise=li.GradientNoise(1.0),
            batching=batching,
            adjacency="replace-one",
            loss=_assumed(sensitivity=1.0, smooth=1.0, strong=strong),
        )
        return curve("shifted-interpolation", run).mu

    def true(steps: int) -> float:
        at, ones = np.arange(steps) % 2, np.ones(steps)
        bends = np.where(at == 0, strong, strong / 5)
        return max(exact_mu(bends, eta * ones, ones, np.where(at == j, 1 / 5, 0.0)) for j in (0, 1))

    return Panel(
        "a short block taken for a full one",
        "steps, in passes of 2",
        "mu",
        tuple(map(float, counts)),
        tuple(bound(li.Cyclic(5), 10, k) for k in counts),
        tuple(map(true, counts)),
        tuple(bound(li.Cyclic(5), 6, k) for k in counts),
    )


PANELS: tuple[Callable[[], Panel], ...] = (
    averaged_drift,
    averaged_divergence,
    unfinished_pass,
    radius,
    rotation,
    short_block,
)


def main(path: Path) -> None:
    """Draw all panels."""
    from matplotlib.figure import Figure

    made = Figure(figsize=(11, 6.4), layout="constrained")
    for place, make in enumerate(PANELS):
        panel, axes = make(), made.add_subplot(2, 3, place + 1)
        axes.plot(
            panel.x, panel.ours, color="#1b9e77", linewidth=4, alpha=0.6, label="what certifies"
        )
        axes.plot(panel.x, panel.true, color="black", linewidth=2, label="the truth")
        axes.plot(panel.x, panel.claimed, "--", color="#d95f02", linewidth=2, label="the mistake")
        axes.set(xlabel=panel.x_name, ylabel=panel.y_name)
        axes.set_title(panel.title, fontsize=10)
        if panel.log:
            axes.set(xscale="log", yscale="log")
        if place == 0:
            axes.legend(frameon=False, fontsize=8)
    made.savefig(path, dpi=130)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/figures/refuted.png"))
