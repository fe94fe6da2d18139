"""Clipped steps in the plane: a chain whose differences rotate and expand, its exact law near a
path, simulation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


def turned(matrix, angle):
    """The matrix in coordinates turned by ``angle``."""
    c, s = math.cos(angle), math.sin(angle)
    r = np.array([[c, -s], [s, c]])
    return r @ matrix @ r.T


def clip(gradients, norm):
    """Rows scaled down to ``norm``."""
    size = np.linalg.norm(gradients, axis=-1, keepdims=True)
    return gradients * np.minimum(1.0, norm / np.maximum(size, 1e-300))


def projection(angle):
    """The projection beside the unit vector at ``angle``: the derivative of clipping where
    gradients just exceed C."""
    g = np.array([math.cos(angle), math.sin(angle)])
    return np.eye(2) - np.outer(g, g)


@dataclass
class Block:
    """Records (all but one) with the loss (x - at)' H (x - at) / 2 + <slope, x - at>."""

    at: np.ndarray
    hessian: np.ndarray
    slope: np.ndarray

    def gradient(self, x):
        return (x - self.at) @ self.hessian + self.slope


@dataclass
class Chain:
    """One pass: ``blocks`` in order, the record in the last one, pulling along ``pull`` with norm
    ``clip``."""

    blocks: list[Block]
    pull: np.ndarray
    clip: float
    step: float
    size: int
    std: float

    def move(self, x, block, *, record):
        """One step without noise; ``record``: whether the one record of the last block is there
        (zero-out)."""
        here = self.blocks[block]
        last = block == len(self.blocks) - 1
        total = (self.size - last) * clip(here.gradient(x), self.clip)
        if last and record:
            total = total + self.clip * self.pull
        return x - self.step * total / self.size

    def jacobian(self, block):
        """Derivative of a step on the path, by central differences."""
        at, h = self.blocks[block].at, 1e-6
        moves = [
            self.move(at + h * e, block, record=False) - self.move(at - h * e, block, record=False)
            for e in np.eye(2)
        ]
        return np.array(moves).T / (2 * h)

    def exact_mu(self, passes):
        """mu of the Gaussian law near the path: both neighbours have the same covariance."""
        mean, covariance = np.zeros(2), np.zeros((2, 2))
        for step in range(passes * len(self.blocks)):
            block = step % len(self.blocks)
            j = self.jacobian(block)
            mean, covariance = (
                j @ mean,
                j @ covariance @ j.T + (self.step * self.std) ** 2 * np.eye(2),
            )
            if block == len(self.blocks) - 1:
                mean = mean - self.step * self.clip / self.size * self.pull
        direction = np.linalg.solve(covariance, mean)
        return math.sqrt(mean @ direction), direction

    def simulate(self, passes, particles, rng, *, record):
        """States after ``passes`` passes; shape (particles, 2)."""
        x = np.zeros((particles, 2))
        for step in range(passes * len(self.blocks)):
            x = self.move(x, step % len(self.blocks), record=record)
            x += self.step * self.std * rng.standard_normal(x.shape)
        return x


def expanding(pairs, *, size, std, above=1.003, norm=1.0, step=1.0):
    """A pass of ``2 pairs`` clipped steps that expand one difference, 2/sqrt(4 - step) each, and a
    step back.

    Smoothness is 1. A clipped step is I - step P H with H of rank one and P the projection beside
    the gradient. Its mirror image turns the difference back, and opposite gradients bring the path
    back after four steps (``pairs`` must be even). The last block contracts without clipping, so
    that every pass is like the one before.
    """
    bend, angles = np.diag([1.0, 0.0]), np.linspace(0, math.pi, 4001)
    norms = [np.linalg.norm(np.eye(2) - step * projection(a) @ bend, 2) for a in angles]
    angle, most = float(angles[int(np.argmax(norms))]), max(norms)
    u, found = (
        0.0,
        [],
    )  # u: direction of the dual vector; it is followed backwards, from the last block to the first
    for k in range(2 * pairs):
        mirror = 1 if k % 2 == 0 else -1
        left, _, right = np.linalg.svd(np.eye(2) - step * projection(mirror * angle) @ bend)
        turn = u - math.atan2(left[1, 0], left[0, 0])
        g, sign = mirror * angle + turn, 1 if k % 4 < 2 else -1
        found.append(
            (turned(bend, turn), sign * above * norm * np.array([math.cos(g), math.sin(g)]))
        )
        u = math.atan2(right[0, 1], right[0, 0]) + turn
    blocks, x = [], np.zeros(2)
    for hessian, slope in reversed(found):
        blocks.append(Block(x, hessian, slope))
        x = x - step * norm * slope / np.linalg.norm(slope)
    back = min(1.0, (1 - most ** (-2 * pairs)) / step) * size / (size - 1)
    blocks.append(Block(x, back * np.eye(2), np.zeros(2)))
    return Chain(blocks, np.array([math.cos(u), math.sin(u)]), norm, step, size, std)
