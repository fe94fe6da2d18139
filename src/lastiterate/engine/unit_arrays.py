"""Records that are units of several rows, as arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np


@final
@dataclass(frozen=True, eq=False)
class UnitRecords:
    """Rows (units, places, d), targets (units, places), and which places hold a row, (units, places) booleans."""

    rows: np.ndarray
    target: np.ndarray
    present: np.ndarray

    @property
    def flat(self) -> tuple[np.ndarray, np.ndarray]:
        """The rows that are there, (rows, d), and their targets."""
        return self.rows[self.present], self.target[self.present]
