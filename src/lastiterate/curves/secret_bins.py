"""Secret independent bins, the same in every pass, whatever is released: the exact pair and its likelihood ratio.

Every record falls into one of l bins, independently and uniformly, and bins are used in a public order. With sigma'_t
the noise of step t in units of what one record adds to it, and a_j^2 = sum over the steps of bin j of 1 / sigma'_t^2,
the run is dominated in both directions by P = (1/l) sum_j N(a_j e_j, I) against Q = N(0, I), and equals it for linear
losses. Under Q the likelihood ratio is the mean of l independent Y_j = exp(a_j Z_j - a_j^2 / 2).

Proof: docs/theorems/balls-in-bins. One pass of blocks drawn anew is the same pair with a_j = 1 / sigma'.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import final

from lastiterate.curves.curve import UP
from lastiterate.curves.dominating_pair import DominatingPair
from lastiterate.curves.gdp import Gdp
from lastiterate.curves.ratio_law import COARSE, FINE, Ratio, certain, joined, mean_of
from lastiterate.errors import InputError

LEAST, LARGEST, RATIO = 1e-6, 64.0, 32.0
"""Strengths that are distinguished: smaller ones are rounded up to ``LEAST`` and to a ``RATIO``-th of the largest (a
larger one makes Y_j a spread); beyond ``LARGEST`` the bins hide next to nothing, and the curve is that of one bin."""
FINE_LEVELS, COARSE_LEVELS = 12, 4
"""Different strengths that are distinguished; others are rounded up."""


@final
@dataclass(frozen=True)
class SecretBins(DominatingPair):
    """``counts[i]`` bins of strength ``strengths[i]``.

    The strongest bin alone, if it were known, would be a max(strengths)-GDP mechanism.
    """

    strengths: tuple[float, ...]
    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.strengths) != len(self.counts) or not self.counts or min(self.counts) < 1:
            raise InputError("counts", "need one positive entry for every strength", self.counts)
        if not all(a >= 0 for a in self.strengths):
            raise InputError("strengths", "must be numbers >= 0", self.strengths)

    @property
    def known(self) -> Gdp:
        """The curve if the record's bin were known."""
        return Gdp(math.hypot(max(self.strengths), self.mu) * UP)

    def law(self) -> tuple[Ratio, float] | None:
        if max(self.strengths) > LARGEST:
            return None
        return likelihood_ratio(self.strengths, self.counts, self.coarse), 0.0

    def far_law(self) -> Ratio:
        return likelihood_ratio(self.strengths, self.counts, self.coarse, far=True)


@lru_cache(maxsize=32)
def likelihood_ratio(strengths: tuple[float, ...], counts: tuple[int, ...], coarse: bool = False, *,
                     far: bool = False) -> Ratio:
    """The law of (1/l) sum_j Y_j, rounded so that both directions only get worse; strengths up to ``LARGEST``.
    ``far``: for deltas as small as what is cut otherwise."""
    levels = merged(tuple(zip(strengths, counts, strict=True)), COARSE_LEVELS if coarse else FINE_LEVELS)
    resolution, top = COARSE if coarse else FINE, max(a for a, _ in levels)
    if top == 0:
        return certain(1.0)
    total, held = None, 0
    for a, count in levels:
        h = top / resolution * 2.0 ** -math.ceil(math.log2(top / a) if a else 0)
        law = mean_of(a, count, h, resolution, far=far)
        total = law if total is None else joined(total, law, held / (held + count), resolution)
        held += count
    assert total is not None
    return total


def merged(bins: tuple[tuple[float, int], ...], most: int) -> tuple[tuple[float, int], ...]:
    """Strengths and their numbers of bins, of at most ``most`` positive strengths, rounded up: more is never more
    private."""
    top = max(a for a, _ in bins)
    floor = max(LEAST, top / RATIO)
    positive = sorted({max(a, floor) for a, _ in bins if a > 0})
    if len(positive) > most:
        edges = [positive[0] + (positive[-1] - positive[0]) * k / most for k in range(1, most)]
        positive = [*edges, positive[-1]]
    counts: dict[float, int] = {}
    for a, count in bins:
        level = next(edge for edge in positive if edge >= a) if a > 0 else 0.0
        counts[level] = counts.get(level, 0) + count
    return tuple(sorted(counts.items()))
