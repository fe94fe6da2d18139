"""What the loop needs to know about a model: the sum of the clipped gradients of a chunk of records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import jax


class Objective(Protocol):
    """A model and its loss, as a JAX pytree: its numbers are arguments of compiled programs, all else is what they are
    compiled for. Parameters are one float64 array of any shape.
    """

    @property
    def most(self) -> int:
        """Records in a chunk, at most."""
        ...

    @property
    def ridge(self) -> float:
        """What multiplies the parameters in every step's gradient, outside records and clips."""
        ...

    def chunk_sum(self, theta: jax.Array, chunk: tuple[Any, ...]) -> jax.Array:
        """Sum of the clipped data gradients of a chunk's records, float64, shaped like ``theta``.

        Records whose entries are all 0 are empty slots and add nothing.
        """
        ...

    def leafwise(self, function: Callable[[jax.Array], jax.Array], theta: jax.Array) -> jax.Array:
        """``function`` of every array of parameters, put back in place."""
        ...
