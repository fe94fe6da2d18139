"""Synthetic classification problems of random size, for choosing and judging the planner's
constants.

The planner's constants were compared on families like ``CHOSEN_ON``; ``UNSEEN`` is for judging
them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

TEST = 4000  #: records kept for testing

Made = tuple[np.ndarray, np.ndarray, float]
Maker = Callable[[np.random.Generator, int, int, int], Made]


class Problem(NamedTuple):
    """Rows, labels, test rows, test labels, number of classes, public bound on a row's norm."""

    family: str
    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    classes: int
    row_norm: float


def labelled(rng: np.random.Generator, scores: np.ndarray, spread: float) -> np.ndarray:
    """Labels drawn from the softmax of centred scores with this standard deviation."""
    scores = scores - scores.mean(axis=0)
    scores *= spread / scores.std()
    return (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)


def spectrum(rng: np.random.Generator, n: int, d: int, classes: int) -> Made:
    """Gaussian rows, a power-law spectrum in a random basis, an offset, a linear teacher."""
    eigenvalue = np.arange(1.0, d + 1) ** -rng.uniform(0.5, 2)
    eigenvalue /= eigenvalue.sum()
    x = rng.normal(size=(n, d)) * np.sqrt(eigenvalue) + rng.normal(size=d) * np.sqrt(
        eigenvalue
    ) * rng.uniform(0, 2)
    y = labelled(
        rng,
        x @ (rng.normal(size=(d, classes)) * eigenvalue[:, None] ** (-rng.uniform(0, 1) / 2)),
        rng.uniform(2, 6),
    )
    basis = np.linalg.qr(rng.normal(size=(d, d)))[0]
    return x @ basis, y, 2 * rng.uniform(1, 2)


def pixels(rng: np.random.Generator, n: int, d: int, classes: int) -> Made:
    """Small pictures: a few jittered spots per class, some missing, a few labels wrong; pixels in
    0..1."""
    side = max(4, int(np.sqrt(d)))
    down, across = np.mgrid[:side, :side] / side
    spots = int(rng.integers(2, 6))
    centre, width = rng.uniform(0.15, 0.85, size=(classes, spots, 2)), rng.uniform(0.05, 0.15)
    jitter = rng.uniform(0.02, 0.08)
    y = rng.integers(0, classes, n)
    x = np.zeros((n, side, side), np.float32)
    where = centre[y] + jitter * (rng.normal(size=(n, spots, 2)) + rng.normal(size=(n, 1, 2)))
    for spot in range(spots):
        seen = rng.random(n) > 0.15
        apart = (across - where[:, spot, 0, None, None]) ** 2 + (
            down - where[:, spot, 1, None, None]
        ) ** 2
        np.maximum(
            x, seen[:, None, None] * np.exp(-apart / (2 * width**2)), out=x, casting="same_kind"
        )
    x = np.where(x > 0.3, np.minimum(1, 1.3 * x), 0)
    return (
        x.reshape(n, -1),
        np.where(rng.random(n) < 0.03, rng.integers(0, classes, n), y),
        float(side),
    )


def table(rng: np.random.Generator, n: int, d: int, classes: int) -> Made:
    """Numbers in -1..1 and one-hot categories of Zipf frequencies, tied together by three hidden
    factors."""
    hidden = rng.normal(size=(n, 3))
    columns: list[np.ndarray] = []
    left = d
    while left > 0:
        if rng.random() < 0.4 or left < 3:
            value = np.tanh(hidden @ rng.normal(size=3) * 0.5 + rng.normal(size=n)) * rng.uniform(
                0.2, 1
            )
            columns.append(np.clip(value + rng.uniform(-0.5, 0.5), -1, 1)[:, None])
        else:
            size = int(min(left, rng.integers(2, 20)))
            chance = hidden @ rng.normal(size=(3, size)) * 0.7 - np.log(np.arange(1.0, size + 1))
            columns.append(np.eye(size)[(chance + rng.gumbel(size=chance.shape)).argmax(axis=1)])
        left -= columns[-1].shape[1]
    x = np.concatenate(columns, axis=1)
    return (
        x,
        labelled(rng, x @ rng.normal(size=(x.shape[1], classes)), rng.uniform(1, 3)),
        float(np.sqrt(len(columns))),
    )


def tails(rng: np.random.Generator, n: int, d: int, classes: int) -> Made:
    """A mixture of classes of unequal size whose rows have Student tails (4 degrees of freedom)."""
    chance = np.arange(1.0, classes + 1) ** -rng.uniform(0, 0.7)
    y = rng.choice(classes, size=n, p=chance / chance.sum())
    scale = np.arange(1.0, d + 1) ** -rng.uniform(0.2, 0.8)
    centre = rng.normal(size=(classes, d)) * scale * rng.uniform(0.5, 1.5)
    x = centre[y] + scale * rng.normal(size=(n, d)) / np.sqrt(rng.chisquare(4, size=(n, 1)) / 4)
    return x, y, float(2 * np.linalg.norm(scale))


def words(rng: np.random.Generator, n: int, d: int, classes: int) -> Made:
    """Texts as square roots of word frequencies: Zipf words, some of them more frequent in a class;
    rows of norm 1."""
    zipf = 1 / np.arange(1.0, d + 1)
    topic = zipf * np.exp(rng.normal(size=(classes, d)) * rng.uniform(0.3, 0.8))
    y = rng.integers(0, classes, n)
    length = rng.integers(20, 200, size=n)
    chance = topic / topic.sum(axis=1, keepdims=True)
    x = rng.multinomial(length, chance[y]) / length[:, None]
    return np.sqrt(x), y, 1.0


def embedding(rng: np.random.Generator, n: int, d: int, classes: int) -> Made:
    """Random ReLU features of 20 hidden factors, with a teacher that is not linear in them."""
    hidden = rng.normal(size=(n, 20)) * np.arange(1.0, 21) ** -rng.uniform(0.2, 0.8)
    bend = np.tanh(hidden @ rng.normal(size=(20, 40)))
    y = labelled(rng, bend @ rng.normal(size=(40, classes)), rng.uniform(2, 5))
    x = np.maximum(0, hidden @ rng.normal(size=(20, d)) + 0.3 * rng.normal(size=d))
    return x, y, float(2 * np.sqrt(d))


CHOSEN_ON: dict[str, Maker] = {"spectrum": spectrum, "pixels": pixels, "table": table}
UNSEEN: dict[str, Maker] = {"tails": tails, "words": words, "embedding": embedding}


def draw(families: dict[str, Maker], seed: int, most: int = 20_000) -> Problem:
    """Problem number ``seed``: families in turn; 500 .. ``most`` records, 20 .. 600 features, 2 ..
    10 classes."""
    rng = np.random.default_rng(seed)
    family = list(families)[seed % len(families)]
    n, d = (
        int(np.exp(rng.uniform(np.log(low), np.log(high))))
        for low, high in ((500, most), (20, 600))
    )
    classes = int(rng.choice([2, 2, 3, 5, 10]))
    x, y, row_norm = families[family](rng, n + TEST, d, classes)
    x = x.astype(np.float32)
    return Problem(family, x[:n], y[:n], x[n:], y[n:], classes, row_norm)
