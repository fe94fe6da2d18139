"""LeNet5 (LeCun, Bottou, Bengio, Haffner 1998) on one image."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

SHAPES = {
    "conv1": (6, 1, 5, 5),
    "conv2": (16, 6, 5, 5),
    "conv3": (120, 16, 5, 5),
    "dense1": (84, 120),
    "dense2": (10, 84),
}
"""Weights, outputs first; every layer has one offset per output: 61,706 numbers in all."""


def lenet_parameters(seed: int) -> dict[str, dict[str, jax.Array]]:
    """First parameters, float32: uniform within 1/sqrt(inputs of one output), as is usual in
    PyTorch."""
    params: dict[str, dict[str, jax.Array]] = {}
    for key, (name, shape) in zip(
        jax.random.split(jax.random.key(seed), len(SHAPES)), SHAPES.items(), strict=True
    ):
        bound = 1 / math.sqrt(math.prod(shape[1:]))
        weights, offsets = jax.random.split(key)
        params[name] = {
            "w": jax.random.uniform(weights, shape, jnp.float32, -bound, bound),
            "b": jax.random.uniform(offsets, shape[:1], jnp.float32, -bound, bound),
        }
    return params


def lenet_logits(params: Any, image: jax.Array) -> jax.Array:
    """Logits (10,) of one image (1, 32, 32): three convolutions, the first two halved by maxima,
    two dense layers."""
    x = halved(jax.nn.relu(convolved(image, **params["conv1"])))
    x = halved(jax.nn.relu(convolved(x, **params["conv2"])))
    x = jax.nn.relu(convolved(x, **params["conv3"])).ravel()
    x = jax.nn.relu(params["dense1"]["w"] @ x + params["dense1"]["b"])
    return params["dense2"]["w"] @ x + params["dense2"]["b"]


def lenet_loss(params: object, image: jax.Array, label: jax.Array) -> jax.Array:
    """Cross-entropy of one record."""
    return -jax.nn.log_softmax(lenet_logits(params, image))[label]


def convolved(image: jax.Array, w: jax.Array, b: jax.Array) -> jax.Array:
    """Image (c, h, width) by kernels w (o, c, k, l) plus b (o,), without padding: (o, h - k + 1,
    width - l + 1).

    A product of matrices, since XLA's convolution is slow on processors where every model has
    kernels of its own.
    """
    outputs, _, high, wide = w.shape
    rows, columns = image.shape[1] - high + 1, image.shape[2] - wide + 1
    windows = jnp.stack(
        [image[:, i : i + rows, j : j + columns] for i in range(high) for j in range(wide)], axis=1
    )
    products = w.reshape(outputs, -1) @ windows.reshape(-1, rows * columns)
    return products.reshape(outputs, rows, columns) + b[:, None, None]


def halved(image: jax.Array) -> jax.Array:
    """The largest of every 2 x 2 pixels."""
    return jax.lax.reduce_window(image, -jnp.inf, jax.lax.max, (1, 2, 2), (1, 2, 2), "VALID")
