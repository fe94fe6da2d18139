"""Calibration on whole numbers: vectors rounded toward zero, summed exactly, exact discrete noise."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from lastiterate.engine.exact_noise import DiscreteGaussian
from lastiterate.engine.exact_preparation import row_places, whole_rows
from lastiterate.engine.gaussian_noise import Key
from lastiterate.engine.newton_rounds import Noisy
from lastiterate.engine.random_bits import Bits, derived


def exact_rounds(n: int, key: Key) -> Noisy:
    """Sums over ``n`` records.

    **Guarantee:** what is released is a function of the sum of whole-number vectors, one per record, whose norm is
    checked on whole numbers, to which exact noise was added.
    """
    secret = derived(np.asarray(key).tobytes(), "exact calibration")

    def noisy(number: int, std: float, size: int, slices: Iterable[np.ndarray]) -> np.ndarray:
        places = row_places(n, 1.0, std)
        total = DiscreteGaussian(std * 2.0**places).sample(Bits(secret, number), size).astype(np.float64)
        for vectors in slices:
            total = total + whole_rows(vectors, 1.0, places).sum(axis=0)
        return total * 2.0**-places

    return noisy
