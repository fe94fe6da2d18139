"""Models of an audit, shared by the devices that JAX sees: each trains its part of every batch of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lastiterate.audit.neighbours import Train
from lastiterate.engine.gaussian_noise import Key


def on_devices(train: Train) -> Train:
    """``train`` (with its ``absent``), whose keys lie on all devices of this process, equally many on each.

    A model is a function of its key and the data alone, so where it is computed is no part of what it is.
    """
    if jax.local_device_count() == 1:  # pyright: ignore
        return train

    def shared(features: np.ndarray, target: np.ndarray, keys: np.ndarray, absent: Sequence[int] = ()) -> np.ndarray:
        return np.asarray(train(features, target, spread(keys), absent=absent))[:len(keys)]

    return shared


def spread(keys: Key) -> jax.Array:
    """Keys on all devices of this process, filled up with the first one to a multiple of their number."""
    devices, held = np.array(cast(Any, jax.local_devices())), np.asarray(keys)  # pyright: ignore
    filled = np.concatenate((held, np.repeat(held[:1], -len(held) % len(devices), axis=0)))
    with jax.enable_x64(True):
        return jax.device_put(filled, NamedSharding(Mesh(devices, ("models",)), PartitionSpec("models")))  # pyright: ignore
