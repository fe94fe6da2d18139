"""Lookups in a table whose padding row no record trains.

Torch's own rule for ``vmap`` looks all records' tables up as one long table, and hands it the place of the padding row
in a single one: the first record's padding row alone would be left out, and a record's gradient would follow from its
place among the others. Here the padding is left out of each record's answer, by its numbers alone.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from lastiterate.errors import InputError


def of_function(input: torch.Tensor, weight: torch.Tensor, padding_idx: int | None = None,
                max_norm: float | None = None, norm_type: float = 2.0, scale_grad_by_freq: bool = False,
                sparse: bool = False) -> torch.Tensor:
    """``torch.nn.functional.embedding``; ``sparse`` only says how a gradient is stored."""
    vectors = functional.embedding(input, weight, None, max_norm, norm_type, scale_grad_by_freq)
    return vectors if padding_idx is None else _but_padding(vectors, input, padding_idx % weight.size(0))


def of_operation(weight: torch.Tensor, indices: torch.Tensor, padding_idx: int = -1,
                 scale_grad_by_freq: bool = False, sparse: bool = False) -> torch.Tensor:
    """``torch.embedding``, where no padding is -1."""
    vectors = torch.embedding(weight, indices, -1, scale_grad_by_freq)
    return vectors if padding_idx < 0 else _but_padding(vectors, indices, padding_idx)


def _but_padding(vectors: torch.Tensor, numbers: torch.Tensor, padding: int) -> torch.Tensor:
    return torch.where((numbers == padding).unsqueeze(-1), vectors.detach(), vectors)


LOOKUPS: dict[Any, Callable[..., torch.Tensor]] = {
    functional.embedding: of_function, torch.embedding: of_operation, torch.ops.aten.embedding: of_operation,
    torch.ops.aten.embedding.default: of_operation}
"""What takes the place of torch's own functions."""


class Padded(TorchDispatchMode):
    """Sees lookups that leave a padding row out by torch's own rule, such as those of compiled code."""

    def __init__(self) -> None:
        super().__init__()
        self._seen = False

    def __torch_dispatch__(self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        if func is torch.ops.aten.embedding.default:
            padding = args[2] if len(args) > 2 else (kwargs or {}).get("padding_idx", -1)
            self._seen = self._seen or padding >= 0
        return func(*args, **(kwargs or {}))

    def check(self) -> None:
        """Refuse them."""
        if self._seen:
            raise InputError("model", "must look words up in ordinary code, for the rule of torch for padding mixes "
                             "records that are vectorised", "embedding with padding_idx in compiled code",
                             "leave torch.jit out, or the padding")
