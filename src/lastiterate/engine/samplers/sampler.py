"""What every way of drawing batches gives the loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import numpy as np

from lastiterate.engine.gaussian_noise import Key, Number
from lastiterate.engine.samplers.dealt import Dealt
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

    def arranged(self, data: object, key: Key) -> Any:
        """Data (in public order) as the draw of the whole run, or of a pass, arranges them."""
        return data

    @abstractmethod
    def batch_sum(self, read: Read, data: object, key: Key, k: Number) -> jax.Array:
        """Sum of the gradients of step k's batch; ``data`` as arranged, ``key``: the stream of secret draws."""


class DealtEachPass(Sampler):
    """A sampler whose draws cut every pass into batches, which the host may gather (``gathered``)."""

    drawn = "each pass"

    @abstractmethod
    def records(self, data: object) -> int:
        """How many there are in ``data``."""

    @property
    @abstractmethod
    def rows_read(self) -> int:
        """Records of a batch that are read at once."""

    @abstractmethod
    def dealt(self, words: np.ndarray) -> Dealt:
        """The draw of a pass that ``arranged`` makes inside of programs, from every record's random word, (n,)."""

    @abstractmethod
    def placed(self, data: object, places: jax.Array, begins: jax.Array) -> Any:
        """What ``arranged`` makes of the data for a pass that is dealt like this."""
