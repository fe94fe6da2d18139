"""Modules with exact noise: every record's clipped gradient rounded to a grid, summed as whole numbers."""

# pyright: reportMissingImports=false
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from lastiterate.engine.exact_draws import draws_of
from lastiterate.engine.exact_records import SHRINK, SUMMABLE, RecordGrid
from lastiterate.engine.trainer import Draws
from lastiterate.models.exact import check_described_run
from lastiterate.models.folder import Stored
from lastiterate.models.kinds import Order
from lastiterate.models.software import EXACT
from lastiterate.models.statements import Written
from lastiterate.torch.parameters import State
from lastiterate.torch.released import FittedModule, fit_order_as
from lastiterate.torch.released import read as read_module
from lastiterate.torch.sums import PerRecord, in_precision
from lastiterate.torch.training import MEMORY, Prepared


@dataclass(frozen=True, eq=False)
class ExactRecords(PerRecord):
    """``PerRecord`` on a grid.

    **Guarantee:** a chunk's sum is the exact sum of one vector per record, of norm at most the clip, each a function of
    that record and of the parameters alone; gradients that are not finite, or beyond the clip, count as 0.
    """

    grid: RecordGrid = RecordGrid(0, 0)

    def chunk_sum(self, theta: torch.Tensor, constants: State, records: tuple[Any, ...],
                  real: torch.Tensor | None = None) -> torch.Tensor:
        """Sum of the rounded gradients of the records (m, ...), (size,) float64, a multiple of the grid."""
        assert self.clip is not None
        trained, count = self.parameters.tensors(theta, self.dtype), tree_leaves(records)[0].shape[0]
        each, products = self._gradients(trained, constants, in_precision(records, self.dtype), count)
        found = {name: (left.double()[:, :, None] * right.double()[:, None, :]).reshape(count, -1)
                 for name, (left, right) in products.items()}
        found |= {name: gradient.reshape(count, -1).double() for name, gradient in each.items()}
        flat = torch.cat([found[name] * factor for name, factor
                          in zip(self.parameters.names, self.parameters.scales, strict=True)], dim=1)
        squares = flat.square().sum(1)
        counted = torch.isfinite(squares) if real is None else real & torch.isfinite(squares)
        factor = torch.clamp(self.clip * SHRINK / torch.clamp(squares.sqrt(), min=1e-300), max=1.0)
        whole = torch.where(counted[:, None], flat * factor[:, None], 0.0).mul(2.0**self.grid.places).trunc()
        within = (whole.square().sum(1) < SUMMABLE) & (whole.long().square().sum(1) <= self.grid.most_squared)
        return torch.where(within[:, None], whole, 0.0).sum(0) * self.grid.step


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class FittedExactModule(FittedModule):
    """A module whose certificate covers the arithmetic of its sums as well."""

    kind: ClassVar[str] = "exact-torch"
    generator: ClassVar[str] = EXACT

    def contents(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        model, tensors = FittedModule.contents(self)
        return model | {"exact_run": self.run.to_dict()}, tensors


def exactly(prepared: Prepared, key: Any) -> tuple[Prepared, Draws]:
    """The same run on exact sums, and their noise."""
    grid, plain = RecordGrid.of(prepared.run), prepared.summed
    most = min(prepared.most, max(1, MEMORY // sum(plain.parameters.sizes)))
    summed = ExactRecords(plain.module, plain.loss, plain.parameters, plain.layers, plain.clip, plain.exact, grid)
    return replace(prepared, summed=summed, most=most), draws_of(prepared.run, grid.step, key)


def fit_order(order: Order) -> FittedExactModule:
    """Execute the run on ``loss(module(x), *rest)`` exactly and release the last parameters."""
    RecordGrid.of(order.certificate.run)  # refuses before anything is paid
    return _exact(fit_order_as(order, exactly))


def read(stored: Stored, like: Any = None) -> FittedExactModule:
    """The model in a folder; ``like``: a module of the class that was trained, which is copied."""
    check_described_run(stored)
    return _exact(replace(read_module(stored, like), proof=Written(stored.certificate)))


def _exact(found: FittedModule) -> FittedExactModule:
    return FittedExactModule(proof=found.proof, delta=found.delta, run=found.run, state=found.state,
                             module=found.module)
