"""Many LeNet5 trained by clipped or plain SGD with Gaussian noise on the same batches, together:
one program a step.

The law is the run's, executed in single precision with noise of its own: for experiments on how
much an attack can see, never for a release. All models read the same records, in public order, so
that their patches are made once. A record's gradient is stored for the two small convolutions
alone; the third one and the dense layers multiply vectors, and a record's gradient there is the
product of the layer's input a and of the derivative d by its output, of norm |a| |d| (Goodfellow
2015, arXiv:1510.01799).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, product
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import lastiterate as li
from lastiterate import interrupts
from lastiterate.errors import InputError
from lastiterate_papers.langevin_network import SHAPES

VECTORS = ("conv3", "dense1", "dense2")
"""Layers that are used once for a record, as a matrix times a vector."""


Layers = dict[str, dict[str, jax.Array]]
"""Weights and offsets of layers by their names."""


class Numbers(NamedTuple):
    """Of a step: its size, the noise on the mean gradient, the divisor, a record's share of the
    prior, the clip."""

    step: np.float32
    noise: np.float32
    divisor: np.float32
    prior: np.float32
    clip: np.float32

    @classmethod
    def of(cls, run: li.Run, prior: float) -> Numbers:
        """Those of ``run``, in single precision."""
        clip = np.inf if run.clip is None else run.clip
        return cls(
            *map(np.float32, (run.step_sizes[0], run.noise_stds[0], run.divisor, prior, clip))
        )


def chains(
    params: object,
    prior: float,
    run: li.Run,
    data: tuple[np.ndarray, np.ndarray],
    keys: np.ndarray,
    checkpoints: Sequence[int],
    look: Callable[[jax.Array], Any],
) -> np.ndarray:
    """Features of one LeNet5 per key after every number of steps, (models, checkpoints, ...).

    ``params``: public first parameters. ``prior``: times |params|^2 / 2 it is added to the
    cross-entropy in every record's loss. ``data``: images (n, 1, 32, 32), labels (n,). ``look``:
    parameters (models, size) to features. Errors: ``InputError`` where models diverge.
    """
    first = ravel_pytree(params)[0]
    images, labels, real = (in_blocks(run, part) for part in (*data, np.ones(run.n, np.uint8)))
    numbers, theta = Numbers.of(run, prior), jnp.tile(first, (len(keys), 1))
    noise, found, done = streams(keys, len(first)), list[np.ndarray](), 0
    with jax.enable_x64(True):
        for checkpoint in checkpoints:
            for k in range(done, checkpoint):
                interrupts.check()
                block = k % run.blocks
                batch = patches_of(images[block]), labels[block], real[block]
                theta = _stepped(theta, *batch, next(noise), numbers)  # pyright: ignore[reportArgumentType]  # NumPy's
            done = checkpoint
            features = np.asarray(look(theta.astype(jnp.float64)))
            if not (np.isfinite(np.asarray(theta)).all() and np.isfinite(features).all()):
                raise InputError(
                    "step_size",
                    f"makes models diverge before step {checkpoint}",
                    None,
                    "take a smaller one",
                )
            found.append(features)
    return np.stack(found, axis=1)


def in_blocks(run: li.Run, values: np.ndarray) -> np.ndarray:
    """Records (n, ...) in public order as (blocks, m, ...), the last block filled with zeros."""
    if not isinstance(run.batching, li.Cyclic):
        raise InputError(
            "batching",
            "must be blocks in public order",
            type(run.batching).__name__,
            "take li.Cyclic",
        )
    short = run.blocks * run.batching.size - run.n
    filled = np.concatenate((values, np.zeros((short, *values.shape[1:]), values.dtype)))
    return filled.reshape(run.blocks, -1, *values.shape[1:])


def patches_of(images: np.ndarray) -> np.ndarray:
    """What the first kernel reads of images (..., 1, 32, 32): (..., 25, 784).

    The places of its results stand in an order in which neither the maxima over 2 x 2 places nor
    the second kernel's patches need strides: a row is 4 s + 2 q + p, a column likewise; (p, p', q,
    q', s, s') is row-major.
    """
    windows = np.lib.stride_tricks.sliding_window_view(images[..., 0, :, :], (5, 5), axis=(-2, -1))
    lead = windows.shape[:-4]
    split = windows.reshape(*lead, 7, 2, 2, 7, 2, 2, 25)  # s q p s' q' p' place
    at = len(lead)
    order = (*range(at), *(at + axis for axis in (6, 2, 5, 1, 4, 0, 3)))
    return np.ascontiguousarray(split.transpose(order)).reshape(*lead, 25, 784)


@jax.jit
def _stepped(
    theta: jax.Array,
    columns: jax.Array,
    labels: jax.Array,
    real: jax.Array,
    words: jax.Array,
    numbers: Numbers,
) -> jax.Array:
    total = clipped_sums(theta, columns, labels, real, numbers.prior, numbers.clip)
    noise = numbers.noise * normal(words, theta.shape[1])
    return theta - numbers.step * (total / numbers.divisor + noise)


def layers(theta: jax.Array) -> dict[str, dict[str, jax.Array]]:
    """Vectors (models, size) as parameters of LeNet5, in the order in which JAX has the leaves of a
    dictionary."""
    names = list(product(sorted(SHAPES), ("b", "w")))
    shapes = [SHAPES[name][:1] if part == "b" else SHAPES[name] for name, part in names]
    parts = jnp.split(theta, list(accumulate(map(prod, shapes)))[:-1], axis=1)
    found = dict[str, dict[str, jax.Array]]()
    for (name, part), shape, values in zip(names, shapes, parts, strict=True):
        found.setdefault(name, {})[part] = values.reshape(len(theta), *shape)
    return found


def clipped_sums(
    theta: jax.Array,
    columns: jax.Array,
    labels: jax.Array,
    real: jax.Array,
    prior: np.float32,
    clip: np.float32,
) -> jax.Array:
    """For every model (models, size) the sum over a batch of gradients clipped to norm ``clip``
    (inf: none).

    ``columns``: patches (m, 25, 784); ``real``: which records count, (m,). A record's gradient is
    that of its cross-entropy plus ``prior`` times the parameters; one that is not finite counts as
    0, as in the engine.
    """
    params = layers(theta)
    m = len(labels)
    each = {
        name: jax.tree.map(lambda a: jnp.repeat(a[:, None], m, 1), params[name])
        for name in ("conv1", "conv2")
    }
    zeros = {name: jnp.zeros((len(theta), m, SHAPES[name][0]), theta.dtype) for name in VECTORS}
    (own, slopes), (inputs, outputs) = jax.grad(_losses, (0, 1), has_aux=True)(
        each, zeros, params, columns, labels
    )
    squares = jnp.zeros((len(theta), m), theta.dtype)
    along = jnp.zeros((len(theta), m), theta.dtype)  # the record's gradient times the parameters
    for found, here in zip(jax.tree.leaves(own), jax.tree.leaves(each), strict=True):
        axes = tuple(range(2, found.ndim))
        squares, along = squares + (found**2).sum(axes), along + (found * here).sum(axes)
    for name in VECTORS:
        d, a = slopes[name], inputs[name]
        squares = squares + (d**2).sum(2) * ((a**2).sum(2) + 1)  # 1: of the offsets
        along = along + (d * outputs[name]).sum(2)
    norms = jnp.sqrt(squares + 2 * prior * along + prior**2 * (theta**2).sum(1)[:, None])
    counted = (real > 0) & jnp.isfinite(norms)
    scale = jnp.where(counted, jnp.minimum(1.0, clip / jnp.maximum(norms, 1e-30)), 0.0)
    own, slopes, inputs = jax.tree.map(
        lambda a: jnp.where(counted.reshape(*counted.shape, *[1] * (a.ndim - 2)), a, 0.0),
        (own, slopes, inputs),
    )
    found = {
        name: jax.tree.map(lambda g: jnp.einsum("cm,cm...->c...", scale, g), own[name])
        for name in own
    }
    for name in VECTORS:
        d = slopes[name] * scale[:, :, None]
        found[name] = {"w": jnp.einsum("cmo,cmi->coi", d, inputs[name]), "b": d.sum(1)}
    flat = jnp.concatenate(
        [leaf.reshape(len(theta), -1) for leaf in jax.tree.leaves(found)], axis=1
    )
    return flat + prior * scale.sum(1)[:, None] * theta


def _losses(
    each: Layers, zeros: dict[str, jax.Array], params: Layers, columns: jax.Array, labels: jax.Array
) -> tuple[jax.Array, tuple[dict[str, jax.Array], dict[str, jax.Array]]]:
    """The sum of all models' cross-entropies over the batch; and inputs and outputs of the layers
    of vectors.

    ``each``: the first two convolutions, for every model and record; ``zeros``: added to outputs of
    layers of vectors.
    """
    models, m = each["conv1"]["b"].shape[:2]
    x = each["conv1"]["w"].reshape(models, m, 6, 25) @ columns
    x = _halved(x.reshape(models, m, 6, 4, 2, 2, 7, 7), 3) + each["conv1"]["b"].reshape(
        models, m, 6, 1, 1, 1, 1
    )
    kernel = each["conv2"]["w"].reshape(models, m, 16, 150)
    patches = jax.lax.optimization_barrier(
        _patches(jax.nn.relu(x))
    )  # made once: otherwise every use makes its own
    x = _halved((kernel @ patches).reshape(models, m, 16, 4, 25), 3)
    x = jax.nn.relu(x + each["conv2"]["b"][..., None]).reshape(models, m, 400)
    inputs, outputs = dict[str, jax.Array](), dict[str, jax.Array]()
    for name in VECTORS:
        weights = params[name]["w"].reshape(models, SHAPES[name][0], -1)
        inputs[name] = x if name == VECTORS[0] else jax.nn.relu(x)
        x = (
            jnp.einsum("coi,cmi->cmo", weights, inputs[name])
            + params[name]["b"][:, None]
            + zeros[name]
        )
        outputs[name] = x
    answers = jnp.take_along_axis(x, labels.astype(jnp.int32)[None, :, None], axis=2)[..., 0]
    return (jax.nn.logsumexp(x, axis=2) - answers).sum(), (inputs, outputs)


def _halved(x: jax.Array, axis: int) -> jax.Array:
    """The largest of the four places that lie along ``axis``; the gradient goes to the first of
    several such."""
    first, *rest = (jax.lax.index_in_dim(x, place, axis, keepdims=False) for place in range(4))
    for other in rest:
        first = jnp.where(other > first, other, first)
    return first


def _patches(x: jax.Array) -> jax.Array:
    """What the second kernel reads of (models, m, 6, 2, 2, 7, 7), places as ``patches_of`` has
    them: (models, m, 150, 100), the four places of a maximum first."""
    rows = jnp.stack(
        [
            jnp.stack(
                [x[:, :, :, (p + i) % 2, :, (p + i) // 2 : (p + i) // 2 + 5] for p in range(2)], 3
            )
            for i in range(5)
        ],
        3,
    )  # models, m, 6, i, p, q', 5, 7
    both = jnp.stack(
        [
            jnp.stack(
                [rows[..., (p + j) % 2, :, (p + j) // 2 : (p + j) // 2 + 5] for p in range(2)], 5
            )
            for j in range(5)
        ],
        4,
    )  # models, m, 6, i, j, p, p', 5, 5
    return both.reshape(*x.shape[:2], 150, 100)


# Normal noise in single precision, for experiments: bits of a quick generator, Box and Muller's map
# as a program.

COSINE, SINE = (
    [(-1.0) ** i / math.factorial(2 * i + odd) for i in reversed(range(6))] for odd in (0, 1)
)
"""Coefficients of the series, highest power first; the first left out is below 2^-28 at pi/4."""


def streams(keys: np.ndarray, count: int) -> Iterator[np.ndarray]:
    """For ever, fresh 32-bit words for ``normal`` of ``count`` numbers: (models, 2, pairs), of one
    stream per key."""
    pairs = (count + 1) // 2
    generators = [np.random.SFC64([int(word) for word in key]) for key in keys]
    while True:
        words = np.empty((len(keys), pairs), np.uint64)
        for place, generator in enumerate(generators):
            words[place] = generator.random_raw(pairs)
        yield words.view(np.uint32).reshape(len(keys), 2, pairs)


def normal(words: jax.Array, count: int) -> jax.Array:
    """Standard normal numbers (models, count), float32, from words (models, 2, pairs); none lies
    beyond 6.8.

    The squared radius is -2 log u of 32 bits, the angle one of four quadrants and a place in it of
    30 bits.
    """
    u = (words[:, 0].astype(jnp.float32) + 0.5) * 2.0**-32
    second = words[:, 1]
    radius = jnp.sqrt(-2 * jnp.log(u))
    angle = (second >> 2).astype(jnp.float32) * (2.0**-31 * math.pi) - math.pi / 4
    square = angle * angle
    cos = jnp.polyval(jnp.asarray(COSINE, jnp.float32), square)
    sin = angle * jnp.polyval(jnp.asarray(SINE, jnp.float32), square)
    radius, turned = jnp.where((second & 1) != 0, -radius, radius), (second & 2) != 0
    both = jnp.concatenate(
        (radius * jnp.where(turned, -sin, cos), radius * jnp.where(turned, cos, sin)), axis=1
    )
    return both[:, :count]
