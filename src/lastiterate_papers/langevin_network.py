"""SGLD on a network as a run, and the same with clipped gradients (Heller and Fetaya 2023, equation
3 and appendix E).

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
