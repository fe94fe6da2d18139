"""Training models one after the other in PyTorch on the task of sharpness_and_speed.py; a child of
it.

``autograd``: a linear layer, a loss, backward and SGD, as audits are often written; ``closed
form``: two products. Rows are clipped before, so that no per-example gradient is needed; one
thread, the fastest number at this size.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch

from benchmarks.peers.child_process import serve

TASK = json.loads(sys.argv[1])
N, D, STEPS, STEP, STD, RIDGE = (
    TASK[key] for key in ("n", "d", "steps", "step_size", "std", "ridge")
)


def closed_form(rows: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    theta = torch.zeros(D + 1)
    for _ in range(STEPS):
        gradient = rows.T @ (torch.sigmoid(rows @ theta) - target) / N
        theta = theta - STEP * (gradient + RIDGE * theta + STD * torch.randn(D + 1))
    return theta


def autograd(rows: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    layer = torch.nn.Linear(D + 1, 1, bias=False)
    torch.nn.init.zeros_(layer.weight)
    sgd, loss = (
        torch.optim.SGD(layer.parameters(), lr=STEP, weight_decay=RIDGE),
        torch.nn.BCEWithLogitsLoss(),
    )
    for _ in range(STEPS):
        sgd.zero_grad(set_to_none=True)
        loss(layer(rows)[:, 0], target).backward()
        assert layer.weight.grad is not None
        layer.weight.grad.add_(STD * torch.randn(1, D + 1))
        sgd.step()
    return layer.weight.detach()


def answer(mode: str, models: int) -> dict[str, Any]:
    rows, target = torch.zeros(N, D + 1), torch.zeros(N)
    rows[:, 0] = rows[:, -1] = target[0] = 1.0
    train = autograd if mode == "autograd" else closed_form
    train(rows, target)
    clock, processor = time.perf_counter(), time.process_time()
    for _ in range(models):
        train(rows, target)
    return {
        "models": models,
        "clock": time.perf_counter() - clock,
        "processor": time.process_time() - processor,
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve({"name": f"PyTorch {torch.__version__}", "threads": 1}, answer)
