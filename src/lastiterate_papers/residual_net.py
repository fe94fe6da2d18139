"""A small residual net of Equinox with group normalisation; imported when Table 3 is made.

Two residual blocks: the stem (one convolution, a maximum over 2 x 2, the first block) stays frozen;
the last block and the head are what private training moves. Normalisation works within a record,
because a private gradient must be that of one record.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lastiterate.errors import InputError

try:
    import equinox as eqx
    from equinox import nn
except ImportError:
    raise InputError(
        "papers", "needs equinox for its residual net", None, "pip install 'lastiterate[papers]'"
    ) from None

GROUPS = 4
Norm = Callable[[int], Any]
"""A normalising layer for so many channels."""


class Block(eqx.Module):
    """A residual block: (width, h, w) to the same."""

    first: nn.Conv2d
    first_norm: Any
    second: nn.Conv2d
    second_norm: Any

    def __init__(self, width: int, norm: Norm, key: jax.Array) -> None:
        one, two = jax.random.split(key)
        self.first, self.second = (
            nn.Conv2d(width, width, 3, padding=1, use_bias=False, key=part) for part in (one, two)
        )
        self.first_norm, self.second_norm = norm(width), norm(width)

    def __call__(self, x: jax.Array) -> jax.Array:
        inner = jax.nn.relu(self.first_norm(self.first(x)))
        return jax.nn.relu(x + self.second_norm(self.second(inner)))


class Stem(eqx.Module):
    """What stays frozen: an image (h, w) with values in 0 .. 1 to (width, h / 2, w / 2), halved
    once more above 8 x 8."""

    filters: nn.Conv2d
    halve: nn.MaxPool2d
    block: Block

    def __init__(self, width: int, norm: Norm, key: jax.Array) -> None:
        one, two = jax.random.split(key)
        self.filters = nn.Conv2d(1, width, 3, padding=1, use_bias=False, key=one)
        self.halve, self.block = nn.MaxPool2d(2, 2), Block(width, norm, two)

    def __call__(self, image: jax.Array) -> jax.Array:
        x = self.block(self.halve(self.filters(image[None])))
        return self.halve(x) if x.shape[1] > 8 else x


class Tail(eqx.Module):
    """What is fine-tuned, the last block and the head: (width, h, w) to logits (classes,)."""

    block: Block
    head: nn.Linear

    def __init__(self, classes: int, width: int, norm: Norm, key: jax.Array) -> None:
        one, two = jax.random.split(key)
        self.block, self.head = Block(width, norm, one), nn.Linear(width, classes, key=two)

    def pooled(self, inner: jax.Array) -> jax.Array:
        """What the head reads: means over each channel, (width,)."""
        return self.block(inner).mean(axis=(1, 2))

    def __call__(self, inner: jax.Array) -> jax.Array:
        return self.head(self.pooled(inner))


class Net(eqx.Module):
    """An image (h, w) to logits (classes,)."""

    stem: Stem
    tail: Tail

    def __call__(self, image: jax.Array) -> jax.Array:
        return self.tail(self.stem(image))


def first_net(seed: int, classes: int, width: int, norm: Norm | None = None) -> Net:
    """A net with random first parameters, chosen without data; normalised by groups where nothing
    else is said.

    Filters have the standard deviations of He et al. (2015) and the head is 0: Equinox's own first
    values learned nothing in 150 steps.
    """
    if width % GROUPS:
        raise InputError("width", f"must be a multiple of {GROUPS}, the number of groups", width)
    norm = partial(nn.GroupNorm, GROUPS) if norm is None else norm
    one, two = jax.random.split(jax.random.key(seed))
    net, rng = (
        Net(Stem(width, norm, one), Tail(classes, width, norm, two)),
        np.random.default_rng(seed),
    )
    drawn = [
        jnp.asarray(rng.normal(size=old.shape) * (2 / (9 * old.shape[1])) ** 0.5, old.dtype)
        for old in _filters(net)
    ]
    net = eqx.tree_at(_filters, net, drawn)
    return eqx.tree_at(lambda net: net.tail.head, net, jax.tree.map(jnp.zeros_like, net.tail.head))


def _filters(net: Net) -> list[Any]:
    """The filters of all convolutions, (out, in, 3, 3) each."""
    blocks = net.stem.block, net.tail.block
    return [
        net.stem.filters.weight,
        *(conv.weight for block in blocks for conv in (block.first, block.second)),
    ]


def entropy(logits: jax.Array, y: jax.Array) -> jax.Array:
    """Cross-entropy of one record."""
    return -jax.nn.log_softmax(logits)[y]


def mapped(layer: Callable[[Any], Any], records: np.ndarray, at_once: int = 500) -> np.ndarray:
    """What a module makes of every record alone, along the first axis."""
    each = eqx.filter_jit(eqx.filter_vmap(layer))
    return np.concatenate(
        [np.asarray(each(records[i : i + at_once])) for i in range(0, len(records), at_once)]
    )


def parted(module: eqx.Module) -> tuple[Any, Callable[..., Any]]:
    """The arrays of a module, and the loss of one record (input, label) as a function of them: what
    ``train`` takes."""
    arrays, rest = eqx.partition(module, eqx.is_inexact_array)
    return arrays, lambda arrays, x, y: entropy(eqx.combine(arrays, rest)(x), y)


def pretrained(
    net: Net,
    images: np.ndarray,
    labels: np.ndarray,
    steps: int,
    seed: int,
    *,
    batch: int = 50,
    step: float = 0.1,
    momentum: float = 0.9,
) -> Net:
    """The net after plain SGD with momentum on public images; no privacy, and none is asked for."""
    arrays, loss = parted(net)

    def mean_loss(arrays: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return jax.vmap(partial(loss, arrays))(x, y).mean()

    @jax.jit
    def moved(arrays: Any, speed: Any, x: jax.Array, y: jax.Array) -> Any:
        slope = jax.grad(mean_loss)(arrays, x, y)
        speed = jax.tree.map(lambda v, g: momentum * v + g, speed, slope)
        return jax.tree.map(lambda a, v: a - step * v, arrays, speed), speed

    rng, speed = np.random.default_rng(seed), jax.tree.map(jnp.zeros_like, arrays)
    for _ in range(steps):
        kept = rng.integers(0, len(images), batch)
        arrays, speed = moved(arrays, speed, jnp.asarray(images[kept]), jnp.asarray(labels[kept]))
    return eqx.combine(arrays, net)
