"""Ten-line NumPy versions of every run that the trainer executes."""

import numpy as np

from lastiterate import Adam, HeavyBall, HuberRidge, Logistic, Nesterov, Softmax
from lastiterate.run.domains import AffineBall, Ball, Box, Simplex
from lastiterate.run.penalties import L1, ElasticNet, GroupLasso, L2Squared, NuclearNorm
from oracles.cancelling import added


def gradient(loss, clip, theta, rows, y):
    """Sum of clipped per-example gradients, one record at a time."""
    total = np.zeros_like(theta)
    for x, t in zip(rows, y, strict=True):
        z = theta @ x
        if isinstance(loss, Logistic):
            r = 1 / (1 + np.exp(-z)) - t
            r = r if loss.cap is None else np.clip(r, -loss.cap, loss.cap)
        elif isinstance(loss, Softmax):
            r = np.exp(z - z.max()) / np.exp(z - z.max()).sum() - np.eye(loss.classes)[t]
            r = r if loss.cap is None else r * min(1, loss.cap / -r[t])
        else:
            r = np.clip(z - t, -loss.residual_clip, loss.residual_clip)
        g = np.outer(r, x)
        total += g if clip is None else g * min(1, clip / max(np.linalg.norm(g), 1e-30))
    return total


def project(domain, theta):
    flat = theta.ravel()
    if isinstance(domain, Ball):
        return theta * min(1, domain.radius / max(np.linalg.norm(theta), 1e-300))
    if isinstance(domain, Simplex):  # bisection on the shift
        low, high = flat.min() - domain.total, flat.max()
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (
                (middle, high)
                if np.maximum(flat - middle, 0).sum() > domain.total
                else (low, middle)
            )
        return np.maximum(theta - low, 0)
    if isinstance(
        domain, AffineBall
    ):  # alternate a long time between both sets, with Dykstra's corrections
        rows, offsets = np.array(domain.normals), np.array(domain.offsets)
        x, p, q = flat, 0.0, 0.0
        for _ in range(5000):
            y = (x + p) - np.linalg.pinv(rows) @ (rows @ (x + p) - offsets)
            p, x = x + p - y, (y + q) * min(1, domain.radius / max(np.linalg.norm(y + q), 1e-300))
            q = y + q - x
        return x.reshape(theta.shape)
    return np.clip(theta, domain.low, domain.high) if isinstance(domain, Box) else theta


def soft(x, t):
    return np.where(x > t, x - t, np.where(x < -t, x + t, 0.0))


def prox(h, step, x):
    if isinstance(h, L1):
        return soft(x, step * h.weight)
    if isinstance(h, L2Squared):
        return x / (1 + step * h.weight)
    if isinstance(h, ElasticNet):
        return soft(x, step * h.l1) / (1 + step * h.l2)
    if isinstance(h, GroupLasso):
        columns = x.T if h.axis == 0 else x
        kept = [g * max(0, 1 - step * h.weight / max(np.linalg.norm(g), 1e-300)) for g in columns]
        return np.array(kept).T if h.axis == 0 else np.array(kept)
    if isinstance(h, NuclearNorm):
        u, s, v = np.linalg.svd(x, full_matrices=False)
        return u @ np.diag(soft(s, step * h.weight)) @ v
    return x


def fit(run, X, y, noise, theta=None, batches=None):
    """All iterates, given the noise of every step (T, k, d + 1), and every step's records where
    they are drawn."""
    loss = run.loss
    X = X * np.minimum(1, loss.row_norm / np.linalg.norm(X, axis=1))[:, None]
    X = np.column_stack((X, np.full(len(X), loss.intercept)))
    b = run.divisor
    noise = np.tensordot(added(run.noise, run.steps), noise, 1)
    theta = np.zeros(noise.shape[1:]) if theta is None else theta
    theta = project(run.domain, theta)
    before, velocity, out = theta, np.zeros_like(theta), []
    gradients = []
    for k in range(run.steps):
        first = k % run.blocks * int(b)
        at = slice(first, first + int(b)) if batches is None else batches[k]
        point = (
            theta + k / (k + 3) * (theta - before) if isinstance(run.optimizer, Nesterov) else theta
        )
        g = (
            gradient(loss, run.clip, point, X[at], y[at]) / b
            + loss.ridge * point
            + run.noise_stds[k] * noise[k]
        )
        velocity = run.optimizer.beta * velocity + g if isinstance(run.optimizer, HeavyBall) else g
        if isinstance(run.optimizer, Adam):
            gradients.append(g)
            velocity = adam(run.optimizer, np.array(gradients), run.noise_stds)
        moved = prox(run.prox, run.step_sizes[k], point - run.step_sizes[k] * velocity)
        before, theta = theta, project(run.domain, moved)
        out.append(theta)
    return np.array(out)


def adam(rule, gradients, stds):
    """Kingma and Ba (2015), section 2: exponentially weighted means of all gradients so far,
    weights summing to one.

    With a floor the noise's variance is taken off the squares (Tang, Shpilevskiy and Lecuyer 2023,
    Algorithm 1).
    """

    def mean(beta, values):
        weights = beta ** np.arange(len(values))[::-1]
        return np.tensordot(weights / weights.sum(), values, 1)

    squares = mean(rule.beta2, gradients**2)
    if rule.noise_floor is not None:
        noise = mean(rule.beta2, stds[: len(gradients)] ** 2)
        squares = np.maximum(squares - noise, rule.noise_floor * noise)
    return mean(rule.beta1, gradients) / (np.sqrt(squares) + rule.stabiliser)


def quadratic_law(run, X, y, batches=None):
    """Mean and covariance of the last iterate of a Huber loss that is never clamped; blocks in
    public order, or the given records at every step."""
    assert isinstance(run.loss, HuberRidge) and run.optimizer is None
    X = np.column_stack((X, np.full(len(X), run.loss.intercept)))
    d, b = X.shape[1], run.divisor
    std = getattr(run.start, "std", 0.0)
    mean, cov = np.zeros(d), std**2 * np.eye(d)
    drawn, mixing = (
        np.zeros((run.steps, d, d)),
        added(run.noise, run.steps),
    )  # what each draw has done to theta
    for k in range(run.steps):
        first = k % run.blocks * int(b)
        at = slice(first, first + int(b)) if batches is None else list(batches[k])
        eta = run.step_sizes[k]
        A = np.eye(d) - eta * (X[at].T @ X[at] / b + run.loss.ridge * np.eye(d))
        mean = A @ mean + eta * X[at].T @ y[at] / b
        cov = A @ cov @ A.T
        drawn = A @ drawn + eta * run.noise_stds[k] * mixing[k][:, None, None] * np.eye(d)
    return mean, cov + np.einsum("kij,klj->il", drawn, drawn)
