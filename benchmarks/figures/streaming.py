"""Data larger than memory in one picture: what grows with the number of records, and noise against
speed.

python -m benchmarks.figures.streaming docs/figures/streaming.png     reads the tables of benchmarks/RESULTS.md
"""

from __future__ import annotations

import sys
from pathlib import Path

RESULTS = Path(__file__).parents[1] / "RESULTS.md"


def table(head: str) -> list[list[str]]:
    """The rows below the first table whose head begins with ``head``."""
    lines = RESULTS.read_text(encoding="utf-8").split(f"| {head} ", 1)[1].splitlines()[2:]
    rows = lines[
        : next((i for i, line in enumerate(lines) if not line.startswith("|")), len(lines))
    ]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def number(cell: str) -> float:
    return float(cell.replace(",", ""))


def main(path: Path) -> None:
    from matplotlib.figure import Figure

    made = Figure(figsize=(8.4, 3.6), layout="constrained")
    left, right = made.add_subplot(1, 2, 1), made.add_subplot(1, 2, 2)
    growth = table("records")
    for kind, colour in (("cyclic", "#1b9e77"), ("permuted", "#7570b3")):
        rows = [row for row in growth if row[1] == kind]
        counts = [number(row[0]) for row in rows]
        left.plot(
            counts,
            [number(row[4]) for row in rows],
            "o-",
            color=colour,
            label=f"{kind}: peak memory, MB",
        )
        left.plot(
            counts,
            [number(row[3]) for row in rows],
            "o:",
            color=colour,
            label=f"{kind}: processor s per pass",
        )
    counts = sorted({number(row[0]) for row in growth})
    left.plot(
        counts,
        [n * 4 * 33 / 1e6 for n in counts],
        "--",
        color="#999999",
        label="arrays in memory, MB",
    )
    left.set(xscale="log", yscale="log", xlabel="records of 16 numbers")
    left.legend(fontsize=7)
    for row in table("batches, 4.28 GB"):
        right.plot(number(row[3]), number(row[1]), "o", color="#7570b3")
        right.annotate(
            row[0], (number(row[3]), number(row[1])), (5, 3), textcoords="offset points", fontsize=8
        )
    right.set(
        xscale="log",
        xlabel="processor s per pass over 4.28 GB",
        ylabel="noise multiplier at epsilon 1",
        ylim=(0, None),
    )
    right.margins(x=0.2)
    made.savefig(path, dpi=150)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
