"""Dropout whose random numbers are the record's own."""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as functional
from torch.overrides import TorchFunctionMode

from lastiterate.torch.record_key import RecordKey

DROPPED = {functional.dropout: False, functional.dropout1d: True, functional.dropout2d: True,
           functional.dropout3d: True}
"""Functions that are known here, and whether they drop whole channels."""
PARTS = (torch.nn.Dropout, torch.nn.Dropout1d, torch.nn.Dropout2d, torch.nn.Dropout3d)


def drops(part: torch.nn.Module) -> bool:
    """Whether a part drops entries in a way that is known here."""
    return isinstance(part, PARTS) and type(part) in PARTS and part.training and part.p > 0


class KeyedDropout(TorchFunctionMode):
    """While it is active, dropout draws under ``key``, another number for every call; without a key it drops nothing.

    **Guarantee:** what is dropped of a record follows from its key: other records decide nothing about it.
    """

    def __init__(self, key: RecordKey | None) -> None:
        super().__init__()
        self._key, self._calls = key, 0

    def __torch_function__(self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        if func not in DROPPED:
            return func(*args, **(kwargs or {}))
        given = dict(zip(("input", "p", "training", "inplace"), args, strict=False)) | (kwargs or {})
        values, p = given["input"], float(given.get("p", 0.5))
        if self._key is None or not given.get("training", True) or p == 0:
            return values
        self._calls += 1
        shape = tuple(values.shape)
        shape = (*shape[:2], *[1] * (len(shape) - 2)) if DROPPED[func] else shape
        kept = self._key.fold_in(self._calls).uniform(*shape, dtype=torch.float32) >= p
        return torch.where(kept, values / (1 - p if p < 1 else 1.0), 0.0)
