"""A described run, executed on a module."""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.func import vmap
from torch.utils._pytree import tree_leaves

from lastiterate.engine.keeper import Keeper
from lastiterate.engine.noise import fresh_key
from lastiterate.engine.outside import OutsideLoop
from lastiterate.engine.prepare import hidden
from lastiterate.engine.trainer import Draws
from lastiterate.errors import InputError
from lastiterate.run.domains import Everywhere
from lastiterate.run.facts import CHUNK
from lastiterate.run.run import Run
from lastiterate.run.starts import GaussianStart
from lastiterate.torch.modules import check_parts, settled
from lastiterate.torch.parameters import Grouped, Parameters, State
from lastiterate.torch.records import records_of, taken
from lastiterate.torch.sums import PerRecord, as_theta, full_precision

MEMORY = 2**23
"""Numbers of per-record gradients that are stored at once, where the caller does not say."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """Everything that a run on a module needs, checked; ``initial``: (size,) float64."""

    run: Run
    summed: PerRecord
    initial: np.ndarray
    records: tuple[Any, ...]
    most: int

    @property
    def loop(self) -> OutsideLoop:
        return OutsideLoop(self.run, self.summed.parameters.shapes)

    def execute(self, key: Any, progress: Callable[[int, int, float], None] | None = None,
                keeper: Keeper | None = None, draws: Draws | None = None) -> np.ndarray:
        """The last iterate, or all of them for release="all"; ``draws``: exact noise of the sums."""
        device = self.summed.parameters.device
        constants = self.summed.parameters.fixed(self.summed.dtype)

        def sums(point: np.ndarray, places: np.ndarray) -> np.ndarray:
            theta, numbers = as_theta(point, device), torch.from_numpy(places)
            total = torch.zeros_like(theta)
            for part in numbers.tensor_split(max(1, -(-len(numbers) // self.most))):
                if len(part):
                    total = total + self._chunk(theta, constants, part)
            return total.cpu().numpy()

        with full_precision(device), torch.no_grad():
            return replace(self.loop, draws=draws).execute(self.initial, sums, key, progress, keeper)

    def _chunk(self, theta: torch.Tensor, constants: State, part: torch.Tensor) -> torch.Tensor:
        """The sum over one chunk; what a module or a loss cannot take is said without the record."""
        try:
            return self.summed.chunk_sum(theta, constants, taken(self.records, part, self.summed.parameters.device))
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, IndexError, ValueError, TypeError):
            raise InputError("data", "must hold records that the module and the loss take, and hold one that raises "
                             "an error there", None, "look for labels beyond the module's outputs") from None

    def many(self, keys: Any, absent: tuple[int, ...] = ()) -> np.ndarray:
        """The last iterate for every key, (models, size), in one vectorised computation; for tests and audits."""
        device, n = self.summed.parameters.device, self.run.n
        constants = self.summed.parameters.fixed(self.summed.dtype)
        parts = torch.arange(n).split(CHUNK)
        there = torch.ones(n, dtype=torch.bool)
        there[list(absent)] = False

        def sums(points: np.ndarray, weights: np.ndarray) -> np.ndarray:
            theta, real = as_theta(points, device), (torch.from_numpy(np.array(weights)) > 0) & there
            total = torch.zeros_like(theta)
            for part in parts:
                records = taken(self.records, part, device)
                one = vmap(lambda own, held, given=records: self.summed.chunk_sum(own, constants, given, held))
                total = total + one(theta, real[:, part].to(device))
            return total.cpu().numpy()

        with full_precision(device), torch.no_grad():
            return self.loop.many(self.initial, sums, keys)


Arithmetic = Callable[[Prepared, Any], tuple[Prepared, Draws]]
"""From a run and its key to the same run with other sums, and their noise."""


def prepare(run: Run, model: torch.nn.Module | Grouped, loss: Any, data: Any,
            microbatch: int | None = None) -> Prepared:
    """Check a run, a module, a loss and data, and put them together; nothing is executed on a record."""
    module = model.module if isinstance(model, Grouped) else model
    if run.prelude:
        raise InputError("prelude", "prepares the rows of linear models only", type(run.prelude[0]).__name__,
                         "leave it out")
    if microbatch is not None and (isinstance(microbatch, bool) or not isinstance(microbatch, int) or microbatch < 1):
        raise InputError("microbatch", "must be a positive whole number", microbatch)
    check_parts(module)
    parameters = Parameters.of(model)
    if set(parameters.scales) != {1.0} and (run.prox is not None or not isinstance(run.domain, Everywhere)):
        raise InputError("speeds", "must be 1 where the run has a domain or a penalty", None,
                         "they speak of the parameters themselves")
    initial = parameters.vector(module)
    if isinstance(run.start, GaussianStart) and initial.any():
        raise InputError("model", "must have parameters 0 where the run starts at random", None, "or use start=Fixed()")
    records = records_of(run, data, parameters.device)
    summed = PerRecord(module, loss, parameters, (), run.clip, hidden(run))
    with full_precision(parameters.device):
        summed = settled(summed, records, as_theta(initial, parameters.device))
    return Prepared(run, summed, initial, records, chunk(summed, microbatch))


def chunk(summed: PerRecord, microbatch: int | None) -> int:
    """Records whose gradients are in memory at once: as many as the caller says, or as fit in ``MEMORY``."""
    if microbatch is not None:
        return min(microbatch, CHUNK)
    free = {layer.weight for layer in summed.layers if layer.single}
    stored = sum(size for name, size in zip(summed.parameters.names, summed.parameters.sizes, strict=True)
                 if name not in free)
    return max(1, min(CHUNK, MEMORY // max(stored, 1)))


def fit_module(run: Run, model: torch.nn.Module | Grouped, loss: Any, data: Any, key: Any = None, *,
               microbatch: int | None = None, progress: Callable[[int, int, float], None] | None = None,
               keeper: Keeper | None = None, executed_as: Arithmetic | None = None) -> tuple[Parameters, np.ndarray]:
    """Execute ``run`` on ``loss(module(x), *rest)``, one record at a time; what is trained, and its last iterate.

    ``executed_as``: another arithmetic of the sums, and their noise (``exact``).

    **Guarantee:** exactly the run that is accounted: per-record clips, noise at every step, no other output. The module
    that was given is not changed.
    """
    prepared = prepare(run, model, loss, data, microbatch)
    if keeper is not None:
        arrays = [leaf.cpu().numpy() for leaf in tree_leaves(prepared.records)]
        key = keeper.begin(run, [*arrays, prepared.initial], key)
    key = fresh_key() if key is None else key
    prepared, draws = (prepared, None) if executed_as is None else executed_as(prepared, key)
    return prepared.summed.parameters, prepared.execute(key, progress, keeper, draws)
