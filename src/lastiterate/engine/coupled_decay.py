"""Weight decay that an optimizer adds to the gradients its running means are made of, found by trying it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

from lastiterate.errors import InputError
from lastiterate.run.run import Run
from lastiterate.run.update_rule import Memory
from lastiterate.run.updates import PostProcessing

Way = tuple[Callable[[Any], Memory], Callable[..., tuple[Any, Memory]]]
"""``init`` and ``update`` of a rule."""
TRIED, NUMBERS = 256, 10**8
"""Steps that are tried at most, and numbers of all of them: what gathers gradients for longer is not seen through."""
LARGE = 1e3
"""What parameters are multiplied with, so that steps of one length, as Adam makes them, leave them away from 0."""


def coupled(run: Run) -> bool:
    """Whether the run says that weight decay is a part of the gradients that running means are made of."""
    return isinstance(run.update, PostProcessing) and run.update.decay == "coupled"


def check_decay(ways: tuple[Way, Way], theta: Any, cut: Callable[[Any], list[Any]], steps: int, remedy: str) -> None:
    """Refuse a rule of which gradients of 0 leave in its memory what is made of the parameters theta (d,), and is no
    mean of parameters, within the first ``steps`` steps.

    ``ways``: of one rule twice, which may hold what it stands at. ``cut``: the arrays of a vector of parameters.
    """
    large = LARGE * np.where(np.asarray(theta) == 0, 1.0, np.asarray(theta))
    tried = max(1, min(steps, TRIED, NUMBERS // large.size))
    left = [_left_by(way, start, cut, tried) for way, start in zip(ways, (large, -2 * large), strict=True)]
    for both in zip(*left, strict=True):
        if any(not np.array_equal(held, again, equal_nan=True) for held, again in zip(*both, strict=True)):
            raise InputError("optimizer", "adds weight decay to the noisy gradients that its running means are made of",
                             None, f'{remedy}, or say update=PostProcessing(name, "coupled")')


def _left_by(way: Way, theta: Any, cut: Callable[[Any], list[Any]], tried: int) -> Iterator[list[np.ndarray]]:
    """The memory after 1, 2, ... steps of gradients 0, but for what lies between the parameters seen so far, is as it
    was in the beginning, or is no array like them."""
    memory = first = way[0](theta)
    low = high = theta
    for k in range(tried):
        direction, memory = way[1](np.zeros_like(theta), memory, theta, k)
        theta = theta - np.asarray(direction)
        low, high = np.minimum(low, theta), np.maximum(high, theta)
        seen = [(np.asarray(one, np.float64), np.asarray(other, np.float64))
                for one, other in zip((*cut(low), low), (*cut(high), high), strict=True)]
        yield [_unexplained(new, first[i] if len(first) == len(memory) else None, seen) for i, new in enumerate(memory)]


def _unexplained(new: Any, old: Any, seen: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """An array of the memory, empty where it says nothing of weight decay."""
    shape, kind = np.shape(new), np.asarray(new).dtype
    ends = [both for both in seen if both[0].shape == shape]
    if not (shape and ends and jnp.issubdtype(kind, jnp.floating)):
        return np.zeros(0)
    held, slack = np.asarray(new, np.float64), 4 * float(np.spacing(np.ones(1, kind))[0])
    same = old is not None and np.array_equal(held, np.asarray(old, np.float64), equal_nan=True)
    between = any(bool(((held >= low - slack * np.abs(low)) & (held <= high + slack * np.abs(high))).all())
                  for low, high in ends)
    return np.zeros(0) if same or between else held
