"""How far two Gaussians are apart: Renyi divergences in one dimension."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from lastiterate.run.arrays import Array


def renyi(order: float, mean1: float, precision1: float, mean2: float, precision2: float) -> float:
    """Renyi divergence of order > 1 of N(mean1, 1/precision1) from N(mean2, 1/precision2); may be infinite.

    Gil, Alajaji, Linder 2013, Table 2. With A = order * precision1 - (order - 1) * precision2 > 0 (else infinite) it is
    [order log precision1 - (order - 1) log precision2 - log A] / (2 (order - 1)) + order gap^2 precision1 precision2
    / (2 A).
    """
    share = (order - 1) * (precision2 - precision1) / precision1
    if share >= 1:
        return math.inf
    gap = (mean1 - mean2) ** 2 * precision2 / (1 - share)
    return float(log_part(order, (precision2 - precision1) / precision1)) + order / 2 * gap


def log_part(order: ArrayLike, change: ArrayLike) -> Array:
    """Renyi divergence between centred Gaussians whose precisions are A and A (1 + change), (order - 1) change < 1.

    It falls for change < 0 and grows for change > 0: its derivative is order change / (2 (1 + change) (1 - (order - 1)
    change)).
    """
    above, moved = np.asarray(order, dtype=np.float64) - 1, np.asarray(change, dtype=np.float64)
    return -(np.log1p(moved) + np.log1p(-above * moved) / above) / 2
