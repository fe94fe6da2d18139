# pyright: reportMissingImports=false
"""An accountant for Opacus: privacy loss distributions for Poisson batches, the full charge for all others."""

from __future__ import annotations

import math
import warnings
from itertools import groupby
from typing import Any

import numpy as np
from opacus.accountants.accountant import IAccountant
from opacus.accountants.registry import register_accountant

from lastiterate.curves.composition import compose
from lastiterate.curves.curve import Curve
from lastiterate.curves.gdp import Gdp
from lastiterate.curves.pld import Pld
from lastiterate.errors import InputError
from lastiterate.run.batching import Poisson
from lastiterate.run.facts import FLOAT_SLACK
from lastiterate.torch.loaders import Drawn, drawn_by

MECHANISM = "lastiterate"
"""Its name in Opacus' registry: ``PrivacyEngine(accountant="lastiterate")``."""
History = list[tuple[float, float, int]]


class OpacusAccountant(IAccountant):
    """Counts what an Opacus optimizer executes; epsilon for add-remove (Poisson) or zero-out neighbours.

    Opacus hands over a noise multiplier and 1 / len(data_loader), whatever the loader draws: ``watch(data_loader)``
    looks at the loader itself. Of Poisson batches the steps are composed by their privacy loss distributions. A loader
    that shuffles, or reads in order, uses every record once in a pass: nothing is amplified by sampling, and every pass
    is charged in full. Before ``watch`` Poisson batches are assumed, and a warning says so.

    **Guarantee:** an upper bound for all iterates, if executed as described: batches as the loader that was watched
    draws them, whole passes, clipped gradients, Gaussian noise. The multiplier is lowered by the allowance for sums in
    single precision (``FLOAT_SLACK``).
    """

    def __init__(self) -> None:
        super().__init__()
        self.history: History = []
        self._drawn: Drawn | None = None

    def watch(self, data_loader: Any) -> OpacusAccountant:
        """Account for what ``data_loader``, the one that ``make_private`` returned, draws."""
        self._drawn = drawn_by(data_loader)
        return self

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """One step of the optimizer."""
        if self.history and self.history[-1][:2] == (noise_multiplier, sample_rate):
            noise_multiplier, sample_rate, steps = self.history.pop()
            self.history.append((noise_multiplier, sample_rate, steps + 1))
        else:
            self.history.append((noise_multiplier, sample_rate, 1))

    def get_epsilon(self, delta: float, **options: Any) -> float:
        """Epsilon at ``delta`` of all steps so far; a warning where it rests on an assumption, or exceeds a claim."""
        if self._drawn is None:
            warnings.warn("Poisson batches are assumed: accountant.watch(data_loader) looks at what is drawn",
                          UserWarning, stacklevel=2)
        found = self.curve().epsilon(delta)
        if self._drawn is not None and self._drawn.shuffled:
            warnings.warn("the data loader draws no Poisson batches: every pass is charged in full, "
                          f"epsilon {found:.3g}, where accounting for Poisson batches would claim "
                          f"{self.claimed(delta):.3g}", UserWarning, stacklevel=2)
        return found

    def claimed(self, delta: float) -> float:
        """Epsilon that the same history would have with Poisson batches: the common practice."""
        return poisson_curve(self.history).epsilon(delta)

    def curve(self) -> Curve:
        """The guarantee of all steps so far."""
        if self._drawn is None or not self._drawn.shuffled:
            if self._drawn is not None and isinstance(self._drawn.batching, Poisson):
                rates = {rate for _, rate, _ in self.history} - {self._drawn.batching.rate}
                if any(abs(rate - self._drawn.batching.rate) > 1e-9 for rate in rates):
                    raise InputError("data_loader", f"must draw with the rates that were counted, {sorted(rates)}",
                                     self._drawn.batching.rate, "watch the loader that make_private returned")
            return poisson_curve(self.history)
        return full_curve(self.history, self._drawn.batches)

    def __len__(self) -> int:
        return sum(steps for _, _, steps in self.history)

    @classmethod
    def mechanism(cls) -> str:
        """Its name in the registry."""
        return MECHANISM


def poisson_curve(history: History) -> Curve:
    """Steps (noise multiplier, rate, how many) on Poisson batches; a rate of 1 is a full batch."""
    curves = list[Curve]()
    for rate, steps in groupby(sorted(history, key=lambda step: (step[1], step[0])), key=lambda step: step[1]):
        counts = dict[float, int]()
        for z, _, count in steps:
            counts[z] = counts.get(z, 0) + count
        if min(counts) <= 0:
            return Gdp(math.inf)
        if rate >= 1:
            curves.append(Gdp((1 + FLOAT_SLACK) * math.sqrt(sum(n / z**2 for z, n in counts.items()))))
        else:
            curves.append(Pld(rate, tuple(z / (1 + FLOAT_SLACK) for z in counts), tuple(counts.values())))
    return compose(*curves)


def full_curve(history: History, batches: int) -> Curve:
    """A record takes part once in every pass of ``batches`` steps, and there where the noise is least."""
    each = np.repeat([z for z, _, _ in history], [count for _, _, count in history])
    if each.size == 0:
        return Gdp(0.0)
    least = np.minimum.reduceat(each, np.arange(0, each.size, batches))
    if least.min() <= 0:
        return Gdp(math.inf)
    return Gdp(float((1 + FLOAT_SLACK) * math.sqrt((least**-2.0).sum()) * (1 + 1e-12)))


register_accountant(MECHANISM, OpacusAccountant, force=True)
