"""Time of one private training step of Opacus on the task of timed_bursts.py; a child of
linear_step_peers.py.

python -m benchmarks.peers.opacus_linear_step [--mode ghost|hooks|poisson] [--bursts 21] [--count
100]

Needs ``pip install torch opacus``, not lastiterate.

``ghost``: GradSampleModuleFastGradientClipping with DPLossFastGradientClipping; ``hooks``: the
ordinary GradSampleModule, which stores per-example gradients. Batches are slices of one tensor, no
DataLoader and no drawing. ``poisson``: ghost clipping on batches that are drawn as the guarantee
demands, each record with probability batch / n. One thread or torch's own number of them, whichever
is faster at the start; the JSON says which.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import opacus
import torch
from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

from benchmarks.peers.timed_bursts import (
    BATCH,
    CLIP,
    RIDGE,
    STEP,
    D,
    K,
    Z,
    answer_bursts,
    fastest,
    option,
    records,
    task,
)


def stepper(mode: str, threads: int) -> Callable[[int], None]:
    """Training steps from zero weights on."""
    features, labels = task(records())
    rows, target, n = torch.from_numpy(features), torch.from_numpy(labels).long(), len(features)
    layer = torch.nn.Linear(D + 1, K, bias=False)
    torch.nn.init.zeros_(layer.weight)
    sgd = torch.optim.SGD(layer.parameters(), lr=STEP, weight_decay=RIDGE)
    loss = torch.nn.CrossEntropyLoss()
    if mode == "hooks":
        model = GradSampleModule(layer)
        optimizer = DPOptimizer(
            sgd, noise_multiplier=Z, max_grad_norm=CLIP, expected_batch_size=BATCH
        )
        criterion = loss
    else:
        model = GradSampleModuleFastGradientClipping(
            layer, max_grad_norm=CLIP, use_ghost_clipping=True
        )
        optimizer = DPOptimizerFastGradientClipping(
            sgd, noise_multiplier=Z, max_grad_norm=CLIP, expected_batch_size=BATCH
        )
        criterion = DPLossFastGradientClipping(model, optimizer, loss)

    def batch(k: int) -> tuple[torch.Tensor, torch.Tensor]:
        if mode == "poisson":
            drawn = (torch.rand(n) < BATCH / n).nonzero().reshape(-1)
            return rows[drawn], target[drawn]
        first = k * BATCH % (n - BATCH + 1)
        return rows[first : first + BATCH], target[first : first + BATCH]

    def steps(count: int) -> None:
        torch.set_num_threads(threads)
        for k in range(count):
            x, y = batch(k)
            optimizer.zero_grad(set_to_none=True)
            criterion(model(x), y).backward()
            optimizer.step()

    return steps


def main() -> None:
    warnings.simplefilter("ignore")
    mode, most = option("mode", ("ghost", "hooks", "poisson"), "ghost"), torch.get_num_threads()
    threads, steps = fastest({str(count): stepper(mode, count) for count in sorted({1, most})})
    answer_bursts(
        {
            "name": f"Opacus {opacus.__version__}, {mode}",
            "versions": f"torch {torch.__version__}",
            "threads": threads,
        },
        steps,
    )


if __name__ == "__main__":
    main()
