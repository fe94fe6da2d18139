"""DeepFool (Moosavi-Dezfooli, Fawzi, Frossard 2016) for several models: one small change that fools all.

Where a model says class c, its class k overtakes c, to first order, after the move f_k w_k /
|w_k|^2 of length f_k / |w_k|, f_k = logit_c - logit_k, w_k = grad (logit_k - logit_c). The paper
moves to the nearest class and repeats. Here all models share the class that is nearest on average
at the start, and the direction, the mean of their w_k: moves of single models would undo one
another. With one model this is the paper's algorithm, its first class kept.
"""

# pyright: basic
# what JAX makes of functions has no types
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


def fool_all(
    logits: Logits,
    models: object,
    image: np.ndarray,
    label: int,
    low: float,
    high: float,
    *,
    most: int = 200,
) -> tuple[np.ndarray, np.ndarray]:
    """The image moved until no model says ``label``, within low .. high; and what each model says
    instead, (models,).

    ``models``: parameters, every leaf with the models as its first axis. At most ``most`` moves.
    """
    if not ((low <= image) & (image <= high)).all():
        raise InputError(
            "image",
            f"must lie within the pixel range {low:g} .. {high:g}",
            (float(np.min(image)), float(np.max(image))),
            "state the range after normalisation",
        )
    moved = jnp.asarray(image)
    target = int(_nearest(logits, models, moved, label))
    for _ in range(most):
        said, after = _move_image(logits, models, moved, label, target, low, high)
        if (np.asarray(said) != label).all():
            return np.asarray(moved), np.asarray(said)
        moved = after
    right = int((np.asarray(said) == label).sum())
    raise InputError(
        "record",
        f"cannot be made adversarial in {most} moves: {right} of {len(said)} models still know "
        "its label",
        None,
        "choose another record, or fewer models",
    )


def _linearise(
    logits: Logits, models: object, image: jax.Array, label: jax.Array | int
) -> tuple[jax.Array, jax.Array]:
    """Logits (models, classes), and the slopes of their rise over the label's, (models, classes,
    ...)."""
    values = jax.vmap(lambda model: logits(model, image))(models)
    slopes = jax.vmap(lambda model: jax.jacrev(partial(logits, model))(image))(models)
    return values, slopes - slopes[:, label][:, None]


@partial(jax.jit, static_argnums=0)
def _nearest(logits: Logits, models: object, image: jax.Array, label: jax.Array | int) -> jax.Array:
    """The class whose boundary is nearest, on average over the models."""
    values, slopes = _linearise(logits, models, image, label)
    norms = jnp.sqrt((slopes**2).reshape(*values.shape, -1).sum(axis=2))
    far = (values[:, label][:, None] - values) / jnp.maximum(norms, 1e-15)
    return far.mean(axis=0).at[label].set(jnp.inf).argmin()


@partial(jax.jit, static_argnums=0)
def _move_image(
    logits: Logits,
    models: Any,
    image: jax.Array,
    label: jax.Array | int,
    target: jax.Array | int,
    low: float,
    high: float,
) -> tuple[jax.Array, jax.Array]:
    """What the models say of ``image``, and the image moved as far as those that say ``label`` need
    on average."""
    values, slopes = _linearise(logits, models, image, label)
    said = values.argmax(axis=1)
    right = (said == label).astype(values.dtype)
    each = slopes[:, target].reshape(len(said), -1)
    together = each.mean(axis=0)
    gains = each @ together  # what each model gains by a move of length |together|, to first order
    least = 0.1 * jnp.linalg.norm(each, axis=1) * jnp.linalg.norm(together)
    # a move that ends exactly on the boundary changes no answer: a little more, however near it is
    lengths = (values[:, label] - values[:, target] + 1e-4) / jnp.maximum(
        jnp.maximum(gains, least), 1e-30
    )
    length = (right * lengths).sum() / jnp.maximum(right.sum(), 1)
    return said, jnp.clip(
        image + (1 + OVERSHOOT) * length * together.reshape(image.shape), low, high
    )
