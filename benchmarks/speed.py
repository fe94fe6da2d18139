"""Throughput of training steps, interleaved in one process: ours, ours without noise, a NumPy loop.

python benchmarks/speed.py          50,000 x 512 float32, 10 classes, batch 500 in public order, and full batch
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import lastiterate as li
from lastiterate.engine import Trainer, seeded_key
from lastiterate.engine.trainer import _advance as advance
from lastiterate.engine.trainer import arrange, schedule, shape_of, start

N, D, K, BATCH = 50_000, 512, 10, 500


def private(run: li.Run, rows: np.ndarray, target: np.ndarray) -> Callable[[int], None]:
    """Steps of the trainer's own loop, on data that are already arranged."""
    key, shape, plan = seeded_key(0), shape_of(run), schedule(run)
    with jax.enable_x64(True):
        state = start(run, (K, D + 1), key)
        blocks, labels = arrange(run, rows, target, key)

    def steps(count: int) -> None:
        with jax.enable_x64(True):
            advance(shape, state, blocks, labels, key, plan, 0, count).theta.block_until_ready()

    return steps


def plain(rows: np.ndarray, target: np.ndarray, batch: int) -> Callable[[int], None]:
    """The same steps without noise, clipping or chunked sums: plain float32 softmax regression in JAX."""
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


def numpy_loop(rows: np.ndarray, target: np.ndarray, batch: int, *, transposed: bool) -> Callable[[int], None]:
    """A careful NumPy loop: float32, preallocated, noise included; weights K x d, or d x K when ``transposed``."""
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


def compare(title: str, candidates: dict[str, Callable[[int], None]], count: int, repeats: int) -> None:
    """Interleaved medians and interquartile ranges, in milliseconds a step."""
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    for steps in candidates.values():
        steps(2)  # compile and warm up
    for _ in range(repeats):
        for name, steps in candidates.items():
            time.sleep(0.3)  # the last library's threads spin for a while before they sleep
            began = time.perf_counter()
            steps(count)
            taken[name].append((time.perf_counter() - began) * 1e3 / count)
    base = statistics.median(taken[next(iter(candidates))])
    print(f"\n{title}, {os.cpu_count()} cores\n\n| step | median ms | IQR ms | against the first |\n|---|---|---|---|")
    for name, values in taken.items():
        middle, quarters = statistics.median(values), statistics.quantiles(values, n=4)
        print(f"| {name} | {middle:.3f} | {quarters[2] - quarters[0]:.3f} | {middle / base:.2f} |")


def main() -> None:
    """Two tables: small blocks in public order, and full batches."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(N, D)).astype(np.float32) / np.sqrt(D)
    rows = np.concatenate((features, np.ones((N, 1), np.float32)), axis=1)
    target = rng.integers(0, K, N).astype(np.int32)
    run = li.Run(n=N, steps=1000, step_size=li.Constant(0.1), noise=li.NoiseMultiplier(1.0), batching=li.Cyclic(BATCH),
                 loss=li.Softmax(classes=K, row_norm=1.5, ridge=1e-4))
    full = li.Run(n=N, steps=10, step_size=li.Constant(0.1), noise=li.NoiseMultiplier(1.0),
                  loss=li.Softmax(classes=K, row_norm=1.5, ridge=1e-4))
    compare(f"{N} x {D}, {K} classes, batch {BATCH} in public order", {
        "private": private(run, rows, target), "without noise, plain sums": plain(rows, target, BATCH),
        "NumPy, weights K x d": numpy_loop(rows, target, BATCH, transposed=False),
        "NumPy, weights d x K": numpy_loop(rows, target, BATCH, transposed=True)}, 300, 11)
    compare(f"{N} x {D}, {K} classes, full batch", {
        "private": private(full, rows, target), "without noise, plain sums": plain(rows, target, N)}, 5, 9)
    for attempt in ("first", "second"):
        began = time.perf_counter()
        Trainer(run).fit(features, target)
        print(f"\nwhole fit of 1,000 steps, {attempt} call (the first compiles): {time.perf_counter() - began:.2f} s")


if __name__ == "__main__":
    main()
