"""One fit of a linear model, by lastiterate or by Opacus, on rows that are prepared once for both."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

import lastiterate as li
from benchmarks.utility.data_sets import Set, Split, split, unit_rows
from benchmarks.utility.tuning import Log
from lastiterate.engine import Trainer, key_from_seed
from lastiterate.run.batching import Batching

CONSTANT = 0.3  #: the constant column beside rows of norm at most 1
Proof = Literal["last", "all"]


@dataclass(frozen=True)
class Setting:
    """What is tuned: step size in units of 1/smooth, ridge relative to the data term's smoothness,
    clip relative to the loss's Lipschitz constant (Opacus only), rows' norm relative to the set's;
    batches in a pass, and passes."""

    step: float
    ridge: float = 0.0
    clip: float = 1.0
    norm: float = 1.0
    batches: int = 1
    passes: int = 1

    def __str__(self) -> str:
        said = [f"step {self.step:.3g}"]
        said += [
            f"{name} {value:g}"
            for name, value, usual in (
                ("ridge", self.ridge, 0.0),
                ("clip", self.clip, 1.0),
                ("row norm", self.norm, 1.0),
            )
            if value != usual
        ]
        return ", ".join(said)


@dataclass(frozen=True, eq=False)
class Bench:
    """One data set, the row norm that is divided by, the seeds' splits, and the log of finished
    fits."""

    data: Set
    norm: float
    seeds: tuple[int, ...]
    delta: float
    log: Log

    def part(self, seed: int, norm: float = 1.0) -> Split:
        """A split with rows of norm at most 1 and the constant column."""
        return _prepared(self.data, self.norm * norm, seed)

    @property
    def n(self) -> int:
        return len(self.part(self.seeds[0]).x)

    def loss(self, ridge: float) -> li.Logistic | li.Softmax:
        """The loss on prepared rows; ``ridge`` is relative to the data term's smoothness."""

        def described(absolute: float) -> li.Logistic | li.Softmax:
            if self.data.classes == 2:
                return li.Logistic(row_norm=1.0, ridge=absolute, intercept=CONSTANT)
            return li.Softmax(
                classes=self.data.classes, row_norm=1.0, ridge=absolute, intercept=CONSTANT
            )

        return described(ridge * described(0.0).facts().fact("smooth"))

    def key(self, **more: Any) -> dict[str, Any]:
        return {"set": self.data.name, "n": self.n, "norm": self.norm, **more}


@lru_cache(maxsize=4)
def _prepared(data: Set, norm: float, seed: int) -> Split:
    found = split(data, seed)
    return Split(
        unit_rows(found.x, norm, CONSTANT),
        found.y,
        unit_rows(found.x_test, norm, CONSTANT),
        found.y_test,
    )


def arrays(bench: Bench, folder: Path) -> Path:
    """The file that a child of another library reads; see opacus_linear_fit.py."""
    data, path = bench.data, folder / "arrays.npz"
    kept = {"rows": unit_rows(data.x, bench.norm, CONSTANT), "target": data.y}
    if data.x_test is not None and data.y_test is not None:
        kept |= {
            "test_rows": unit_rows(data.x_test, bench.norm, CONSTANT),
            "test_target": data.y_test,
        }
    places = replace(data, x=np.arange(len(data.x)))  # the same split, of the records' numbers
    for seed in bench.seeds:
        found = split(places, seed)
        kept[f"train_{seed}"] = found.x
        if data.x_test is None:
            kept[f"test_{seed}"] = found.x_test
    np.savez(path, **kept)
    return path


def run_of(bench: Bench, setting: Setting, batching: Batching, steps: int) -> li.Run:
    """The run of a setting, its noise still to be calibrated."""
    loss = bench.loss(setting.ridge)
    return li.Run(
        n=bench.n,
        steps=steps,
        step_size=li.Constant(setting.step / loss.facts().fact("smooth")),
        noise=li.NoiseMultiplier(1.0),
        batching=batching,
        loss=loss,
    )


@lru_cache(maxsize=4096)
def certified(run: li.Run, proof: Proof, epsilon: float, delta: float) -> tuple[float, str]:
    """Least noise multiplier and theorem: the best one for the last iterate, or composition (all
    iterates)."""
    found = li.calibrate(replace(run, release=proof), epsilon=epsilon, delta=delta)
    assert isinstance(found.run.noise, li.NoiseMultiplier)
    best = found.best(delta)
    assert best is not None
    return found.run.noise.z, best.theorem.name


def own_fit(
    bench: Bench,
    setting: Setting,
    batching: Batching,
    steps: int,
    proof: Proof,
    epsilon: float,
    seed: int,
) -> dict[str, Any]:
    """Accuracy, noise multiplier, theorem and CPU time of one fit; only the last iterate is
    released in any case."""
    run = run_of(bench, setting, batching, steps)
    z, theorem = certified(run, proof, epsilon, bench.delta)
    run = replace(run, noise=li.NoiseMultiplier(z))

    def work() -> dict[str, Any]:
        part = bench.part(seed, setting.norm)
        warm(replace(run, steps=1, step_size=li.Constant(1.0), noise=li.GradientNoise(1.0)), part)
        began = time.process_time()
        weights = Trainer(run).fit(part.x[:, :-1], part.y, key_from_seed(seed))
        taken = time.process_time() - began
        scores = part.x_test @ weights.T
        guess = scores.argmax(axis=1) if len(weights) > 1 else scores[:, 0] > 0
        return {
            "accuracy": float(np.mean(guess == part.y_test)),
            "cpu_seconds": taken,
            "noise_multiplier": z,
        }

    key = bench.key(
        by="lastiterate",
        batching=type(batching).__name__,
        batch=round(run.divisor),
        steps=steps,
        step=setting.step,
        ridge=setting.ridge,
        row_norm=setting.norm,
        z=z,
        seed=seed,
    )
    return bench.log.once(key, work) | {"theorem": theorem}


WARM: set[li.Run] = set()


def warm(one: li.Run, part: Split) -> None:
    """Compile the program that runs like ``one`` share, so that no timed fit pays for it."""
    if one not in WARM:
        Trainer(one).fit(part.x[:, :-1], part.y, key_from_seed(0))
        WARM.add(one)


def opacus_fit(
    bench: Bench, child: Any, setting: Setting, batch: int, steps: int, z: float, seed: int
) -> dict[str, Any]:
    """The same loss, step size and ridge under Poisson sampling by Opacus, with noise multiplier
    ``z``."""
    loss = bench.loss(setting.ridge)
    facts = loss.facts()
    question = {
        "seed": seed,
        "batch": batch,
        "steps": steps,
        "step_size": setting.step / facts.fact("smooth"),
        "clip": setting.clip * facts.fact("lipschitz"),
        "noise_multiplier": z,
        "weight_decay": loss.ridge,
        "delta": bench.delta,
    }
    return bench.log.once(
        bench.key(by="Opacus", row_norm=setting.norm, **question), lambda: child.ask(**question)
    )


def blocks_of(n: int, blocks: int) -> tuple[int, int]:
    """Batch size for about ``blocks`` batches in a pass, and how many there are."""
    batch = math.ceil(n / blocks)
    return batch, math.ceil(n / batch)
