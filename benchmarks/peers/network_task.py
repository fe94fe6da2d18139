"""A small convolutional network on images of 28 x 28 pixels: the task of network_step_peers.py,
wherever JAX is."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

BATCH, CLIP, STEP, Z = 256, 1.0, 0.1, 1.0


def network(seed: int = 0) -> list[dict[str, jax.Array]]:
    """Parameters of two convolutions and two dense layers (the usual example network of private
    training)."""
    keys = jax.random.split(jax.random.key(seed), 4)
    shapes = (16, 1, 8, 8), (32, 16, 4, 4), (32, 512), (10, 32)
    return [
        {
            "w": jax.random.normal(key, shape, jnp.float32) / np.sqrt(np.prod(shape[1:])),
            "b": jnp.zeros(shape[0], jnp.float32),
        }
        for key, shape in zip(keys, shapes, strict=True)
    ]


def loss(params: Any, image: jax.Array, label: jax.Array) -> jax.Array:
    """Softmax loss of one image (1, 28, 28)."""
    x = image[None]
    for layer, stride, padding in ((params[0], 2, "SAME"), (params[1], 2, "VALID")):
        x = (
            jax.lax.conv_general_dilated(x, layer["w"], (stride, stride), padding)
            + layer["b"][:, None, None]
        )
        x = jax.lax.reduce_window(
            jax.nn.relu(x), -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 1, 1), "VALID"
        )
    x = jax.nn.relu(params[2]["w"] @ x.ravel() + params[2]["b"])
    return -jax.nn.log_softmax(params[3]["w"] @ x + params[3]["b"])[label]


def images(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 1, 28, 28) float32 and labels (n,) int32."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, 1, 28, 28)).astype(np.float32), rng.integers(0, 10, n).astype(
        np.int32
    )
