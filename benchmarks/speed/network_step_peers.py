"""Private steps on networks: lastiterate by blocks and by Poisson batches beside jax-privacy;
LeNet5 beside PyTorch.

python -m benchmarks.speed.network_step_peers --jaxprivacy-python PYTHON --torch-python PYTHON --out FILE.md   (minutes)

As in linear_step_peers.py: every contestant is a process of its own and does bursts of steps in
turn. The network and its loss are the same functions for all (network_task.py); every one takes the
size of microbatches that is fastest for it. LeNet5 is trained by SGLD as audits train it (batches
of 4 images, several models together), against a loop.
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import ExitStack
from pathlib import Path

from benchmarks.peers.child_process import JAX_PRIVACY, TORCH, Child
from benchmarks.peers.network_task import BATCH
from benchmarks.speed.linear_step_peers import measure, table

Contestant = tuple[str, str, tuple[str, ...]]
"""Interpreter, script and flags of a child."""


def section(title: str, about: str, contestants: list[Contestant], rounds: int) -> str:
    """One table, in Markdown; everything is measured against the first contestant."""
    with ExitStack() as stack:
        children = [
            stack.enter_context(Child(python, script, "--serve", *flags))
            for python, script, flags in contestants
        ]
        taken = measure(children, rounds, 2.0)
    return (
        f"\n## {title}\n\n`python -m benchmarks.speed.network_step_peers`: {about}, {rounds} "
        f"rounds, medians; "
        f"{os.cpu_count()} cores. Ratios are taken inside a round.\n\n{table(children, taken)}"
    )


def main() -> None:
    given = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    given.add_argument("--out", type=Path, help="Markdown file that the sections are appended to")
    given.add_argument("--records", type=int, default=10_240)
    given.add_argument("--rounds", type=int, default=15)
    JAX_PRIVACY.option(given)
    TORCH.option(given)
    asked = given.parse_args()
    records = ("--records", str(asked.records))
    small: list[Contestant] = [
        (sys.executable, "lastiterate_network_step", ("--mode", mode, *records))
        for mode in ("cyclic", "poisson", "plain")
    ]
    if (python := JAX_PRIVACY.python(asked)) is not None:
        small.append((python, "jaxprivacy_network_step", records))
    lenet: list[Contestant] = [
        (sys.executable, "lastiterate_lenet_step", ("--mode", mode)) for mode in ("sgld", "clipped")
    ]
    if (python := TORCH.python(asked)) is not None:
        lenet.append((python, "torch_lenet_step", ()))
    for title, about, contestants in (
        (
            "A private step on a convolutional network",
            f"{asked.records} images of 28 x 28, two convolutions, two dense layers, {BATCH} "
            f"records a batch (expected, "
            "for Poisson), every record's gradient clipped",
            small,
        ),
        ("A step of SGLD on LeNet5, per model", "batches of 4 images of 32 x 32", lenet),
    ):
        said = section(title, about, contestants, asked.rounds)
        print(said, flush=True)
        if asked.out is not None:
            with asked.out.open("a") as out:
                out.write(said)


if __name__ == "__main__":
    main()
