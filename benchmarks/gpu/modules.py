"""One module of torch on a GPU: sums and certificate against the processor's, seconds, memory, DDP.

sh benchmarks/gpu/run.sh [--steps 20]   (under 8 minutes; without a GPU all of it runs on the processor)

Errors: clipped sums of a GPU that differ from the processor's by more than 1e-5 of their norm, or
another certificate.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys

import numpy as np
import torch
import torch.nn.functional as functional

import lastiterate as li
from benchmarks.scale.torch_processes import perceptron, synthetic_records

RECORDS, TOLERANCE = 2000, 1e-5


def sum_clipped(device: str) -> tuple[np.ndarray, str]:
    """Return the clipped sum of all records, from one step with next to no noise, and the written
    certificate of a run with noise."""
    x, y = (part[:RECORDS] for part in synthetic_records(device))
    quiet = li.Run(n=RECORDS, steps=1, step_size=1.0, clip=1.0, noise=li.GradientNoise(1e-12))
    module, more = perceptron().to(device), {"loss": functional.cross_entropy, "seed": 0}
    model = li.train(quiet, (x, y), model=module, delta=1e-5, **more)
    begin, end = (
        np.concatenate([part.detach().cpu().double().numpy().ravel() for part in one.parameters()])
        for one in (module, model.module)
    )
    run = li.Run(n=RECORDS, steps=2, step_size=0.1, clip=1.0, batching=li.Permuted(500))
    noisy = li.train(run, (x, y), model=module, epsilon=2.0, delta=1e-5, **more)
    return RECORDS * (begin - end), noisy.certificate.to_json(1e-5)


def main() -> None:
    given = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    given.add_argument("--steps", type=int, default=20)
    asked = given.parse_args()
    cards = torch.cuda.device_count()
    device = "cuda" if cards else "cpu"
    print(f"device: {torch.cuda.get_device_name() if cards else 'no GPU, the processor alone'}")
    (own, certified), (other, same) = sum_clipped("cpu"), sum_clipped(device)
    difference = float(np.linalg.norm(own - other) / np.linalg.norm(own))
    print(f"clipped sums differ by {difference:.1e} of their norm")
    if difference > TOLERANCE or certified != same:
        raise SystemExit("the sums or the certificate of the device are not the processor's")
    libraries = ["lastiterate"]
    if importlib.util.find_spec("opacus") is None:
        print("opacus is not installed: no lines of it")
    else:
        libraries.append("opacus")
    counts = [str(count) for count in (1, 2, 4, 8) if count <= (cards or 2)]
    words = [sys.executable, "-m", "benchmarks.scale.torch_processes", "--device", device]
    words += ["--processes", *counts, "--library", *libraries, "--steps", str(asked.steps)]
    subprocess.run(words, check=True)


if __name__ == "__main__":
    main()
