"""What every way of drawing batches gives the loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import jax

from lastiterate.engine.gaussian_noise import Key
from lastiterate.engine.samplers.record_layout import Layout
from lastiterate.run.batching import Drawn

Read = Callable[[Any], jax.Array]
"""From a chunk of records to the sum of their clipped gradients, float64."""


class Sampler(ABC):
    """One way of drawing batches; subclasses are frozen dataclasses of shapes, and JAX pytrees.

    ``drawn``: when secret draws happen, as the batching says. ``layout``: how records lie before any draw. ``blocks``:
    batches in one pass.
    """

    drawn: ClassVar[Drawn]
    layout: Layout

    @property
    def blocks(self) -> int:
        return self.layout.blocks

    def order(self, key: Key) -> jax.Array | None:
        """Places of the records, (n,), where the run draws one secret order: data can be written in it at once."""
        return None

    def arranged(self, data: Any, key: Key) -> Any:
        """Data (in public order) as the draw of the whole run, or of a pass, arranges them."""
        return data

    @abstractmethod
    def batch_sum(self, read: Read, data: Any, key: Key, k: Any) -> jax.Array:
        """Sum of the gradients of step k's batch; ``data`` as arranged, ``key``: the stream of secret draws."""
