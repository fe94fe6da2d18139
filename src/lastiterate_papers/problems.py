"""Small public problems on which utility is measured: logistic regression with a ridge, its optimum
known."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

import lastiterate as li


@dataclass(frozen=True, eq=False)
class Problem:
    """Rows x (n, d) of norm at most 1 and labels y (n,) in {0, 1}; the mean logistic loss plus
    ridge |theta|^2 / 2."""

    x: np.ndarray
    y: np.ndarray
    ridge: float

    @property
    def n(self) -> int:
        return len(self.x)

    @property
    def d(self) -> int:
        return self.x.shape[1]

    @property
    def loss(self) -> li.Logistic:
        """The same loss as a description; no intercept."""
        return li.Logistic(row_norm=1.0, ridge=self.ridge, intercept=0.0)

    @property
    def smooth(self) -> float:
        return self.loss.facts().fact("smooth")

    def value(self, theta: np.ndarray) -> np.ndarray:
        """The objective at weights (..., d)."""
        signs = 1 - 2 * self.y
        losses = np.logaddexp(0.0, theta @ self.x.T * signs).mean(axis=-1)
        return losses + self.ridge / 2 * (theta**2).sum(axis=-1)

    def gradient(self, theta: np.ndarray) -> np.ndarray:
        """Its gradient at weights (d,)."""
        p = 1 / (1 + np.exp(-(self.x @ theta)))
        return self.x.T @ (p - self.y) / self.n + self.ridge * theta

    @cached_property
    def optimum(self) -> np.ndarray:
        """The minimiser, by Newton's method to a gradient of 1e-12."""
        theta = np.zeros(self.d)
        for _ in range(100):
            gradient = self.gradient(theta)
            if np.linalg.norm(gradient) < 1e-12:
                break
            p = 1 / (1 + np.exp(-(self.x @ theta)))
            hessian = self.x.T @ (self.x * (p * (1 - p))[:, None]) / self.n + self.ridge * np.eye(
                self.d
            )
            theta = theta - np.linalg.solve(hessian, gradient)
        return theta

    def excess(self, theta: np.ndarray) -> np.ndarray:
        """Excess risk at weights (..., d)."""
        return self.value(theta) - self.value(self.optimum)

    def trained(self, run: li.Run, models: int, seed: int) -> np.ndarray:
        """Weights (models, d) of independent executions of ``run`` on these data, without
        intercept."""
        from lastiterate.engine import Trainer, keys_from_seed

        found = Trainer(replace(run, loss=self.loss)).fit_many(
            self.x, self.y, keys_from_seed(seed, models)
        )
        return np.asarray(found)[:, 0, :-1]


def logistic_problem(*, n: int, d: int, ridge: float, seed: int) -> Problem:
    """Rows uniform in the unit ball, labels from a public direction with noise."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    x *= rng.uniform(0.3, 1, size=(n, 1))
    direction = np.sqrt(np.arange(1, d + 1, dtype=np.float64))
    direction *= 6 / np.linalg.norm(direction)
    y = (rng.random(n) < 1 / (1 + np.exp(-(x @ direction)))).astype(np.int64)
    return Problem(x, y, ridge)
