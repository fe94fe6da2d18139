"""Modules with exact noise: every record's clipped gradient rounded to a grid, summed as whole numbers."""

# pyright: reportMissingImports=false
from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from lastiterate.engine.exact_draws import draws_of
from lastiterate.engine.exact_records import SHRINK, SUMMABLE, RecordGrid
from lastiterate.engine.gaussian_noise import Key
from lastiterate.engine.noise_ahead import Draws
from lastiterate.torch.gradient_sums import PerRecord, among
from lastiterate.torch.module_training import MEMORY, Prepared
from lastiterate.torch.parameters import State


@dataclass(frozen=True, eq=False)
class ExactRecords(PerRecord):
    """``PerRecord`` on a grid.

    **Guarantee:** a chunk's sum is the exact sum of one vector per record, of norm at most the clip, each a function of
    that record and of the parameters alone; gradients that are not finite, or beyond the clip, count as 0.
    """

    grid: RecordGrid = RecordGrid(0, 0)

    def sums(self, trained: State, constants: State, records: tuple[Any, ...], real: torch.Tensor | None = None,
             used: int | None = None) -> State:
        """Sums of the rounded gradients by name, (entries,) float64, multiples of the grid."""
        assert self.clip is not None
        gradients = self.contributions(trained, constants, records)
        flat = torch.cat([gradients[name].each() * factor for name, factor
                          in zip(self.parameters.names, self.parameters.scales, strict=True)], dim=1)
        squares = flat.square().sum(1)
        counted = among(torch.isfinite(squares), real, used)
        factor = torch.clamp(self.clip * SHRINK / torch.clamp(squares.sqrt(), min=1e-300), max=1.0)
        factor = self.weighted(factor, records)
        whole = torch.where(counted[:, None], flat * factor[:, None], 0.0).mul(2.0**self.grid.places).trunc()
        within = (whole.square().sum(1) < SUMMABLE) & (whole.long().square().sum(1) <= self.grid.most_squared)
        total = torch.where(within[:, None], whole, 0.0).sum(0) * self.grid.step
        return dict(zip(self.parameters.names, total.split(self.parameters.sizes), strict=True))


def exactly(prepared: Prepared, key: Key) -> tuple[Prepared, Draws]:
    """The same run on exact sums, and their noise."""
    grid, plain, places = RecordGrid.of(prepared.run), prepared.summed, prepared.places
    most = min(prepared.most, max(1, MEMORY // sum(plain.parameters.sizes)))
    if places is not None:
        places = places.within(most)
        most = places.most
    summed = ExactRecords(**{each.name: getattr(plain, each.name) for each in fields(plain)}, grid=grid)
    return replace(prepared, summed=summed, most=most, places=places), draws_of(prepared.run, grid.step, key)
