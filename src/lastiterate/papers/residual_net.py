"""A small residual net with group normalisation, in plain JAX: parameters are dictionaries of arrays.

Two residual blocks: a stem of one convolution, a maximum over 2 x 2 and the first block stays frozen; the last block
and the head are what private training moves. Normalisation works within a record, because a private gradient must be
that of one record.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lastiterate.errors import InputError

GROUPS = 4


def parameters(seed: int, classes: int, width: int, normalisation: str = "group") -> dict[str, Any]:
    """Random first parameters, chosen without data, for grey images.

    Errors: ``InputError`` for another normalisation than that by groups.
    """
    check_normalisation(normalisation)
    if width % GROUPS:
        raise InputError("width", f"must be a multiple of {GROUPS}, the number of groups", width)
    rng = np.random.default_rng(seed)

    def filters(out: int, inside: int) -> np.ndarray:
        return (rng.normal(size=(out, inside, 3, 3)) * (2 / (9 * inside)) ** 0.5).astype(np.float32)

    def one_block() -> dict[str, np.ndarray]:
        ones, zeros = np.ones(width, np.float32), np.zeros(width, np.float32)
        return {"w1": filters(width, width), "s1": ones, "b1": zeros, "w2": filters(width, width), "s2": ones,
                "b2": zeros}

    return {"in": filters(width, 1), "first": one_block(), "last": one_block(),
            "head": np.zeros((classes, width), np.float32), "bias": np.zeros(classes, np.float32)}


def check_normalisation(name: str) -> None:
    """Refuse what mixes records."""
    if name == "batch":
        raise InputError("normalisation", "must work within a record, and batch normalisation mixes them", name,
                         "use 'group': clipping bounds one record's gradient, which here would depend on all others")
    if name != "group":
        raise InputError("normalisation", "must be 'group'", name)


def convolved(x: Any, w: Any) -> Any:
    """One image (channels, h, w) by filters (out, channels, 3, 3), the same size."""
    import jax
    import jax.numpy as jnp

    kind = jnp.result_type(x, w)  # what is frozen may have less precision
    return jax.lax.conv_general_dilated(x[None].astype(kind), w.astype(kind), (1, 1), "SAME")[0]


def normed(x: Any, scale: Any, shift: Any) -> Any:
    """Group normalisation of one image."""
    import jax.numpy as jnp

    parts = x.reshape(GROUPS, -1)
    mean, spread = parts.mean(axis=1, keepdims=True), parts.var(axis=1, keepdims=True)
    whole = ((parts - mean) / jnp.sqrt(spread + 1e-5)).reshape(x.shape)
    return whole * scale[:, None, None] + shift[:, None, None]


def block(p: dict[str, Any], x: Any) -> Any:
    """A residual block."""
    import jax.numpy as jnp

    inner = jnp.maximum(normed(convolved(x, p["w1"]), p["s1"], p["b1"]), 0)
    return jnp.maximum(x + normed(convolved(inner, p["w2"]), p["s2"], p["b2"]), 0)


def halved(x: Any) -> Any:
    """Maxima over 2 x 2; sides are even."""
    return x.reshape(x.shape[0], x.shape[1] // 2, 2, x.shape[2] // 2, 2).max(axis=(2, 4))


def stem(p: dict[str, Any], image: Any) -> Any:
    """What stays frozen, of one image (h, w) with values in 0 .. 1: (width, h / 2, w / 2), once more halved above
    8 x 8."""
    x = halved(convolved(image[None], p["in"]))
    x = block(p["first"], x)
    return halved(x) if x.shape[1] > 8 and x.shape[1] % 2 == 0 else x


def tail(p: dict[str, Any], inner: Any) -> Any:
    """What is fine-tuned: the last block and the head, (classes,) logits."""
    x = block(p["last"], inner)
    return p["head"] @ x.mean(axis=(1, 2)) + p["bias"]


def entropy(logits: Any, y: Any) -> Any:
    """Cross-entropy of one record."""
    import jax

    return -jax.nn.log_softmax(logits)[y]


def mapped(p: dict[str, Any], images: np.ndarray, at_once: int = 500) -> np.ndarray:
    """What the frozen part makes of images (n, h, w)."""
    import jax

    one = jax.jit(jax.vmap(lambda x: stem(p, x)))
    return np.concatenate([np.asarray(one(images[i:i + at_once])) for i in range(0, len(images), at_once)])


def logits_of(p: dict[str, Any], inner: np.ndarray, at_once: int = 500) -> np.ndarray:
    """Logits (n, classes) of what the frozen part made."""
    import jax

    one = jax.jit(jax.vmap(lambda x: tail(p, x)))
    return np.concatenate([np.asarray(one(inner[i:i + at_once])) for i in range(0, len(inner), at_once)])


def pretrained(p: dict[str, Any], images: np.ndarray, labels: np.ndarray, steps: int, seed: int, *, batch: int = 50,
               step: float = 0.1, momentum: float = 0.9) -> dict[str, Any]:
    """Parameters after plain SGD with momentum on public images; no privacy, and none is asked for."""
    import jax
    import jax.numpy as jnp

    def mean_loss(params: Any, x: Any, y: Any) -> Any:
        return jax.vmap(lambda x, y: entropy(tail(params, stem(params, x)), y))(x, y).mean()

    @jax.jit
    def moved(params: Any, speed: Any, x: Any, y: Any) -> Any:
        slope = jax.grad(mean_loss)(params, x, y)
        speed = jax.tree.map(lambda v, g: momentum * v + g, speed, slope)
        return jax.tree.map(lambda a, v: a - step * v, params, speed), speed

    rng = np.random.default_rng(seed)
    found, speed = jax.tree.map(jnp.asarray, p), jax.tree.map(jnp.zeros_like, p)
    for _ in range(steps):
        kept = rng.integers(0, len(images), batch)
        found, speed = moved(found, speed, images[kept], labels[kept])
    return jax.tree.map(np.asarray, found)
