"""Vectorised gradients of small chunks as a list of operations, executed without what Python does between them.

Where a chunk has little to compute most of a step's time is Python's: wrapping tensors, looking for layers, composing
functions. What is executed is the same for all chunks of one form, so it is traced and executed again.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from lastiterate.torch.parameters import State
from lastiterate.torch.recorded import recorded

OFTEN = 12
"""Repetitions that gain about as much time as a trace takes, where a chunk has little to compute; where it has more, a
trace takes longer, so that twice as many are asked for where they are only expected."""
SMALL = 2**22
"""Numbers that a computation gives, at most: of larger ones Python's part is not worth the memory of the comparison."""
Computed = Callable[[Any, Any, Any], Any]
"""From trained tensors, constants and records, all nested, to nested tensors."""


class Repeated:
    """What ``compute`` gives, which is a function of the numbers of its arguments and of nothing else.

    **Guarantee:** the bits are those of ``compute``: the same operations in the same order, compared on made-up records
    once for every form, at parameters and records other than those they were written down for. No number of a record is
    in a trace. What cannot be traced, such as code that looks at a
    number before it decides, is computed as it is written, every time.
    """

    def __init__(self, steps: int = 0) -> None:
        """``steps``: of the run, which has as many chunks at least: what a trace still gains follows from it."""
        self._steps = steps
        self._seen = Counter[Any]()
        self._known = dict[Any, tuple[Any, Any] | None]()
        self._calls = 0

    def __call__(self, compute: Computed, trained: State, constants: State, records: tuple[Any, ...]) -> Any:
        self._calls += 1
        leaves, structure = tree_flatten((trained, constants, records))
        form = (structure, *((leaf.shape, leaf.dtype) for leaf in leaves))
        if (known := self._known.get(form)) is not None:
            return tree_unflatten(list(known[0](*leaves)), known[1])
        computed = compute(trained, constants, records)
        self._seen[form] += 1
        if form not in self._known and self._worth(form):
            small = sum(each.numel() for each in tree_leaves(computed)) <= SMALL
            self._known[form] = traced_on(compute, trained, constants, tree_map(made_like, records)) if small else None
        return computed

    def _worth(self, form: object) -> bool:
        """Whether a form was seen so often that it may well come as often again; or is expected often enough, by its
        share of the chunks until now."""
        calls, seen = self._calls, self._seen[form]
        return seen >= OFTEN or seen * (self._steps - calls) >= 2 * OFTEN * calls


def traced_on(compute: Computed, trained: State, constants: State, records: tuple[Any, ...]) -> tuple[Any, Any] | None:
    """The operations on flat arguments, and how what they give is nested; None where they cannot be had, or where they
    give other bits."""
    leaves, structure = tree_flatten((trained, constants, records))
    nested = list[Any]()

    def flat(*leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        tensors, own = tree_flatten(compute(*tree_unflatten(list(leaves), structure)))
        nested.append(own)
        return tuple(tensors)

    try:
        again, others = recorded(flat, leaves), tree_leaves((tree_map(beside, trained), constants,
                                                             tree_map(partial(made_like, seed=3), records)))
        # on other numbers: what the code made a constant of theirs would be seen
        pairs = zip(again(*others), flat(*others), strict=True)
        same = all(one.dtype == two.dtype and one.shape == two.shape and torch.equal(bits(one), bits(two))
                   for one, two in pairs)
    except Exception:  # the code in a trace raises errors of many kinds
        return None
    return (again, nested[0]) if same else None


def bits(values: torch.Tensor) -> torch.Tensor:
    """What two tensors are compared by: of the numbers alone 0 and -0 would be one."""
    return values.reshape(-1).view(torch.uint8) if values.numel() else values


def beside(values: torch.Tensor) -> torch.Tensor:
    """Parameters a bit off."""
    return values + 0.1 * made_like(values, seed=4) if values.is_floating_point() else values


def made_like(values: torch.Tensor, seed: int = 2) -> torch.Tensor:
    """Normal numbers of a record's form, or zeros where it is whole numbers."""
    if not values.is_floating_point():
        return torch.zeros_like(values)
    made = torch.randn(values.shape, generator=torch.Generator().manual_seed(seed))
    return made.to(values.device, values.dtype)
