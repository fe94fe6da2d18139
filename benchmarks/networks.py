"""Private steps on a small convolutional network: lastiterate by blocks and by Poisson batches, and jax-privacy.

python benchmarks/networks.py --jaxprivacy-python PYTHON --out TABLES.md       (minutes)

As in speed_others.py: every contestant is a process of its own and does bursts of steps in turn. The network and the
loss are the same functions for all (network_task.py); every one takes the size of microbatches that is fastest for it.
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import ExitStack
from pathlib import Path

from children import JAX_PRIVACY, Child
from network_task import BATCH
from speed_others import measure, table


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--out", type=Path, help="Markdown file that a section is appended to")
    given.add_argument("--records", type=int, default=10_240)
    given.add_argument("--rounds", type=int, default=15)
    JAX_PRIVACY.option(given)
    asked = given.parse_args()
    contestants = [(sys.executable, "own_network_step.py", ("--mode", mode)) for mode in ("cyclic", "poisson", "plain")]
    if (python := JAX_PRIVACY.python(asked)) is not None:
        contestants.append((python, "jaxprivacy_network_step.py", ()))
    with ExitStack() as stack:
        children = [stack.enter_context(Child(python, script, "--serve", "--records", str(asked.records), *flags))
                    for python, script, flags in contestants]
        taken = measure(children, asked.rounds, 2.0)
    said = ("\n## A private step on a convolutional network\n\n"
            f"`python benchmarks/networks.py`: {asked.records} images of 28 x 28, two convolutions, two dense layers, "
            f"{BATCH} records a batch (expected, for Poisson), every record's gradient clipped, {asked.rounds} rounds, "
            f"medians; {os.cpu_count()} cores. Ratios are taken inside a round.\n\n{table(children, taken)}")
    print(said)
    if asked.out is not None:
        with asked.out.open("a") as out:
            out.write(said)


if __name__ == "__main__":
    main()
