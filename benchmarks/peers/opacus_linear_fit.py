"""Poisson DP-SGD by Opacus on linear models, in its environment; a child of two scripts in
benchmarks/utility.

python -m benchmarks.peers.opacus_linear_fit ARRAYS.npz          needs pip install torch opacus, not lastiterate

Questions are JSON lines on standard input, answers JSON lines on standard output
(child_process.py). Arrays: ``rows`` (n, d) float32, constant column included, ``target`` (n,),
``test_rows``, ``test_target``, and for every seed the records to train on, ``train_SEED`` (and to
test on, ``test_SEED``, where a set has no test part of its own).

Opacus at its best for a linear model: ghost clipping (no per-example gradient is stored), one
tensor indexed by the drawn records instead of a DataLoader that collates record by record, one
thread (such small products hardly gain from more, and CPU time is what is compared). Every record
is drawn with probability batch / n at every step; the sum is divided by the expected batch, as
Opacus does.
"""

from __future__ import annotations

import sys
import time
import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import opacus
import torch
from opacus.accountants import PRVAccountant, RDPAccountant
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

from benchmarks.peers.child_process import serve
from benchmarks.peers.measures import measures


@dataclass(frozen=True, eq=False)
class Data:
    """The records that one seed trains and tests on."""

    rows: torch.Tensor
    target: torch.Tensor
    test_rows: torch.Tensor
    test_target: torch.Tensor
    classes: int


def loader(path: str) -> Any:
    """Data by seed, the last one kept."""
    arrays = dict(np.load(path))
    classes = int(arrays["target"].max()) + 1

    @lru_cache(maxsize=1)
    def load(seed: int) -> Data:
        kept = arrays[f"train_{seed}"]
        held = arrays.get(f"test_{seed}")
        test = (
            (arrays["test_rows"], arrays["test_target"])
            if held is None
            else (arrays["rows"][held], arrays["target"][held])
        )
        # a binary target is a number for the logistic loss, a class otherwise
        kind = torch.float32 if classes == 2 else torch.int64
        return Data(
            torch.from_numpy(arrays["rows"][kept]),
            torch.from_numpy(arrays["target"][kept]).to(kind),
            torch.from_numpy(test[0]),
            torch.from_numpy(test[1]),
            classes,
        )

    return load


@lru_cache(maxsize=4096)
def epsilons(noise_multiplier: float, rate: float, steps: int, delta: float) -> tuple[float, float]:
    """What Opacus' two accountants say about a whole run: PRV (its default) and RDP."""
    found = []
    for accountant in (PRVAccountant(), RDPAccountant()):
        accountant.history = [(noise_multiplier, rate, steps)]
        found.append(float(accountant.get_epsilon(delta)))
    return found[0], found[1]


def train(
    data: Data,
    *,
    batch: int,
    steps: int,
    step_size: float,
    clip: float,
    noise_multiplier: float,
    weight_decay: float,
    seed: int,
) -> tuple[torch.nn.Linear, float]:
    """The trained linear layer and the CPU time of its steps in seconds, all threads together."""
    torch.manual_seed(seed)
    n, d = data.rows.shape
    layer = torch.nn.Linear(d, data.classes if data.classes > 2 else 1, bias=False)
    torch.nn.init.zeros_(layer.weight)
    model = GradSampleModuleFastGradientClipping(layer, max_grad_norm=clip, use_ghost_clipping=True)
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(layer.parameters(), lr=step_size, weight_decay=weight_decay),
        noise_multiplier=noise_multiplier,
        max_grad_norm=clip,
        expected_batch_size=batch,
    )
    loss = torch.nn.CrossEntropyLoss() if data.classes > 2 else torch.nn.BCEWithLogitsLoss()
    criterion = DPLossFastGradientClipping(model, optimizer, loss)
    nothing = torch.zeros(1, d), data.target[:1]  # a row of zeros has a gradient of zero
    began = time.process_time()
    for _ in range(steps):
        drawn = (torch.rand(n) < batch / n).nonzero().reshape(-1)
        x, y = (data.rows[drawn], data.target[drawn]) if len(drawn) else nothing
        optimizer.zero_grad()
        scores = model(x)
        criterion(scores if data.classes > 2 else scores[:, 0], y).backward()
        optimizer.step()
    return layer, time.process_time() - began


def scored(layer: torch.nn.Linear, data: Data) -> dict[str, float]:
    """Accuracy, AUROC and log loss on the test records."""
    with torch.no_grad():
        scores = layer(data.test_rows).double()
    both = scores if data.classes > 2 else torch.cat((torch.zeros_like(scores), scores), dim=1)
    return measures(data.test_target.long().numpy(), torch.softmax(both, dim=1).numpy())


def main(path: str) -> None:
    """Answer with the measures, CPU time, the noise multiplier and, with a delta, what Opacus'
    accountants say."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    load = loader(path)

    def answer(
        *, seed: int, batch: int, steps: int, delta: float | None = None, **setting: float
    ) -> dict[str, Any]:
        data, z = load(seed), setting["noise_multiplier"]
        layer, seconds = train(data, batch=batch, steps=steps, seed=seed, **setting)
        found = scored(layer, data) | {"cpu_seconds": seconds, "noise_multiplier": z}
        if delta is None:
            return found
        prv, rdp = epsilons(z, batch / len(data.rows), steps, delta)
        return found | {"epsilon_prv": prv, "epsilon_rdp": rdp}

    serve({"name": f"Opacus {opacus.__version__}, torch {torch.__version__}"}, answer)


if __name__ == "__main__":
    main(sys.argv[1])
