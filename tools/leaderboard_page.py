"""Write docs/leaderboard.md and .json: everybody's methods (leaderboard_screen.py), then our named
algorithms.

The latter are those of benchmarks/leaderboard.json: algorithms by data sets and budgets.

Rows of benchmarks/named_algorithms.json (epsilon 1) join them where they have more splits of the
same run, and those of other libraries from benchmarks/named_rivals.json. What the first command has
measured already it keeps, so that it adds the cells that are missing; the second adds the rows
without privacy.

python -m benchmarks.utility.named_algorithms DATA_DIR 3 --sets
    digits,breast_cancer,adult,pneumonia,cifar,mnist \\ --epsilons 0.5,1,3,8 --json
    benchmarks/leaderboard.json python -m benchmarks.utility.named_algorithms DATA_DIR 3 --sets
    digits,breast_cancer,adult,pneumonia,cifar,mnist \\ --algorithms none --json
    benchmarks/leaderboard.json python tools/leaderboard_page.py
"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from leaderboard_screen import screen, summary

from lastiterate.planning.presets import ALGORITHMS

ROOT = Path(__file__).parents[1]
BUDGETS, SPLITS, NONE = (0.5, 1.0, 3.0, 8.0), 3, "none"
HEAD = """
# Named algorithms

Test accuracy on plain rows of the named algorithms (`lastiterate train --algorithm`), delta 1e-5, zero-out: the mean
over random splits and noise with its standard deviation. Nothing is tuned on the sets.

- *passes*: gradient evaluations over n. Seconds are those of a fit on two loaded cores.
- *behind*: the mean distance to the best private row over common splits. A distance that is not larger than its
  standard error, paired by split, is a *tie*.
- Opacus counts add-remove and diffprivlib promises pure epsilon-DP. Both were tuned on the test part, which nobody may
  do with private data, and are compared without pairing.
- *No privacy* is scikit-learn's logistic regression on the same rows.
- *noisy-sgd* takes 40,000 steps of one record, less than one epoch of MNIST and CIFAR-10, so it gains nothing from
  epsilon there.
- Rows that `fixed-size-amplified` or `restarted-fixed-size` certify were recorded before a tighter bound and would have
  less noise today.

The rows come from `benchmarks/leaderboard.json` and, at epsilon 1, `benchmarks/named_algorithms.json`. CIFAR-10
features are those of a DenseNet that was trained on CIFAR-100.
"""


def joined(rows: list[dict[str, Any]], more: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows, with those of epsilon 1 replaced by, or joined by, rows of more splits of the same run."""
    found = {(row["set"], row["epsilon"], row["algorithm"]): row for row in rows}
    for row in more:
        key = row["set"], 1.0, row["algorithm"]
        here = found.get(key)
        same = here is None or all(
            here[name] == row[name] for name in ("n", "steps", "theorem", "batches in a pass")
        )
        if same and (here is None or len(row["accuracy"]) > len(here["accuracy"])):
            found[key] = {**row, "epsilon": 1.0, "passes": row["steps"] / row["batches in a pass"]}
    return list(found.values())


def behind(best: dict[str, Any], row: dict[str, Any]) -> str:
    """How far a row's mean accuracy is below that of the best, and whether that is within a
    standard error."""
    if row is best:
        return ""
    if "accuracy" in row and "accuracy" in best:
        apart = [one - other for one, other in zip(best["accuracy"], row["accuracy"], strict=False)]
        difference, error = mean(apart), stdev(apart) / len(apart) ** 0.5 if len(apart) > 1 else 0.0
    else:
        difference = best["mean"] - row["mean"]
        error = sum(one["sd"] ** 2 / splits(one) for one in (best, row)) ** 0.5
    return f"{difference:.4f}" + (" (tie)" if abs(difference) <= error else "")


def splits(row: dict[str, Any]) -> int:
    """Over how many a row's mean is."""
    return len(row["accuracy"]) if "accuracy" in row else row["splits"]


def line(row: dict[str, Any], said: str) -> str:
    """A row of a table."""
    spread = f"{row['sd']:.4f}" if splits(row) > 1 else "-"
    took = f"{row['seconds']:.1f} | {row['passes']:.0f}" if "seconds" in row else " | "
    by = f"`{row['theorem']}`" if "theorem" in row else ""
    name = "*no privacy*" if row["algorithm"] == NONE else row["algorithm"]
    return f"| {name} | {row['mean']:.4f} | {said} | {spread} | {splits(row)} | {took} | {by} |"


def page(rows: list[dict[str, Any]]) -> str:
    """One table for every data set and budget, best first, with the row without privacy at the end."""
    lines, private = [HEAD], [row for row in rows if row["epsilon"] is not None]
    for name in dict.fromkeys(row["set"] for row in private):
        public = [line(row, "") for row in rows if row["set"] == name and row["epsilon"] is None]
        for epsilon in sorted({row["epsilon"] for row in private if row["set"] == name}):
            here = sorted(
                (row for row in private if (row["set"], row["epsilon"]) == (name, epsilon)),
                key=lambda row: -row["mean"],
            )
            lines += [
                f"\n## {name}, epsilon {epsilon:g}\n",
                f"n = {next(row['n'] for row in here if 'n' in row)}.\n",
                "| algorithm | accuracy | behind | sd | splits | seconds | passes | certified by |",
                "|---|---|---|---|---|---|---|---|",
                *(line(row, behind(here[0], row)) for row in here),
                *public,
            ]
    return "\n".join([*lines, *missing([row for row in private if "accuracy" in row])]) + "\n"


def missing(rows: list[dict[str, Any]]) -> list[str]:
    """Cells of the board that nobody measured, or on fewer splits than make a spread, and what they
    would take."""
    splits = {(row["set"], row["algorithm"], row["epsilon"]): len(row["accuracy"]) for row in rows}
    lines = list[str]()
    for name, algorithm in product(dict.fromkeys(row["set"] for row in rows), ALGORITHMS[1:]):
        wanting = {epsilon: splits.get((name, algorithm, epsilon), 0) for epsilon in BUDGETS}
        wanting = {epsilon: count for epsilon, count in wanting.items() if count < SPLITS}
        if not wanting:
            continue
        taken = [
            row["seconds"] for row in rows if (row["set"], row["algorithm"]) == (name, algorithm)
        ]
        cost = (
            f"about {SPLITS * len(wanting) * median(taken):.0f} seconds"
            if taken
            else "not measured"
        )
        cells = ", ".join(
            f"epsilon {epsilon:g} ({count or 'no'} split{'s' * (count != 1)})"
            for epsilon, count in wanting.items()
        )
        lines.append(f"- {name}, {algorithm}: {cells}; {SPLITS} splits of each: {cost}.")
    if not lines:
        return []
    return [
        "\n## What is missing\n",
        f"Cells with fewer than {SPLITS} splits, of algorithms that came later or for "
        "want of time; the same command adds them.\n",
        *lines,
    ]


def named() -> str:
    """The second part of the page, from its measurements."""
    ours, more, rivals = (
        json.loads((ROOT / "benchmarks" / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("leaderboard", "named_algorithms", "named_rivals")
    )
    return page([*joined(ours, more), *rivals])


if __name__ == "__main__":
    found = summary(ROOT / "benchmarks" / "board.jsonl")
    (ROOT / "docs" / "leaderboard.json").write_text(
        json.dumps(found, indent=1) + "\n", encoding="utf-8"
    )
    (ROOT / "docs" / "leaderboard.md").write_text(screen(found) + "\n" + named(), encoding="utf-8")
