"""Tensors that a forward pass may read and not write.

Records that are vectorised share the memory of what is trained: what one of them wrote there all others would read.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Mapping

import torch

from lastiterate.errors import InputError


class Unwritten:
    """Tensors by name, from now on.

    **Guarantee:** ``check`` refuses whatever was written to one of them, the same numbers too: torch counts what writes
    in place, and no number is looked at, so that the refusal follows from no record.
    """

    def __init__(self, named: Mapping[str, torch.Tensor]) -> None:
        self._named, self._versions = named, [tensor._version for tensor in named.values()]

    def check(self) -> None:
        for (name, tensor), version in zip(self._named.items(), self._versions, strict=True):
            if tensor._version != version:
                raise written(name)


def written(name: str) -> InputError:
    """The refusal of a forward pass that writes to the tensor of this name."""
    return InputError("model", "must not write to its parameters or buffers in a forward pass", name,
                      "freeze that part with .eval(), or leave out what writes, such as max_norm of an embedding")
