"""A private step on a torch module: lastiterate beside the ghost clipping of Opacus, equal batches,
taken in turn.

python -m benchmarks.peers.opacus_ghost_step [--rounds 15] [--threads 1]      (minutes)

Both read the same blocks in public order, clip to the same norm and add noise of the same size;
lastiterate draws its noise in float64 from its own generator, in a thread of its own while
gradients are computed, Opacus in float32 from torch's. One process, bursts in turn; a ratio is of
two bursts of one round, in processor time of all threads, which other load on the machine moves
least, and by the clock.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

import lastiterate as li
from benchmarks.peers.timed_bursts import quartiles
from lastiterate.engine.random import key_from_seed
from lastiterate.torch.module_training import prepare

N, CLIP, STEP, Z, BURST = 2048, 1.0, 0.1, 1.0, 16


def small_images() -> nn.Module:
    """The usual example network of private training, for images of 28 x 28 pixels."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


class Block(nn.Module):
    """Two convolutions with group normalisation beside an identity."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1),
            nn.GroupNorm(4, width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.GroupNorm(4, width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.inner(x))


def residual() -> nn.Module:
    """A small residual net for images of 28 x 28 pixels."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, 2, padding=1),
        nn.GroupNorm(4, 32),
        nn.ReLU(),
        Block(32),
        nn.MaxPool2d(2),
        Block(32),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


def dense() -> nn.Module:
    """Three wide dense layers."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, 1000),
        nn.ReLU(),
        nn.Linear(1000, 1000),
        nn.ReLU(),
        nn.Linear(1000, 10),
    )


TASKS = {
    "two convolutions, two dense layers": (small_images, 256),
    "residual, group normalisation": (residual, 64),
    "three dense layers, 1.8 million parameters": (dense, 256),
}


def images() -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(0)
    return (
        torch.from_numpy(rng.normal(size=(N, 1, 28, 28)).astype(np.float32)),
        torch.from_numpy(rng.integers(0, 10, N)),
    )


def ours(
    make: Callable[[], nn.Module], batch: int, batching: li.Cyclic | li.Poisson
) -> Callable[[], object]:
    """A burst of steps of lastiterate."""
    run = li.Run(
        n=N,
        steps=BURST,
        step_size=STEP,
        clip=CLIP,
        noise=li.NoiseMultiplier(Z),
        batching=batching,
        adjacency="add-remove" if isinstance(batching, li.Poisson) else "zero-out",
    )
    prepared = prepare(run, make(), nn.functional.cross_entropy, images())
    return lambda: prepared.execute(key_from_seed(0))


def theirs(make: Callable[[], nn.Module], batch: int, poisson: bool) -> Callable[[], object]:
    """A burst of steps of Opacus with ghost clipping."""
    from opacus import PrivacyEngine

    module = make()
    data = torch.utils.data.TensorDataset(*images())
    loader = torch.utils.data.DataLoader(data, batch_size=batch)
    module, optimizer, criterion, loader = PrivacyEngine().make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=STEP),
        data_loader=loader,
        noise_multiplier=Z,
        max_grad_norm=CLIP,
        poisson_sampling=poisson,
        grad_sample_mode="ghost",
        criterion=nn.CrossEntropyLoss(),
    )
    x, y = images()
    rng = np.random.default_rng(1)

    def burst() -> None:
        for k in range(BURST):
            places = (
                torch.from_numpy(np.flatnonzero(rng.random(N) < batch / N))
                if poisson
                else (torch.arange(batch) + k * batch) % N
            )
            optimizer.zero_grad()
            criterion(module(x[places]), y[places]).backward()
            optimizer.step()

    return burst


def main() -> None:
    given = argparse.ArgumentParser()
    given.add_argument("--rounds", type=int, default=15)
    given.add_argument("--threads", type=int, default=1)
    asked = given.parse_args()
    torch.set_num_threads(asked.threads)
    warnings.simplefilter("ignore")
    print(
        "| module | batch | batches | lastiterate, ms a step: processor, clock | Opacus | Opacus "
        "over lastiterate, "
        "processor (IQR) | clock (IQR) |\n|---|---|---|---|---|---|---|"
    )
    for name, (make, batch) in TASKS.items():
        for poisson in (False, True):
            pair = (
                ours(make, batch, li.Poisson(batch / N) if poisson else li.Cyclic(batch)),
                theirs(make, batch, poisson),
            )
            taken = np.array([[timed(burst) for burst in pair] for _ in range(asked.rounds + 2)])[
                2:
            ]
            (one, clock), (two, other) = np.median(taken, axis=0)
            ratios = [quartiles((taken[:, 1, i] / taken[:, 0, i]).tolist()) for i in range(2)]
            print(
                f"| {name} | {batch} | {'Poisson' if poisson else 'blocks'} | {one:.1f}, "
                f"{clock:.1f} | {two:.1f}, "
                f"{other:.1f} | {ratios[0][0]:.2f} ({ratios[0][1]:.2f}) | {ratios[1][0]:.2f} "
                f"({ratios[1][1]:.2f}) |",
                flush=True,
            )


def timed(burst: Callable[[], object]) -> tuple[float, float]:
    """Milliseconds a step: of the processor, and by the clock."""
    began = time.process_time(), time.perf_counter()
    burst()
    return (time.process_time() - began[0]) * 1e3 / BURST, (
        time.perf_counter() - began[1]
    ) * 1e3 / BURST


if __name__ == "__main__":
    main()
