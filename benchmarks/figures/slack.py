"""How far certificates are above what is known to leak: upper bounds over lower ones, as a picture
and a table.

python -m benchmarks.figures.slack docs/figures/slack.png benchmarks/slack.json   (four minutes, one core; matplotlib)

Logistic regression on rows of norm 1, 20 batches in a pass, steps 1/smooth, zero-out, only the last
iterate is released. Lower bounds are exact laws of losses of the class: of ``linear-witness`` and
``quadratic-witness`` (nobody else has a gradient), and, where batches have one size, of losses
whose other records all oppose it: then a record that is drawn takes the place of one that opposes
it (``against``, and ``bent_witness`` where the others' curvature makes the last steps forget more
than the ridge does).
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

import lastiterate as li
from benchmarks.figures import bent_witness

DELTA, BLOCKS, SIZES = 1e-5, 20, (1_000, 10_000, 100_000)
SETTINGS = ((0.0, 2.0, 5), (0.0, 0.8, 5), (0.01, 2.0, 50), (0.1, 2.0, 50), (0.0, 0.8, 200))
"""Ridge, noise multiplier, passes. Smoothness is 1/4 and the ridge."""
BATCHES = {
    "allocation": li.RandomAllocation,
    "Poisson": lambda size: li.Poisson(1 / BLOCKS),
    "permuted": li.Permuted,
    "reshuffled": li.Reshuffled,
    "fixed size": li.FixedSize,
}
EXCHANGED = ("permuted", "reshuffled", "fixed size")
"""Batches in which a record takes another one's place."""


