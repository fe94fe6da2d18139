# pyright: reportMissingImports=false
"""An accountant for Opacus: privacy loss distributions for Poisson batches, the full charge for all others."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from itertools import groupby, pairwise
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
from lastiterate.torch.loaders import Drawn, count_passes, drawn_by

MECHANISM = "lastiterate"
"""Its name in Opacus' registry: ``PrivacyEngine(accountant="lastiterate")``."""
History = list[tuple[float, float, int]]


class OpacusAccountant(IAccountant):
    """Counts what an Opacus optimizer executes; epsilon for add-remove (Poisson) or zero-out neighbours.

    Opacus hands over a noise multiplier and 1 / len(data_loader), whatever the loader draws: ``watch(data_loader)``
    looks at the loader itself, and counts its passes from then on. Of Poisson batches the steps are composed by their
    privacy loss distributions. A loader that shuffles, or reads in order, uses every record once in a pass: nothing is
    amplified by sampling, and every pass that is begun is charged in full, however few of its batches are read. Before
    ``watch`` Poisson batches are assumed, and a warning says so.

    **Guarantee:** an upper bound for all iterates, if executed as described: batches as the loader that was watched
    draws them, each in one step, which is taken before the next pass begins; before ``watch`` whole passes; clipped
    gradients, Gaussian noise. The multiplier is lowered by the allowance for sums in single precision
    (``FLOAT_SLACK``).
    """

    def __init__(self) -> None:
        super().__init__()
        self.history: History = []
        self._drawn: Drawn | None = None
        self.passes: list[int] = []  #: steps that were counted when passes began; twice where two were open at once

    def watch(self, data_loader: object) -> OpacusAccountant:
        """Account for what ``data_loader``, the one that ``make_private`` returned, draws; best before the first step.
        """
        self._drawn = drawn_by(data_loader)
        if self._drawn.shuffled:
            count_passes(data_loader, self._began)
        return self

    def _began(self, beside: bool) -> None:
        if beside or len(self) not in self.passes:  # one that was over before a step took no part
            self.passes.append(len(self))

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """One step of the optimizer."""
        if self.history and self.history[-1][:2] == (noise_multiplier, sample_rate):
            noise_multiplier, sample_rate, steps = self.history.pop()
            self.history.append((noise_multiplier, sample_rate, steps + 1))
        else:
            self.history.append((noise_multiplier, sample_rate, 1))

    def get_epsilon(self, delta: float, **options: object) -> float:
        """Epsilon at ``delta`` of all steps so far; a warning where it rests on an assumption, or exceeds a claim."""
        if self._drawn is None:
            warnings.warn("Poisson batches are assumed: accountant.watch(data_loader) looks at what is drawn",
                          UserWarning, stacklevel=2)
        epsilon = self.curve().epsilon(delta)
        if self._drawn is not None and self._drawn.shuffled:
            before = self.passes[0] if self.passes else len(self)
            warnings.warn("the data loader draws no Poisson batches: every pass is charged in full, "
                          f"epsilon {epsilon:.3g}, where accounting for Poisson batches would claim "
                          f"{self.claimed(delta):.3g}" + (f"; {before} steps before watch() are taken for whole passes"
                                                          if before else ""), UserWarning, stacklevel=2)
        return epsilon

    def claimed(self, delta: float) -> float:
        """Epsilon that the same history would have with Poisson batches: the common practice."""
        return poisson_curve(self.history).epsilon(delta)

    def curve(self) -> Curve:
        """The guarantee of all steps so far."""
        if self._drawn is None:
            return poisson_curve(self.history)
        drawn, rates = self._drawn, {rate for _, rate, _ in self.history}
        of_one = drawn.batching.rate if isinstance(drawn.batching, Poisson) else 1 / drawn.batches
        if any(abs(rate - of_one) > 1e-9 for rate in rates):
            raise InputError("data_loader", f"must draw with the rates that were counted, {sorted(rates)}", of_one,
                             "watch the loader that make_private returned, and take a step with every batch: a record "
                             "may be in several that are added up")
        return full_curve(self.history, drawn.batches, self.passes) if drawn.shuffled else poisson_curve(self.history)

    def state_dict(self, destination: Any = None) -> Any:
        """As Opacus has it, with the passes that were counted."""
        state = super().state_dict(destination)
        state["passes"] = list(self.passes)
        return state

    def load_state_dict(self, state_dict: Any) -> None:
        """Go on from what ``state_dict`` gave."""
        super().load_state_dict(state_dict)
        self.passes = list(state_dict.get("passes", ()))

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


def full_curve(history: History, batches: int, passes: Sequence[int] = ()) -> Curve:
    """A record takes part once in every pass of ``batches`` steps or fewer, and there where the noise is least.

    ``passes``: the steps that passes began with; where none is named passes are whole. Of several that were open at
    once a record may be in one step, as often as there are such passes.
    """
    each = np.repeat([float(z) for z, _, _ in history], [count for _, _, count in history])
    if each.size == 0:
        return Gdp(0.0)
    starts = sorted({0, each.size, *(place for place in passes if place < each.size)})
    for begin, end in pairwise(starts):
        each[begin:end] /= max(passes.count(begin), 1)
    least = np.minimum.reduceat(each, [at for begin, end in pairwise(starts) for at in range(begin, end, batches)])
    if least.min() <= 0:
        return Gdp(math.inf)
    return Gdp(float((1 + FLOAT_SLACK) * math.sqrt((least**-2.0).sum()) * (1 + 1e-12)))


register_accountant(MECHANISM, OpacusAccountant, force=True)
