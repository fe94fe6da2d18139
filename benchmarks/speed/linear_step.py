"""Throughput of training steps, interleaved in one process: ours, ours without noise, JAX and NumPy
loops.

python -m benchmarks.speed.linear_step [ROUNDS]     50,000 x 512 float32, 10 classes, batch 500 in public order and all

By the clock and in processor time, which other load on the cores moves less.
"""

from __future__ import annotations

import logging
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lastiterate as li
from lastiterate.engine import Trainer, key_from_seed
from lastiterate.engine.linear_gradients import arrange
from lastiterate.engine.loop import Schedule, StepProgram, schedule, start, step_at
from lastiterate.engine.noise import Noise

N, D, K, BATCH = 50_000, 512, 10, 500


def ours(
    run: li.Run, features: np.ndarray, target: np.ndarray, *, noisy: bool = True
) -> Callable[[int], None]:
    """Steps of the trainer's own loop, on data that are already arranged; or the same arithmetic
    without noise."""
    loop, key, first = Trainer(run).loop, key_from_seed(0), np.zeros((K, D + 1))
    with jax.enable_x64(True):
        plan = Schedule(*map(jnp.asarray, schedule(run)))
        data = tuple(map(jnp.asarray, arrange(run, features, target)))

    @jax.jit
    def quiet(program: StepProgram, state: Any, data: Any, plan: Schedule, count: Any) -> Any:
        none = Noise(0, jnp.zeros((1, *state.theta.shape)))

        def body(k: Any, now: Any) -> Any:
            return step_at(program, now, data, key, none, plan, k)

        return jax.lax.fori_loop(0, count, body, state)

    def steps(count: int) -> None:
        with jax.enable_x64(True):
            if noisy:
                replace(loop, run=replace(run, steps=count)).execute(first, data, key, None)
            else:
                quiet(
                    loop.program, start(loop.program, first, key), data, plan, count
                ).theta.block_until_ready()

    return steps


def plain(rows: np.ndarray, target: np.ndarray, batch: int) -> Callable[[int], None]:
    """The same steps without noise, clipping or chunked sums: plain float32 softmax regression in
    JAX."""
    blocks = jnp.asarray(rows).reshape(-1, batch, D + 1)
    labels = jnp.asarray(target).reshape(-1, batch)

    @jax.jit
    def loop(theta: jax.Array, blocks: jax.Array, labels: jax.Array, count: int) -> jax.Array:
        def body(k: int, theta: jax.Array) -> jax.Array:
            x, y = blocks[k % blocks.shape[0]], labels[k % blocks.shape[0]]
            found = jax.nn.softmax(x @ theta.T) - jax.nn.one_hot(y, K)
            return theta - 0.1 * (found.T @ x / batch + 1e-4 * theta)

        return jax.lax.fori_loop(0, count, body, theta)

    return lambda count: loop(jnp.zeros((K, D + 1)), blocks, labels, count).block_until_ready()


def numpy_loop(
    rows: np.ndarray, target: np.ndarray, batch: int, *, transposed: bool
) -> Callable[[int], None]:
    """A careful NumPy loop: float32, preallocated, noise included; weights K x d, or d x K when
    ``transposed``."""
    rng = np.random.default_rng(0)
    scores, place = np.empty((batch, K), np.float32), np.arange(batch)
    shape = (D + 1, K) if transposed else (K, D + 1)
    gradient, noise = np.empty(shape, np.float32), np.empty(shape, np.float32)
    blocks = len(rows) // batch

    def steps(count: int) -> None:
        theta = np.zeros(shape, np.float32)
        for k in range(count):
            at = slice(k % blocks * batch, (k % blocks + 1) * batch)
            x = rows[at]
            np.matmul(x, theta if transposed else theta.T, out=scores)
            np.subtract(scores, scores.max(axis=1, keepdims=True), out=scores)
            np.exp(scores, out=scores)
            np.divide(scores, scores.sum(axis=1, keepdims=True), out=scores)
            scores[place, target[at]] -= 1
            np.matmul(x.T if transposed else scores.T, scores if transposed else x, out=gradient)
            rng.standard_normal(dtype=np.float32, out=noise)
            np.multiply(noise, 0.01 * batch, out=noise)
            np.add(gradient, noise, out=gradient)
            np.multiply(gradient, 0.1 / batch, out=gradient)
            np.multiply(theta, 1 - 1e-5, out=theta)
            np.subtract(theta, gradient, out=theta)

    return steps


HIDDEN, CHARGED = "private, hidden state (float64)", "private, all steps charged (float32 chunks)"
QUIET, QUIET_CHARGED = "the same without noise", "the same without noise "
NUMPY, PLAIN = "NumPy float32 with noise, weights d x K", "JAX, float32, no noise, plain sums"
PAIRS = (
    (HIDDEN, QUIET),
    (CHARGED, QUIET_CHARGED),
    (CHARGED, PLAIN),
    (NUMPY, HIDDEN),
    (NUMPY, CHARGED),
)


