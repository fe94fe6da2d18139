"""Opacus with a DataLoader on a file larger than memory, in its environment; a child of
benchmarks/streaming/one.py.

python -m benchmarks.peers.opacus_from_file FILE PASSES BLOCKS EPSILON DELTA STEP RIDGE NORM STEPS

Needs ``pip install torch opacus``, not lastiterate. Logistic regression with ghost clipping (no
per-example gradient is stored); Opacus' own Poisson loader draws records, a Dataset reads each of
them where it lies in the file, one process, one thread; noise by its PRV accountant. The answer is
a line of JSON: weights, noise multiplier, and of the ``STEPS`` steps that were made seconds,
processor seconds and bytes read.
"""

from __future__ import annotations

import json
import resource
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from opacus.accountants.utils import get_noise_multiplier
from opacus.data_loader import DPDataLoader
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

HEAD = 128
"""Bytes before the first row of a .npy file."""


class Rows(torch.utils.data.Dataset):
    """Rows of a .npy file of single precision, with a constant column, scaled to a norm; labels lie
    beside it."""

    def __init__(self, path: Path, norm: float) -> None:
        self.labels = np.load(path.with_name("made.labels.npy")).astype(np.float32)
        self._file, self._norm = path.open("rb", buffering=0), norm
        self.features = (path.stat().st_size - HEAD) // len(self.labels) // 4

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, place: int) -> tuple[torch.Tensor, Any]:
        row = np.empty(self.features + 1, np.float32)
        self._file.seek(HEAD + place * 4 * self.features)
        self._file.readinto(row[:-1].data)
        row[:-1] *= min(1.0, self._norm / float(np.sqrt(row[:-1] @ row[:-1])))
        row[-1] = 1.0
        return torch.from_numpy(row), self.labels[place]


def characters() -> int:
    return int(
        dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())["rchar"]
    )


def main(path: str, *numbers: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    passes, blocks, epsilon, delta, step, ridge, norm, steps = map(float, numbers)
    data, clip = Rows(Path(path), norm), (1 + norm**2) ** 0.5
    z = get_noise_multiplier(
        target_epsilon=epsilon,
        target_delta=delta,
        sample_rate=1 / blocks,
        steps=int(passes * blocks),
        accountant="prv",
    )
    batch = len(data) / blocks
    layer = torch.nn.Linear(data.features + 1, 1, bias=False)
    torch.nn.init.zeros_(layer.weight)
    model = GradSampleModuleFastGradientClipping(layer, max_grad_norm=clip, use_ghost_clipping=True)
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(layer.parameters(), lr=step, weight_decay=ridge),
        noise_multiplier=z,
        max_grad_norm=clip,
        expected_batch_size=int(batch),
    )
    criterion = DPLossFastGradientClipping(model, optimizer, torch.nn.BCEWithLogitsLoss())
    loader = DPDataLoader(data, sample_rate=1 / blocks)
    used, began, before, done = (
        resource.getrusage(resource.RUSAGE_SELF),
        time.perf_counter(),
        characters(),
        0,
    )
    while done < steps:
        for x, y in loader:
            optimizer.zero_grad()
            criterion(model(x)[:, 0], y).backward()
            optimizer.step()
            done += 1
            if done == steps:
                break
    after = resource.getrusage(resource.RUSAGE_SELF)
    processor = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    print(
        json.dumps(
            {
                "z": z,
                "weights": layer.weight.detach()[0].double().tolist(),
                "processor": processor,
                "seconds": time.perf_counter() - began,
                "read": characters() - before,
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
