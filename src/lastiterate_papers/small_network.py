"""A network with one hidden layer on 64 means of pixels, which stands for LeNet5 where sizes are reduced."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

HIDDEN = 16
"""Units of the hidden layer."""


def small_parameters(seed: int, inputs: int = 64, hidden: int = HIDDEN, classes: int = 10) -> dict[str, Any]:
    """First parameters of a network with one hidden layer on means over 4 x 4 pixels, chosen without data."""
    rng = np.random.default_rng(seed)
    return {"in": (rng.normal(size=(hidden, inputs)) / math.sqrt(inputs)).astype(np.float32),
            "bias": np.zeros(hidden, np.float32), "out": np.zeros((classes, hidden), np.float32)}


def small_logits(params: dict[str, Any], image: Any) -> Any:
    """Logits (classes,) of one image."""
    means = image.reshape(8, 4, 8, 4).mean(axis=(1, 3)).ravel()
    return params["out"] @ jnp.maximum(params["in"] @ means + params["bias"], 0)


def small_loss(params: dict[str, Any], image: Any, label: Any) -> Any:
    """Cross-entropy of one record."""
    return -jax.nn.log_softmax(small_logits(params, image))[label]
