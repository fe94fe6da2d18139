"""What a module takes and answers beside plain tensors: dictionaries, classes of its own, caches, means of a batch."""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map


def as_dictionary(given: object) -> Any:
    """A mapping of a class of its own, as tokenizers give one, as a dictionary; anything else as it is."""
    return dict(given) if isinstance(given, Mapping) else given


def answered(module: torch.nn.Module, records: object) -> Any:
    """What a module answers for some records, which it takes by name where they are a dictionary."""
    if isinstance(records, dict):
        return module(**records)
    return module(*(records if isinstance(records, tuple) else (records,)))


def tensors_in(output: object) -> Iterator[torch.Tensor]:
    """The tensors with axes that a module answers. Numbers without one are means over the batch, such as a loss that
    the module computes itself; what is no tensor, such as a cache for later words, is nobody's answer."""
    for leaf in tree_leaves(output):
        if isinstance(leaf, torch.Tensor):
            if leaf.dim() > 0:
                yield leaf
        elif isinstance(leaf, Mapping):
            yield from tensors_in(dict(leaf))


def without_batch(output: object) -> Any:
    """What the module answers for one record: its tensors without the batch axis, all else as it is, in its classes."""
    def one(leaf: object) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf[0] if leaf.dim() > 0 else leaf
        return without_batch(dict(leaf)) if isinstance(leaf, Mapping) else leaf

    return tree_map(one, output)


def by_record(output: object, count: int, make: Callable[[torch.Tensor], Any]) -> Any:
    """What ``make`` makes of the tensors that a module answers for each of ``count`` records, in tuples and
    dictionaries; None where there are none."""
    if isinstance(output, torch.Tensor):
        return make(output) if output.dim() > 0 and len(output) == count else None
    if isinstance(output, Mapping):
        parts = {name: by_record(each, count, make) for name, each in output.items()}
        return {name: made for name, made in parts.items() if made is not None} or None
    if isinstance(output, tuple | list):
        return tuple(made for each in output if (made := by_record(each, count, make)) is not None) or None
    return None


def as_arrays(output: object, count: int) -> Any:
    """The same as arrays; NumPy has no bfloat16."""
    return by_record(output, count, lambda tensor: (
        tensor.float() if tensor.dtype == torch.bfloat16 else tensor).cpu().numpy())


def joined(parts: list[Any]) -> Any:
    """Answers for some records after another as one."""
    return tree_map(lambda *each: np.concatenate(each), *parts)