def compare(
    title: str, candidates: dict[str, Callable[[int], None]], count: int, repeats: int
) -> None:
    """Interleaved medians and interquartile ranges by the clock and of the processors, in
    milliseconds a step."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in candidates}
    for steps in candidates.values():
        steps(2)  # compile and warm up
    for _ in range(repeats):
        for name, steps in candidates.items():
            time.sleep(0.3)  # the last library's threads spin for a while before they sleep
            began, busy = time.perf_counter(), time.process_time()
            steps(count)
            taken[name].append(
                (
                    (time.perf_counter() - began) * 1e3 / count,
                    (time.process_time() - busy) * 1e3 / count,
                )
            )
    print(
        f"\n{title}, {os.cpu_count()} cores, {repeats} rounds; ratios are taken inside a round\n\n"
        "| step | median ms | IQR | processor ms | IQR |\n|---|---|---|---|---|"
    )
    for name, values in taken.items():
        print(f"| {name} | " + " | ".join(map(spread, zip(*values, strict=True))) + " |")
    print()
    for name, other in PAIRS:
        ratios = [
            [mine / its for mine, its in zip(a, b, strict=True)]
            for a, b in zip(taken[name], taken[other], strict=True)
        ]
        print(
            f"- {name}, over {other.strip()}: "
            + " by the clock, ".join(
                "{} (IQR {})".format(*spread(column).split(" | "))
                for column in zip(*ratios, strict=True)
            )
            + " in processor time"
        )


def spread(values: Iterable[float]) -> str:
    """Median and interquartile range, as two cells."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.3f} | {high - low:.3f}"


def peak_memory(batching: str) -> str:
    """Peak resident memory of a whole fit, beyond that of a fit on 1,000 records; each in a process
    of its own.

    Both processes compile one program, so that the difference is what the data take.
    """

    def peak(n: int) -> tuple[float, float]:
        code = f"""
import numpy as np, lastiterate as li
from lastiterate.engine import Trainer
X = np.random.default_rng(0).random(({n}, {D}), dtype=np.float32)
run = li.Run(n={n}, steps=3, step_size=li.Constant(0.1), noise=li.NoiseMultiplier(1.0), batching=li.{batching},
             loss=li.Softmax(classes={K}, row_norm=30.0))
Trainer(run).fit(X, np.arange({n}) % {K})
print(int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) / 1024, X.nbytes / 2**20)
"""
        asked = [sys.executable, "-c", code]
        found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()
        return float(found[0]), float(found[1])

    found = [(*peak(1000), *peak(N)) for _ in range(5)]
    data = found[0][3] - found[0][1]
    grown = statistics.median(after - before for before, _, after, _ in found)
    return f"| {batching} | {data:.0f} | {grown:.0f} | {grown / data:.2f} |"


def compiled_again(
    run: li.Run, features: np.ndarray, target: np.ndarray
) -> tuple[float, float, int]:
    """Seconds of a first and a second fit of one shape, and programs compiled during the second."""
    seconds, messages = [], []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    for attempt in range(2):
        began = time.perf_counter()
        if attempt:
            logging.getLogger("jax").addHandler(handler)
            logging.getLogger("jax").propagate = False
        with jax.log_compiles(bool(attempt)):
            Trainer(run).fit(features, target)
        seconds.append(time.perf_counter() - began)
    return seconds[0], seconds[1], sum("Compiling" in message for message in messages)


def main() -> None:
    """Tables: small blocks in public order, full batches, memory, compilation."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 41
    rng = np.random.default_rng(0)
    features = rng.normal(size=(N, D)).astype(np.float32) / np.sqrt(D)
    rows = np.concatenate((features, np.ones((N, 1), np.float32)), axis=1)
    target = rng.integers(0, K, N).astype(np.int32)
    run = li.Run(
        n=N,
        steps=1000,
        step_size=li.Constant(0.1),
        noise=li.NoiseMultiplier(1.0),
        batching=li.Cyclic(BATCH),
        loss=li.Softmax(classes=K, row_norm=1.5, ridge=1e-4),
    )
    full = replace(run, steps=10, batching=li.FullBatch())
    first, second, compiled = compiled_again(run, features, target)
    for title, described, batch, count, repeats in (
        (f"batch {BATCH} in public order", run, BATCH, 200, rounds),
        ("full batch", full, N, 5, max(3, rounds // 3)),
    ):
        charged = replace(described, optimizer=li.Nesterov())
        drawn = replace(run, batching=li.Poisson(BATCH / N))
        poisson = (
            {}
            if batch == N
            else {f"private, Poisson batches of {BATCH} expected": ours(drawn, features, target)}
        )
        compare(
            f"{N} x {D}, {K} classes, {title}",
            {
                HIDDEN: ours(described, features, target),
                QUIET: ours(described, features, target, noisy=False),
                CHARGED: ours(charged, features, target),
                QUIET_CHARGED: ours(charged, features, target, noisy=False),
                **poisson,
                PLAIN: plain(rows, target, batch),
                "NumPy float32 with noise, weights K x d": numpy_loop(
                    rows, target, batch, transposed=False
                ),
                NUMPY: numpy_loop(rows, target, batch, transposed=True),
            },
            count,
            repeats,
        )
    print(
        f"\nwhole fit of 1,000 steps: first call {first:.2f} s (it compiles), second {second:.2f} "
        f"s, "
        f"{compiled} programs compiled during the second"
    )
    print(
        "\n| batches | data MB | peak of a fit with its data, MB | over data |\n|---|---|---|---|"
    )
    print(peak_memory("FullBatch()"))
    print(peak_memory(f"Cyclic({BATCH})"))


if __name__ == "__main__":
    main()
