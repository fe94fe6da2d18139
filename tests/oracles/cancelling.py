"""Correlated noise as the recursion defines it, one step after the other."""

import numpy as np


def added(noise, steps):
    """C^{-1}, (steps, steps): row k is what step k adds, of the draws; the identity where steps are
    independent."""
    if noise.independent:
        return np.eye(steps)
    found, hidden = np.zeros((steps, steps)), np.zeros((steps, steps))
    for k in range(steps):
        hidden[k] = np.eye(steps)[k] - sum(
            c * hidden[k - i] for i, c in enumerate(noise.entries) if 0 < i <= k
        )
        found[k] = hidden[k] - (noise.decay * hidden[k - 1] if k else 0)
    return found


def matrix(noise, steps):
    """C, (steps, steps)."""
    return np.linalg.inv(added(noise, steps))
