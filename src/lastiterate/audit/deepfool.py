"""DeepFool (Moosavi-Dezfooli, Fawzi, Frossard 2016) for several models: one small change that fools all of them.

Where a model says class c, its class k overtakes c, to first order, after the move f_k w_k / |w_k|^2 of length
f_k / |w_k|, f_k = logit_c - logit_k, w_k = grad (logit_k - logit_c). The paper moves to the nearest class and repeats.
Here the models that still say c move it together, by the mean of their moves towards the class that is nearest to them
on average; with a single model this is the paper's algorithm.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lastiterate.errors import InputError

Logits = Callable[[Any, jax.Array], jax.Array]
"""``logits(params, image)``: one number per class for one image."""
OVERSHOOT = 0.02
"""Moves are this much longer than the linearised boundary is far, as in the paper."""


def fool_all(logits: Logits, models: Any, image: np.ndarray, label: int, low: float, high: float, *,
             most: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """The image moved until no model says ``label``, within low .. high; and what each model says instead, (models,).

    ``models``: parameters, every leaf with the models as its first axis. At most ``most`` moves.
    """
    if not ((low <= image) & (image <= high)).all():
        raise InputError("image", f"must lie within the pixel range {low:g} .. {high:g}",
                         (float(np.min(image)), float(np.max(image))), "state the range after normalisation")
    moved = jnp.asarray(image)
    for _ in range(most):
        said, after = _moved(logits, models, moved, label, low, high)
        if (np.asarray(said) != label).all():
            return np.asarray(moved), np.asarray(said)
        moved = after
    right = int((np.asarray(said) == label).sum())
    raise InputError("record", f"cannot be made adversarial in {most} moves: {right} of {len(said)} models still know "
                     "its label", None, "choose another record, or fewer models")


@partial(jax.jit, static_argnums=0)
def _moved(logits: Logits, models: Any, image: jax.Array, label: Any, low: Any, high: Any
           ) -> tuple[jax.Array, jax.Array]:
    """What the models say of ``image``, and the image after one move by those that say ``label``."""
    values = jax.vmap(lambda model: logits(model, image))(models)  # (models, classes)
    slopes = jax.vmap(lambda model: jax.jacrev(partial(logits, model))(image))(models)
    said = values.argmax(axis=1)
    right = (said == label).astype(values.dtype)
    gaps = values[:, label][:, None] - values
    slopes = slopes - slopes[:, label][:, None]
    squares = (slopes**2).reshape(*gaps.shape, -1).sum(axis=2)
    far = jnp.where(squares > 0, jnp.abs(gaps) / jnp.sqrt(jnp.maximum(squares, 1e-30)), 1e15)
    nearest = (far * right[:, None]).sum(axis=0).at[label].set(jnp.inf).argmin()
    # a move that ends exactly on the boundary changes no answer: a little more, however near it is
    scale = right * (jnp.abs(gaps[:, nearest]) + 1e-4) / jnp.maximum(squares[:, nearest], 1e-30)
    move = jnp.tensordot(scale, slopes[:, nearest], axes=1) / jnp.maximum(right.sum(), 1)
    return said, jnp.clip(image + (1 + OVERSHOOT) * move, low, high)
