"""Poisson DP-SGD by Opacus on a small network for images, in its environment; a child of
benchmarks/utility/colour_images.py.

python -m benchmarks.peers.opacus_network_fit IMAGES.npz         needs pip install torch opacus, not lastiterate

Questions and answers: see child_process.py. Arrays: ``images`` (n, channels, height, width) uint8,
``target`` (n,), ``test_images``, ``test_target``.

The network is that of Opacus' MNIST example: 16 filters of 8 x 8 and 32 of 4 x 4 pixels, each with
stride 2, a rectifier and maxima of 2 x 2 behind, then 32 units. Nothing is tuned: 10 passes, a
record is drawn with probability 1/20, clip 1, step .5, momentum .5.
"""

from __future__ import annotations

import sys
import time
import warnings
from typing import Any

import numpy as np
import opacus
import torch
from opacus.accountants.utils import get_noise_multiplier
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import nn

from benchmarks.peers.child_process import serve
from benchmarks.peers.measures import measures

BATCHES, PASSES, CLIP, STEP, MOMENTUM = 20, 10, 1.0, 0.5, 0.5


def network(shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """The network for images of a shape (channels, height, width)."""
    filters = nn.Sequential(
        nn.Conv2d(shape[0], 16, 8, 2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
    )
    wide = filters(torch.zeros(1, *shape)).shape[1]
    return nn.Sequential(*filters, nn.Linear(wide, 32), nn.ReLU(), nn.Linear(32, classes))


def train(
    images: torch.Tensor, target: torch.Tensor, noise_multiplier: float, seed: int
) -> tuple[nn.Module, float]:
    """The trained network and the processor time of its steps in seconds."""
    torch.manual_seed(seed)
    n = len(images)
    model = GradSampleModule(network(tuple(images.shape[1:]), int(target.max()) + 1))
    optimizer = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=STEP, momentum=MOMENTUM),
        noise_multiplier=noise_multiplier,
        max_grad_norm=CLIP,
        expected_batch_size=round(n / BATCHES),
    )
    began = time.process_time()
    for _ in range(PASSES * BATCHES):
        drawn = (torch.rand(n) < 1 / BATCHES).nonzero().reshape(-1)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[drawn]), target[drawn]).backward()
        optimizer.step()
    return model, time.process_time() - began


def main(path: str) -> None:
    """Answer with the measures, processor time and noise multiplier of one fit."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    arrays = dict(np.load(path))
    both = [torch.from_numpy(arrays[name]).float() for name in ("images", "test_images")]
    images, test = ((one / 255 - 0.5) / 0.25 for one in both)
    target = torch.from_numpy(arrays["target"])

    def answer(*, epsilon: float, delta: float, seed: int) -> dict[str, Any]:
        noise = get_noise_multiplier(
            target_epsilon=epsilon,
            target_delta=delta,
            sample_rate=1 / BATCHES,
            steps=PASSES * BATCHES,
            accountant="prv",
        )
        model, seconds = train(images, target, noise, seed)
        with torch.no_grad():
            scores = torch.cat([model(part) for part in test.split(500)]).double()
        found = measures(arrays["test_target"], torch.softmax(scores, dim=1).numpy())
        return found | {"seconds": seconds, "processor": seconds, "noise_multiplier": noise}

    serve({"name": f"Opacus {opacus.__version__}, torch {torch.__version__}"}, answer)


if __name__ == "__main__":
    main(sys.argv[1])
