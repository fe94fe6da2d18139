"""Time of one step of SGLD on LeNet5 in plain PyTorch, one model after the other; a child of
network_step_peers.py.

python -m benchmarks.peers.torch_lenet_step

Needs ``pip install torch``, not lastiterate. Without a clip; the number of threads is the fastest
at the start.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from benchmarks.peers.timed_bursts import answer_bursts, fastest, lenet_task

IMAGES, BATCH, STEP = 400, 4, 1 / 240


def stepper(threads: int) -> Callable[[int], object]:
    """So many steps from the first parameters on, with ``threads`` threads."""
    images, labels = map(torch.from_numpy, lenet_task(IMAGES))
    labels = labels.long()
    torch.set_num_threads(threads)

    def steps(count: int) -> None:
        torch.set_num_threads(threads)
        net = nn.Sequential(
            nn.Conv2d(1, 6, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 120, 5),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, 10),
        )
        params, loss = list(net.parameters()), nn.CrossEntropyLoss()
        std = math.sqrt(2 * STEP / IMAGES)
        for k in range(count):
            first = k * BATCH % IMAGES
            part = slice(first, first + BATCH)
            for param in params:
                param.grad = None
            loss(net(images[part]), labels[part]).backward()
            with torch.no_grad():
                for param in params:
                    assert param.grad is not None
                    param.add_(param.grad + param / IMAGES, alpha=-STEP)
                    param.add_(torch.randn_like(param), alpha=std)

    return steps


def main() -> None:
    threads, steps = fastest({str(t): stepper(t) for t in (1, 2)}, count=100, repeats=3)
    answer_bursts(
        {
            "name": f"PyTorch {torch.__version__}, one model",
            "versions": "plain loop",
            "threads": threads,
        },
        steps,
    )


if __name__ == "__main__":
    main()
