"""Certified epsilon of the automatic plan of every bundled set over the best proved lower bound.

python -m benchmarks.figures.bundled_slack [EPSILON ...]   (.3, 1 and 3; three minutes, one core)

Each set is trained by ``lastiterate train NAME --epsilon E``; lower bounds are those that the
certificate prints: what losses of its class leak when the last iterate alone is released.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from lastiterate.data.readers import BUNDLED


def main() -> None:
    epsilons = sys.argv[1:] or ["0.3", "1", "3"]
    print("| set | budget | theorem | upper | lower, by | ratio |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name in BUNDLED:
            for epsilon in epsilons:
                out = Path(folder) / f"{name}-{epsilon}"
                command = ["lastiterate", "train", name, "--epsilon", epsilon, "--out", str(out)]
                subprocess.run([sys.executable, "-m", *command], check=True, capture_output=True)
                found = json.loads((out / "certificate.json").read_text())
                rows = [row for row in found["verdicts"] if row.get("kind") == "lower"]
                by = [row["theorem"] for row in rows if row.get("epsilon")]
                upper, lower = found["epsilon"], found["epsilon_at_least"]
                ratio = f"{upper / lower:.3f}" if lower else ""
                lowest = f"{lower:.4f}, {', '.join(by)}" if lower else "none"
                print(
                    f"| {name} | {epsilon} | {found['theorem']} | {upper:.4f} | {lowest} | {ratio} |"
                )
                sys.stdout.flush()


if __name__ == "__main__":
    main()
