"""Time of one private training step of jax-privacy on the task of timed_bursts.py; a child of
linear_step_peers.py.

python -m benchmarks.peers.jaxprivacy_linear_step [--bursts 21] [--count 100]

Needs ``pip install jax-privacy optax``, not lastiterate.

``jax_privacy.clipped_grad`` (nan_safe by default: its guarantee needs that) and
``noise_addition.gaussian_privatizer``, chained with optax.sgd. The whole loop over steps is one
compiled program; data are arguments, batches slices in public order. The size of microbatches is
the fastest of a few at the start; the JSON says which.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax_privacy
import optax

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
    records,
    task,
)


def loss(theta: jax.Array, row: jax.Array, label: jax.Array) -> jax.Array:
    """Softmax loss of one record."""
    return optax.softmax_cross_entropy_with_integer_labels(theta @ row, label)


def stepper(microbatch: int | None, rows: jax.Array, target: jax.Array) -> Callable[[int], object]:
    """Training steps from zero weights on, ``rows`` (blocks, batch, d)."""
    gradient = jax_privacy.clipped_grad(
        loss,
        l2_clip_norm=CLIP,
        normalize_by=BATCH,
        batch_argnums=(1, 2),
        keep_batch_dim=False,
        microbatch_size=microbatch,
    )
    noise = jax_privacy.noise_addition.gaussian_privatizer(
        stddev=Z * gradient.sensitivity(), prng_key=jax.random.key(0)
    )
    optimizer = optax.chain(noise, optax.add_decayed_weights(RIDGE), optax.sgd(STEP))

    @jax.jit
    def loop(
        theta: jax.Array, state: Any, rows: jax.Array, target: jax.Array, count: int
    ) -> tuple[jax.Array, Any]:
        def body(k: Any, now: tuple[jax.Array, Any]) -> tuple[jax.Array, Any]:
            place = k % rows.shape[0]
            moved, state = optimizer.update(
                gradient(now[0], rows[place], target[place]), now[1], now[0]
            )
            return now[0] + moved, state

        return jax.lax.fori_loop(0, count, body, (theta, state))

    theta = jnp.zeros((K, D + 1))
    state = optimizer.init(theta)
    return lambda count: jax.block_until_ready(loop(theta, state, rows, target, count))


def main() -> None:
    features, labels = task(records())
    whole = len(features) // BATCH * BATCH
    rows = jnp.asarray(features[:whole]).reshape(-1, BATCH, D + 1)
    target = jnp.asarray(labels[:whole]).reshape(-1, BATCH)
    sizes = (None, 250, 100, 50)
    size, steps = fastest({str(size): stepper(size, rows, target) for size in sizes})
    size = BATCH if size == "None" else size
    answer_bursts(
        {
            "name": f"jax-privacy {jax_privacy.__version__}, microbatches of {size}",
            "versions": f"JAX {jax.__version__}",
            "threads": f"XLA's, {os.cpu_count()} cores",
        },
        steps,
    )


if __name__ == "__main__":
    main()
