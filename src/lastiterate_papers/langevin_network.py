"""Heller and Fetaya's networks (2023, equation 3 and appendix E): SGLD as a run, with and without
clipped gradients, and LeNet5.

theta' = theta - lr/2 (n mean gradient + theta) + sqrt(lr) N(0, I), prior N(0, I), is the step of
size lr n / 2 on the mean of loss + |theta|^2 / (2 n), at temperature sigma^2 = 1/n: sqrt(2 step)
sigma = sqrt(lr). The prior is part of every record's loss, since runs on networks have no ridge of
their own; where gradients are clipped, its share is clipped with them (there the paper adds it
outside).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lastiterate as li

HIDDEN = 16
"""Units of the hidden layer of a network on 64 means of pixels, which replaces LeNet5 where sizes
are reduced."""


def langevin_run(
    n: int, passes: int, *, step_size: float = 1 / 240, batch: int = 4, clip: float | None = None
) -> li.Run:
    """The run of ``passes`` passes of SGLD on blocks of ``batch`` records in public order, under
    replace-one.

    ``step_size``: the paper's lr n / 2, by default its 1/240; temperature 1/n. ``clip``: the
    paper's C, 0.2, or none.
    """
    blocks = -(-n // batch)
    return li.Run(
        n=n,
        steps=passes * blocks,
        step_size=step_size,
        noise=li.Langevin(n**-0.5),
        batching=li.Cyclic(batch),
        clip=clip,
        adjacency="replace-one",
    )


def with_prior(loss: Callable[..., jax.Array], n: int) -> Callable[..., jax.Array]:
    """``loss(params, *record)`` plus the record's share of the prior's |params|^2 / 2, one n-th."""

    def whole(params: object, *record: object) -> jax.Array:
        squares = [jnp.sum(leaf**2) for leaf in jax.tree.leaves(params) if hasattr(leaf, "dtype")]
        return loss(params, *record) + sum(squares[1:], squares[0]) / (2 * n)

    return whole


def small_parameters(seed: int) -> dict[str, Any]:
    """First parameters of a network with one hidden layer on means over 4 x 4 pixels, chosen
    without data."""
    rng = np.random.default_rng(seed)
    return {
        "in": (rng.normal(size=(HIDDEN, 64)) / math.sqrt(64)).astype(np.float32),
        "bias": np.zeros(HIDDEN, np.float32),
        "out": np.zeros((10, HIDDEN), np.float32),
    }


def small_logits(params: dict[str, Any], image: jax.Array) -> Any:
    """Logits (classes,) of one image."""
    means = image.reshape(8, 4, 8, 4).mean(axis=(1, 3)).ravel()
    return params["out"] @ jnp.maximum(params["in"] @ means + params["bias"], 0)


def small_loss(params: dict[str, Any], image: jax.Array, label: object) -> Any:
    """Cross-entropy of one record."""
    return -jax.nn.log_softmax(small_logits(params, image))[label]


# LeNet5 (LeCun, Bottou, Bengio, Haffner 1998) on one image.

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
