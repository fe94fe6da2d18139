"""Seconds of a private step of one torch module on 1 and 2 processes, next to Opacus in ghost mode.

python -m benchmarks.scale.torch_processes [--processes 1 2] [--library lastiterate opacus]   (a minute)

A multilayer perceptron on synthetic records, Poisson batches, gloo on the processor, one thread a
process; with --device cuda a GPU and NCCL for each. Clocks and processor times of the steps behind
the first ten, and the most memory, of the device or of the process, by the first process.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator

import torch
import torch.distributed as distributed
import torch.nn.functional as functional

import lastiterate as li
from lastiterate.torch import make_private

RECORDS, INPUTS, HIDDEN, CLASSES, FIRST = 20_000, 256, 512, 10, 10


def perceptron() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(INPUTS, HIDDEN),
        torch.nn.ReLU(),
        torch.nn.Linear(HIDDEN, HIDDEN),
        torch.nn.ReLU(),
        torch.nn.Linear(HIDDEN, CLASSES),
    )


def synthetic_records(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return standard normal records, labelled by the largest of their first entries."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(RECORDS, INPUTS, generator=generator)
    return x.to(device), x[:, :CLASSES].argmax(1).to(device)


def lastiterate_steps(
    data: tuple[torch.Tensor, torch.Tensor], batch: int, steps: int
) -> Iterator[int]:
    run = li.Run(
        n=RECORDS,
        steps=steps,
        step_size=0.1,
        clip=1.0,
        noise=li.NoiseMultiplier(1.0),
        batching=li.Poisson(batch / RECORDS),
    )
    yield from make_private(
        run,
        module=perceptron().to(data[0].device),
        data=data,
        loss=functional.cross_entropy,
        delta=1e-5,
    )


def opacus_steps(data: tuple[torch.Tensor, torch.Tensor], batch: int, steps: int) -> Iterator[int]:
    from opacus import PrivacyEngine
    from opacus.distributed import DifferentiallyPrivateDistributedDataParallel

    model = perceptron().to(data[0].device)
    if int(os.environ["WORLD_SIZE"]) > 1:
        distributed.init_process_group("nccl" if data[0].is_cuda else "gloo")
        model = DifferentiallyPrivateDistributedDataParallel(model)
    model, optimizer, criterion, loader = PrivacyEngine().make_private(
        module=model,
        criterion=torch.nn.CrossEntropyLoss(),
        grad_sample_mode="ghost",
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(*data), batch_size=batch
        ),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    done = 0
    while done < steps:
        for x, y in loader:
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
            done += 1
            yield done
            if done == steps:
                break


def measure(library: str, batch: int, steps: int, device: str) -> None:
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    data, clocks = synthetic_records(device), []
    for _ in (lastiterate_steps if library == "lastiterate" else opacus_steps)(data, batch, steps):
        if device == "cuda":
            torch.cuda.synchronize()
        clocks.append((time.perf_counter(), time.process_time()))
    wall, spent = (
        1e3 * (clocks[-1][i] - clocks[FIRST - 1][i]) / (len(clocks) - FIRST) for i in range(2)
    )
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    used = torch.cuda.max_memory_allocated() if device == "cuda" else used
    if os.environ.get("RANK") == "0":
        print(
            f"| {library} | {os.environ['WORLD_SIZE']} | {batch} | {wall:.1f} ms | {spent:.1f} ms "
            f"| {used / 1e6:.0f} |",
            flush=True,
        )


def main() -> None:
    given = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    given.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    given.add_argument("--library", nargs="+", default=["lastiterate", "opacus"])
    given.add_argument("--batch", type=int, default=512)
    given.add_argument("--steps", type=int, default=60)
    given.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    given.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    asked = given.parse_args()
    if asked.child:
        measure(asked.library[0], asked.batch, asked.steps, asked.device)
        return
    print(
        "| library | processes | batch | clock of a step | processor time of process 0 | peak MB |"
    )
    print("|---|---|---|---|---|---|", flush=True)
    for library in asked.library:
        for count in asked.processes:
            launched = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
            launched += [f"--nproc-per-node={count}", "-m", "benchmarks.scale.torch_processes"]
            flags = [
                "--child",
                "--device",
                asked.device,
                "--library",
                library,
                "--batch",
                str(asked.batch),
            ]
            subprocess.run([*launched, *flags, "--steps", str(asked.steps)], check=True)


if __name__ == "__main__":
    main()
