"""Write docs/leaderboard.md and .json: everybody's methods (leaderboard_screen.py), then our named algorithms.

The latter are those of benchmarks/leaderboard.json: algorithms by data sets and budgets.

Rows of benchmarks/named_algorithms.json (epsilon 1) join them where they have more splits of the same run. What the
first command has measured already it keeps, so that it adds the cells that are missing.

python -m benchmarks.utility.named_algorithms DATA_DIR 3 --sets digits,breast_cancer,adult,pneumonia,cifar,mnist \\
    --epsilons 0.5,1,3,8 --json benchmarks/leaderboard.json
python tools/leaderboard_page.py
"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from leaderboard_screen import screen, summary

from lastiterate.planning.presets import ALGORITHMS

ROOT = Path(__file__).parents[1]
BUDGETS, SPLITS = (0.5, 1.0, 3.0, 8.0), 3
HEAD = """
# Named algorithms

Test accuracy on plain rows, without a map, of the named algorithms (`lastiterate train --algorithm`), delta 1e-5,
zero-out; the mean over random splits and noise with its standard deviation. Nothing is tuned on the sets: runs follow
from n, the number of features and classes, and the budget. Seconds are of a fit on two loaded cores; *passes*: gradient
evaluations over n. The row that certifies a run is the best of the table of theorems. From
`benchmarks/leaderboard.json` and, at epsilon 1, `benchmarks/named_algorithms.json`, where runs agree. CIFAR-10
features are those of a DenseNet that was trained on CIFAR-100.
"""


def joined(rows: list[dict[str, Any]], more: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows, with those of epsilon 1 replaced by, or joined by, rows of more splits of the same run."""
    found = {(row["set"], row["epsilon"], row["algorithm"]): row for row in rows}
    for row in more:
        key = row["set"], 1.0, row["algorithm"]
        here = found.get(key)
        same = here is None or all(here[name] == row[name] for name in ("n", "steps", "theorem", "batches in a pass"))
        if same and (here is None or len(row["accuracy"]) > len(here["accuracy"])):
            found[key] = {**row, "epsilon": 1.0, "passes": row["steps"] / row["batches in a pass"]}
    return list(found.values())


def page(rows: list[dict[str, Any]]) -> str:
    """One table for every data set and budget, best first."""
    lines = [HEAD]
    for name in dict.fromkeys(row["set"] for row in rows):
        for epsilon in sorted({row["epsilon"] for row in rows if row["set"] == name}):
            here = [row for row in rows if (row["set"], row["epsilon"]) == (name, epsilon)]
            lines += [f"\n## {name}, epsilon {epsilon:g}\n",
                      f"n = {here[0]['n']}.\n",
                      "| algorithm | accuracy | sd | splits | seconds | passes | certified by |",
                      "|---|---|---|---|---|---|---|"]
            for row in sorted(here, key=lambda row: -row["mean"]):
                spread = f"{row['sd']:.4f}" if len(row["accuracy"]) > 1 else "-"
                lines.append(f"| {row['algorithm']} | {row['mean']:.4f} | {spread} | {len(row['accuracy'])} | "
                             f"{row['seconds']:.1f} | "
                             f"{row['passes']:.0f} | `{row['theorem']}` |")
    return "\n".join([*lines, *missing(rows)]) + "\n"


def missing(rows: list[dict[str, Any]]) -> list[str]:
    """Cells of the board that nobody measured, or on fewer splits than make a spread, and what they would take."""
    splits = {(row["set"], row["algorithm"], row["epsilon"]): len(row["accuracy"]) for row in rows}
    lines = list[str]()
    for name, algorithm in product(dict.fromkeys(row["set"] for row in rows), ALGORITHMS[1:]):
        wanting = {epsilon: splits.get((name, algorithm, epsilon), 0) for epsilon in BUDGETS}
        wanting = {epsilon: count for epsilon, count in wanting.items() if count < SPLITS}
        if not wanting:
            continue
        taken = [row["seconds"] for row in rows if (row["set"], row["algorithm"]) == (name, algorithm)]
        cost = f"about {SPLITS * len(wanting) * median(taken):.0f} seconds" if taken else "not measured"
        cells = ", ".join(f"epsilon {epsilon:g} ({count or 'no'} split{'s' * (count != 1)})"
                          for epsilon, count in wanting.items())
        lines.append(f"- {name}, {algorithm}: {cells}; {SPLITS} splits of each: {cost}.")
    if not lines:
        return []
    return ["\n## What is missing\n", f"Cells with fewer than {SPLITS} splits, of algorithms that came later or for "
            "want of time; the same command adds them.\n", *lines]


if __name__ == "__main__":
    both = (json.loads((ROOT / "benchmarks" / f"{name}.json").read_text(encoding="utf-8"))
            for name in ("leaderboard", "named_algorithms"))
    found = summary(ROOT / "benchmarks" / "board.jsonl")
    (ROOT / "docs" / "leaderboard.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (ROOT / "docs" / "leaderboard.md").write_text(screen(found) + "\n" + page(joined(*both)), encoding="utf-8")
