"""What a trained module answers for records, which are given as the training took them."""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from lastiterate.errors import InputError
from lastiterate.release.order import is_source
from lastiterate.run.arrays import check_kept
from lastiterate.torch.gradient_sums import in_precision
from lastiterate.torch.module_outputs import answered, as_arrays, joined
from lastiterate.torch.record_tensors import inputs_of

AT_ONCE = 256
"""Records of one forward pass."""


def predicted(module: torch.nn.Module, x: object, inputs: int | None) -> Any:
    """The module's outputs for the records of ``x`` in evaluation mode: arrays, in tuples and dictionaries.

    ``inputs``: ``positional`` of the records that it was trained on. Errors: what the module does not take.
    """
    check_kept("x", x)
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        with torch.no_grad():
            return joined([_answer(module, part) for part in _some(module, x, inputs)])
    finally:
        for part in training:
            part.training = True


def _answer(module: torch.nn.Module, records: object) -> Any:
    try:
        answer = as_arrays(answered(module, records), len(tree_leaves(records)[0]))
    except (RuntimeError, TypeError, IndexError, ValueError, AttributeError) as error:
        raise InputError("x", "must hold records that the module takes", str(error).splitlines()[0][:120]) from None
    if answer is None:
        raise InputError("x", "must hold records for each of which the module answers", None)
    return answer


def _some(module: torch.nn.Module, x: Any, inputs: int | None) -> Iterator[Any]:
    """What the module takes, some records at a time, as precise as its parameters and where they are."""
    where = next(module.parameters())
    for piece in x.pieces(AT_ONCE) if is_source(x) else (x,):
        records = in_precision(inputs_of(piece, inputs), where.dtype)
        for first in range(0, max(1, len(tree_leaves(records)[0])), AT_ONCE):
            yield tree_map(lambda a, at=first: a[at:at + AT_ONCE].to(where.device), records)
