"""Time of one private training step of jax-privacy on network_task.py; a child of
network_step_peers.py.

python -m benchmarks.peers.jaxprivacy_network_step [--records 10000]

Needs ``pip install jax-privacy optax``, not lastiterate. Used as in jaxprivacy_linear_step.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax_privacy
import optax

from benchmarks.peers.network_task import BATCH, CLIP, STEP, Z, images, loss, network
from benchmarks.peers.timed_bursts import answer_bursts, fastest, records


def stepper(
    microbatch: int | None, pictures: jax.Array, labels: jax.Array
) -> Callable[[int], object]:
    """Training steps from the first parameters on; pictures (blocks, batch, 1, 28, 28)."""
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
    optimizer = optax.chain(noise, optax.sgd(STEP))

    @jax.jit
    def loop(
        params: Any, state: Any, pictures: jax.Array, labels: jax.Array, count: int
    ) -> tuple[Any, Any]:
        def body(k: Any, now: tuple[Any, Any]) -> tuple[Any, Any]:
            place = k % pictures.shape[0]
            moved, state = optimizer.update(
                gradient(now[0], pictures[place], labels[place]), now[1], now[0]
            )
            return optax.apply_updates(now[0], moved), state

        return jax.lax.fori_loop(0, count, body, (params, state))

    params = network()
    state = optimizer.init(params)
    return lambda count: jax.block_until_ready(loop(params, state, pictures, labels, count))


def main() -> None:
    n = records() // BATCH * BATCH
    pictures, labels = images(n)
    data = (
        jnp.asarray(pictures).reshape(-1, BATCH, 1, 28, 28),
        jnp.asarray(labels).reshape(-1, BATCH),
    )
    size, steps = fastest(
        {str(size): stepper(size, *data) for size in (None, 128, 64, 32, 16)}, count=3, repeats=3
    )
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
