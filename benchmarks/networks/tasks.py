"""Four small tasks, each as a torch module and as a JAX function of the same first parameters."""

# pyright: reportMissingImports=false
from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import nn

WORDS, LENGTH = 2000, 24
Data = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Records and classes to train on, and public ones."""


@dataclass(frozen=True, eq=False)
class Task:
    """``make``: a module with its first parameters. ``scores``: what it answers, of its parameters
    by name and one record, written with JAX. ``rates``: step sizes that are tried."""

    name: str
    data: Data
    make: Callable[[], nn.Module]
    scores: Callable[[Any, jax.Array], jax.Array]
    batch: int
    steps: int
    rates: tuple[float, ...]

    def module(self) -> nn.Module:
        torch.manual_seed(0)
        return self.make()

    def first(self) -> dict[str, np.ndarray]:
        return {
            name: tensor.detach().numpy().copy()
            for name, tensor in self.module().named_parameters()
        }

    def loss(self, params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        """Of one record."""
        return -jax.nn.log_softmax(self.scores(params, x))[y]

    def accuracy(self, params: Any) -> float:
        """On the public records."""
        x, y = map(jnp.asarray, self.data[2:])
        every = jax.jit(jax.vmap(self.scores, (None, 0)))
        parts = [every(params, x[at : at + 500]).argmax(1) for at in range(0, len(x), 500)]
        return float((jnp.concatenate(parts) == y).mean())


def _convolved(x: jax.Array, params: Any, name: str, stride: int, padding: Any) -> jax.Array:
    found = jax.lax.conv_general_dilated(x, params[f"{name}.weight"], (stride, stride), padding)
    return jax.nn.relu(found + params[f"{name}.bias"][:, None, None])


def _dense(params: Any, name: str, x: jax.Array) -> jax.Array:
    return params[f"{name}.weight"] @ x + params[f"{name}.bias"]


def _pooled(x: jax.Array) -> jax.Array:
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 1, 1), "VALID")


def images_of_digits() -> nn.Module:
    """The usual example network of private training."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def scores_of_digits(params: Any, x: jax.Array) -> jax.Array:
    x = _pooled(_convolved(x[None], params, "0", 2, [(3, 3), (3, 3)]))
    x = _pooled(_convolved(x, params, "3", 2, "VALID"))
    return _dense(params, "9", jax.nn.relu(_dense(params, "7", x.ravel())))


def coloured_images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, 2, padding=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2048, 10),
    )


def scores_of_colours(params: Any, x: jax.Array) -> jax.Array:
    x = _convolved(
        _convolved(x[None], params, "0", 2, [(2, 2), (2, 2)]), params, "2", 2, [(1, 1), (1, 1)]
    )
    return _dense(params, "5", x.ravel())


class Texts(nn.Module):
    """The mean of the words' vectors, and two dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.inner, self.out = (
            nn.Embedding(WORDS, 32),
            nn.Linear(32, 32),
            nn.Linear(32, 4),
        )
        nn.init.normal_(self.words.weight, std=0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.inner(self.words(x).mean(1))))


def scores_of_texts(params: Any, x: jax.Array) -> jax.Array:
    held = params["words.weight"][x].mean(0)
    return _dense(params, "out", jax.nn.relu(_dense(params, "inner", held)))


def rows() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 2))


def scores_of_rows(params: Any, x: jax.Array) -> jax.Array:
    return _dense(params, "2", jnp.tanh(_dense(params, "0", x)))


def made_rows(n: int) -> Data:
    """20 numbers, two classes by a curved boundary, a twentieth of them exchanged."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(n + 2000, 20)).astype(np.float32)
    y = (x[:, 0] + x[:, 1] + x[:, 2] * x[:, 3] > 0) ^ (rng.random(len(x)) < 0.05)
    return x[:n], y[:n].astype(np.int64), x[n:], y[n:].astype(np.int64)


def made_texts(n: int) -> Data:
    """Words of four topics, which share most of them."""
    rng = np.random.default_rng(2)
    y = rng.integers(0, 4, n + 2000)
    common = np.minimum(rng.zipf(1.3, (len(y), LENGTH)) - 1, WORDS - 1)
    of_topic = 100 * (1 + y[:, None]) + np.minimum(rng.zipf(1.5, (len(y), LENGTH)) - 1, 99)
    x = np.where(rng.random((len(y), LENGTH)) < 0.15, of_topic, common)
    return x[:n], y[:n], x[n:], y[n:]


def made_images(n: int) -> Data:
    """32 x 32 pixels in three colours: one of ten coarse patterns, a few pixels off its place,
    under noise."""
    rng = np.random.default_rng(3)
    patterns, y = (
        rng.normal(size=(10, 3, 4, 4), scale=0.2).repeat(6, 2).repeat(6, 3),
        rng.integers(0, 10, n + 2000),
    )
    x = rng.normal(size=(len(y), 3, 32, 32)).astype(np.float32)
    for i, (down, right) in enumerate(rng.integers(2, 7, (len(y), 2))):
        x[i, :, down : down + 24, right : right + 24] += patterns[y[i]]
    return x[:n], y[:n], x[n:], y[n:]


def digits(folder: Path, n: int) -> Data:
    """The first n images of MNIST, and its test part."""

    def read(name: str, skip: int) -> np.ndarray:
        found = next(folder.rglob(f"{name}*"))
        content = (
            gzip.decompress(found.read_bytes()) if found.suffix == ".gz" else found.read_bytes()
        )
        return np.frombuffer(content, np.uint8, offset=skip)

    def images(name: str) -> np.ndarray:
        return (
            read(name, 16).reshape(-1, 1, 28, 28) / np.float32(255) - np.float32(0.1307)
        ) / np.float32(0.3081)

    return (
        images("train-images")[:n],
        read("train-labels", 8)[:n].astype(np.int64),
        images("t10k-images"),
        read("t10k-labels", 8).astype(np.int64),
    )


def tasks(folder: Path | None, small: bool = False) -> list[Task]:
    """All tasks whose data are at hand; ``small``: a few seconds of each."""
    n, steps = (400, 6) if small else (2000, 100)
    found = [
        Task("rows, 20-64-2", made_rows(n), rows, scores_of_rows, n // 20, steps, (0.5, 2.0)),
        Task(
            "texts, 2,000 words", made_texts(n), Texts, scores_of_texts, n // 20, steps, (1.0, 4.0)
        ),
        Task(
            "32 x 32 x 3, two convolutions",
            made_images(n),
            coloured_images,
            scores_of_colours,
            n // 20,
            steps,
            (0.2, 0.6),
        ),
    ]
    if folder is not None:
        found.insert(
            0,
            Task(
                "MNIST, two convolutions",
                digits(folder, 4 * n),
                images_of_digits,
                scores_of_digits,
                n // 5,
                steps,
                (0.5, 1.0),
            ),
        )
    return found