def described(batches: str, n: int, ridge: float, z: float, passes: int) -> li.Run:
    """The run of one cell."""
    return li.Run(
        n=n,
        steps=BLOCKS * passes,
        step_size=1 / (0.25 + ridge),
        noise=li.NoiseMultiplier(z),
        batching=BATCHES[batches](n // BLOCKS),
        loss=li.Logistic(row_norm=1.0, intercept=0.0, ridge=ridge),
    )


def characteristic(
    batches: str, weights: np.ndarray, at: np.ndarray, rate: float = 1 / BLOCKS
) -> np.ndarray:
    """E exp(i w S), S the sum of the weights of the steps that draw the record; ``rate``: that of a
    fixed size."""

    def each(part: np.ndarray) -> np.ndarray:
        return np.exp(1j * at * part[:, None])

    seen = weights[weights > 1e-12]
    if batches == "fixed size":
        return np.prod(1 + (each(seen) - 1) * rate, axis=0)
    passes = weights.reshape(-1, BLOCKS)
    if batches == "permuted":
        return each(passes.sum(0)).mean(0)
    return np.prod([each(one).mean(0) for one in passes[passes.max(1) > 1e-12]], axis=0)


def against(batches: str, ridge: float, z: float, passes: int) -> float:
    """Epsilon of the losses whose others oppose the record: the laws of 2 S and S plus noise, by
    Fourier.

    Densities are good to 1e-15, so that a delta of 1e-5 is known where epsilon is below 15; without
    a ridge S of a pass is 1 for permutations, where nothing is gained, and S of a fixed size is
    binomial.
    """
    c, steps = 1 - ridge / (0.25 + ridge), BLOCKS * passes
    weights = c ** np.arange(steps)[::-1].astype(float)
    weights /= z * math.sqrt((weights**2).sum())
    if ridge == 0 and batches != "fixed size":
        return 0.0
    if ridge > 0:
        return opposed(batches, weights)
    from scipy.stats import binom

    count = np.arange(steps + 1)
    laws = [(binom.pmf(count, steps, 1 / BLOCKS), count * weights[0] * times) for times in (2, 1)]
    x = np.linspace(
        -9, 9 + 2 * laws[1][1][binom.ppf(1 - 1e-14, steps, 1 / BLOCKS).astype(int)], 4001
    )
    p, q = (
        np.exp(-((x[:, None] - mean) ** 2) / 2) @ chance / math.sqrt(2 * math.pi)
        for chance, mean in laws
    )
    return epsilon_of(p, q, x[1] - x[0])


def opposed(batches: str, weights: np.ndarray, rate: float = 1 / BLOCKS) -> float:
    """Epsilon of 2 S against S, each plus standard normal noise: a record that others oppose, under
    zero-out.

    ``weights``: what is left of a step's move at the end, over the noise; ``rate``: of a fixed
    size.
    """
    width = 40 + 4 * float(weights.sum())
    at = 2 * math.pi * np.arange(int(9 * width / (2 * math.pi)) + 1) / width
    x = np.linspace(-9, 12 + 2 * float(weights.sum()), 4001)
    back = np.exp(-1j * x[:, None] * at)
    p, q = (
        np.maximum(
            (
                back @ (characteristic(batches, weights * times, at, rate) * np.exp(-at * at / 2))
            ).real
            * 2
            - 1,
            0.0,
        )
        / width
        for times in (2, 1)
    )
    return epsilon_of(p, q, x[1] - x[0])


def epsilon_of(p: np.ndarray, q: np.ndarray, width: float) -> float:
    """The epsilon of two densities at DELTA, both orders."""
    low, high = 0.0, 80.0
    for _ in range(45):
        middle = (low + high) / 2
        found = max(
            np.maximum(a - math.exp(middle) * b, 0.0).sum() * width for a, b in ((p, q), (q, p))
        )
        low, high = (middle, high) if found > DELTA else (low, middle)
    return low


def cell(batches: str, n: int, ridge: float, z: float, passes: int) -> dict[str, Any]:
    """The smallest upper bound and the largest lower one, with the names of what gave them."""
    certificate = li.account(described(batches, n, ridge, z, passes))
    rows = [row for row in certificate.rows(DELTA) if row["applies"] and row["kind"] == "lower"]
    lower, by = max(((row["epsilon"], row["theorem"]) for row in rows), default=(0.0, ""))
    if batches in EXCHANGED:
        bent = max(
            (epsilon_of(*found) for found in bent_witness.laws(batches, n, ridge, z, passes)),
            default=0.0,
        )
        lower, by = max(
            (lower, by),
            (against(batches, ridge, z, passes), "others oppose the record"),
            (bent, "others oppose the record and bend"),
        )
    upper = certificate.epsilon(DELTA)
    return {
        "batches": batches,
        "n": n,
        "rho": round(ridge / (0.25 + ridge), 4),
        "z": z,
        "passes": passes,
        "upper": upper,
        "row": certificate.best(DELTA).theorem.name,
        "lower": lower,
        "witness": by,
        "slack": upper / lower,
    }


def table(cells: list[dict[str, Any]], n: int) -> str:
    """Upper over lower, as Markdown."""
    lines = ["| setting | " + " | ".join(BATCHES) + " |", "|---" * (len(BATCHES) + 1) + "|"]
    for ridge, z, passes in SETTINGS:
        rho = round(ridge / (0.25 + ridge), 4)
        found = [
            one
            for one in cells
            if (one["n"], one["rho"], one["z"], one["passes"]) == (n, rho, z, passes)
        ]
        lines.append(
            f"| rho {rho:.3g}, z {z:g}, E {passes} | "
            + " | ".join(
                f"{one['upper']:.3g} / {one['lower']:.3g} = **{one['slack']:.2f}**" for one in found
            )
            + " |"
        )
    return "\n".join(lines)


def picture(cells: list[dict[str, Any]], path: Path) -> None:
    """One bar from lower to upper for every cell of the middle size."""
    from matplotlib.figure import Figure

    made = Figure(figsize=(8.4, 3.8), layout="constrained")
    axes = made.add_subplot()
    colours = ("#1b9e77", "#d95f02", "#7570b3", "#e7298a", "#666666")
    for place, (name, colour) in enumerate(zip(BATCHES, colours, strict=True)):
        mine = [one for one in cells if one["batches"] == name and one["n"] == SIZES[1]]
        for row, one in enumerate(mine):
            at = row + (place - 2) * 0.15
            axes.plot(
                [at, at],
                [one["lower"], one["upper"]],
                "-",
                color=colour,
                linewidth=4,
                solid_capstyle="butt",
                label=name if row == 0 else None,
            )
            axes.plot([at], [one["upper"]], "v", color=colour, markersize=5)
    labels = [
        f"rho {ridge / (0.25 + ridge):.3g}, z {z:g}, E {passes}" for ridge, z, passes in SETTINGS
    ]
    axes.set_xticks(range(len(SETTINGS)), labels, fontsize=8)
    axes.set(
        yscale="log",
        ylabel="epsilon at delta 1e-5",
        title="From what some loss leaks to what is certified",
    )
    axes.legend(frameon=False, fontsize=8, loc="upper center", ncol=5)
    made.savefig(path, dpi=150)


def main(image: Path, found: Path) -> None:
    cells = [
        cell(batches, n, *setting) for n in SIZES for setting in SETTINGS for batches in BATCHES
    ]
    found.write_text(json.dumps(cells, indent=1) + "\n", encoding="utf-8")
    for n in SIZES:
        print(f"\nn = {n}\n\n{table(cells, n)}")
    picture(cells, image)


if __name__ == "__main__":
    main(*(Path(one) for one in sys.argv[1:3]))
