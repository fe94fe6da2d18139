"""Ten-line NumPy versions of every run that the trainer executes."""

import numpy as np

from lastiterate import Ball, Box, HeavyBall, HuberRidge, Logistic, Nesterov, Softmax


def gradient(loss, clip, theta, rows, y):
    """Sum of clipped per-example gradients, one record at a time."""
    total = np.zeros_like(theta)
    for x, t in zip(rows, y, strict=True):
        z = theta @ x
        if isinstance(loss, Logistic):
            r = 1 / (1 + np.exp(-z)) - t
        elif isinstance(loss, Softmax):
            r = np.exp(z - z.max()) / np.exp(z - z.max()).sum() - np.eye(loss.classes)[t]
        else:
            r = np.clip(z - t, -loss.residual_clip, loss.residual_clip)
        g = np.outer(r, x)
        total += g if clip is None else g * min(1, clip / max(np.linalg.norm(g), 1e-30))
    return total


def project(domain, theta):
    if isinstance(domain, Ball):
        return theta * min(1, domain.radius / max(np.linalg.norm(theta), 1e-300))
    return np.clip(theta, domain.low, domain.high) if isinstance(domain, Box) else theta


def fit(run, X, y, noise, theta=None):
    """All iterates, given the noise of every step (T, k, d + 1)."""
    loss = run.loss
    X = X * np.minimum(1, loss.row_norm / np.linalg.norm(X, axis=1))[:, None]
    X = np.column_stack((X, np.full(len(X), loss.intercept)))
    b = int(run.divisor)
    theta = np.zeros(noise.shape[1:]) if theta is None else theta
    theta = project(run.domain, theta)
    before, velocity, out = theta, np.zeros_like(theta), []
    for k in range(run.steps):
        at = slice(k % run.blocks * b, k % run.blocks * b + b)
        point = theta + k / (k + 3) * (theta - before) if isinstance(run.momentum, Nesterov) else theta
        g = gradient(loss, run.clip, point, X[at], y[at]) / b + loss.ridge * point + run.noise_std(k) * noise[k]
        velocity = run.momentum.beta * velocity + g if isinstance(run.momentum, HeavyBall) else g
        before, theta = theta, project(run.domain, point - run.step_size.at(k) * velocity)
        out.append(theta)
    return np.array(out)


def quadratic_law(run, X, y):
    """Mean and covariance of the last iterate of a Huber loss that is never clamped; blocks in public order."""
    assert isinstance(run.loss, HuberRidge) and run.momentum is None
    X = np.column_stack((X, np.full(len(X), run.loss.intercept)))
    d, b = X.shape[1], int(run.divisor)
    std = getattr(run.start, "std", 0.0)
    mean, cov = np.zeros(d), std**2 * np.eye(d)
    for k in range(run.steps):
        at = slice(k % run.blocks * b, k % run.blocks * b + b)
        eta = run.step_size.at(k)
        A = np.eye(d) - eta * (X[at].T @ X[at] / b + run.loss.ridge * np.eye(d))
        mean = A @ mean + eta * X[at].T @ y[at] / b
        cov = A @ cov @ A.T + (eta * run.noise_std(k)) ** 2 * np.eye(d)
    return mean, cov
