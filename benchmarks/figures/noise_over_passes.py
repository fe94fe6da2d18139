"""The README's picture: the noise multiplier that a budget needs over the number of passes.

python -m benchmarks.figures.noise_over_passes docs/figures/noise.png   (a minute; dp-accounting, matplotlib)
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import lastiterate as li
from benchmarks.peers.poisson_noise import poisson_noise

DELTA, BLOCKS, PASSES = 1e-6, 20, (1, 2, 5, 10, 20, 50, 100, 200, 500)


def ours(batching: type, epsilon: float, passes: int, *, release: str = "last") -> float:
    """Noise multiplier for a convex smooth loss in ``BLOCKS`` batches."""
    run = li.Run(
        n=BLOCKS * 50,
        steps=BLOCKS * passes,
        step_size=li.Constant(1.0),
        noise=li.NoiseMultiplier(1.0),
        batching=batching(50),
        loss=li.KnownConstants(li.LossFacts(lipschitz=1.0, smooth=1.0, strong=0.0)),
    )
    run = replace(run, release=release)
    return li.calibrate(
        run, epsilon=epsilon, delta=DELTA, min_evidence=li.Evidence.ASSUMED
    ).run.noise.z


def main(path: Path) -> None:
    """Draw two budgets side by side."""
    from matplotlib.figure import Figure

    made = Figure(figsize=(8.4, 3.8), layout="constrained")
    for place, epsilon in enumerate((1, 8)):
        axes = made.add_subplot(1, 2, place + 1)
        lines = {
            "blocks in order, composition": (
                [ours(li.Cyclic, epsilon, e, release="all") for e in PASSES],
                ":",
                "#999999",
            ),
            "Poisson sampling (all iterates)": (
                [poisson_noise(1 / BLOCKS, BLOCKS * e, epsilon, DELTA, 1e-3) for e in PASSES],
                "--",
                "#d95f02",
            ),
            "random allocation (all iterates)": (
                [ours(li.RandomAllocation, epsilon, e, release="all") for e in PASSES],
                "-.",
                "#e7298a",
            ),
            "blocks in order, last iterate": (
                [ours(li.Cyclic, epsilon, e) for e in PASSES],
                "-",
                "#7570b3",
            ),
            "shuffled once, last iterate": (
                [ours(li.Permuted, epsilon, e) for e in PASSES],
                "-",
                "#1b9e77",
            ),
        }
        for name, (values, style, colour) in lines.items():
            axes.plot(PASSES, values, style, color=colour, label=name, linewidth=2)
            print(epsilon, name, [round(v, 3) for v in values])
        axes.set(
            xscale="log", yscale="log", xlabel="passes over the data", title=f"epsilon = {epsilon}"
        )
        if place == 0:
            axes.set_ylabel("noise multiplier needed")
            axes.legend(frameon=False, fontsize=8)
    made.savefig(path, dpi=150)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/figures/noise.png"))
