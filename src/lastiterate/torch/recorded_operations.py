"""Computations recorded as lists of operations and executed again without Python between them."""

# pyright: reportMissingImports=false
from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten
from torch.utils.weak import WeakTensorKeyDictionary

from lastiterate.torch.parameters import State

# The operations that a computation is made of, written down while it is executed, as a function
# that executes them. Below the layers that differentiate and vectorise: there every operation is
# one of plain tensors. What torch offers for this knows shapes apart from numbers, and costs ten
# times as much.


Flat = Callable[..., tuple[torch.Tensor, ...]]


class Recorder(TorchDispatchMode):
    """Sees every operation on tensors; those that no operation gave and nobody handed over are
    constants.

    **Guarantee:** an operation that gives anything but tensors, or tensors whose shape follows from
    numbers, ends the recording: code could decide by it.
    """

    def __init__(self, leaves: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.graph, self.constants = Graph(), dict[str, torch.Tensor]()
        self._nodes = (
            WeakTensorKeyDictionary()
        )  # by identity, and none by the number of one that is gone
        for i, leaf in enumerate(leaves):
            self._nodes[leaf] = self.graph.placeholder(f"given_{i}")

    def __torch_dispatch__(
        self,
        func: Any,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if torch.Tag.dynamic_output_shape in func.tags and not _indexes_by_integers(func, args):
            raise TypeError("cannot be repeated")
        node = self.graph.call_function(
            func, tree_map(self._name_value, args), tree_map(self._name_value, kwargs or {})
        )
        found = func(*args, **(kwargs or {}))
        if isinstance(found, tuple | list):
            for i, each in enumerate(found):
                if each is not None:
                    self._hold(each, self.graph.call_function(operator.getitem, (node, i)))
        else:
            self._hold(found, node)
        return found

    def function(self, results: tuple[torch.Tensor, ...]) -> Flat:
        """From leaves to ``results``, which were computed from others."""
        self.graph.output(tuple(map(self._name_value, results)))
        return GraphModule(self.constants, self.graph).forward

    def _hold(self, found: object, node: Node) -> None:
        if not isinstance(found, torch.Tensor):
            raise TypeError("cannot be repeated")
        self._nodes[found] = node

    def _name_value(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if value not in self._nodes:
            name = f"constant_{len(self.constants)}"
            self.constants[name] = value
            self._hold(value, self.graph.get_attr(name))
        return self._nodes[value]


def _indexes_by_integers(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether an operation looks entries up by integers, so that its shape follows from shapes: by
    truth values it would follow from numbers."""
    return func is torch.ops.aten.index.Tensor and not any(
        index.dtype in (torch.bool, torch.uint8) for index in args[1] if index is not None
    )


def record_operations(function: Flat, leaves: Sequence[torch.Tensor]) -> Flat:
    """``function`` as the operations that it makes of ``leaves``."""
    with Recorder(leaves) as recorder:
        results = function(*leaves)
    return recorder.function(results)


# Vectorised gradients of small chunks as a list of operations, executed without what Python does
# between them. Where a chunk has little to compute most of a step's time is Python's: wrapping
# tensors, looking for layers, composing functions. What is executed is the same for all chunks of
# one form, so it is traced and executed again.


OFTEN = 12
"""Repetitions that gain about as much time as a trace takes, where a chunk has little to compute;
where it has more, a trace takes longer, so that twice as many are asked for where they are only
expected."""
SMALL = 2**22
"""Numbers that a computation gives, at most: of larger ones Python's part is not worth the memory
of the comparison."""
Computed = Callable[[Any, Any, Any], Any]
"""From trained tensors, constants and records, all nested, to nested tensors."""


class RecordedComputation:
    """What ``compute`` gives, which is a function of the numbers of its arguments and of nothing
    else.

    **Guarantee:** the bits are those of ``compute``: the same operations in the same order,
    compared on synthetic records once for every form, at parameters and records other than those
    that were traced. No number of a record is in a trace. What cannot be traced, such as code
    that looks at a number before it decides, is computed as it is written, every time.
    """

    def __init__(self, steps: int = 0) -> None:
        """``steps``: of the run, which has as many chunks at least: what a trace still gains
        follows from it."""
        self._steps = steps
        self._seen = Counter[Any]()
        self._known = dict[Any, tuple[Any, Any] | None]()
        self._calls = 0

    def __call__(
        self, compute: Computed, trained: State, constants: State, records: tuple[Any, ...]
    ) -> Any:
        self._calls += 1
        leaves, structure = tree_flatten((trained, constants, records))
        form = (structure, *((leaf.shape, leaf.dtype) for leaf in leaves))
        if (known := self._known.get(form)) is not None:
            return tree_unflatten(list(known[0](*leaves)), known[1])
        computed = compute(trained, constants, records)
        self._seen[form] += 1
        if form not in self._known and self._worth(form):
            small = sum(each.numel() for each in tree_leaves(computed)) <= SMALL
            self._known[form] = (
                trace_operations(compute, trained, constants, tree_map(make_like, records))
                if small
                else None
            )
        return computed

    def _worth(self, form: object) -> bool:
        """Whether a form was seen so often that it may well come as often again; or is expected
        often enough, by its share of the chunks until now."""
        calls, seen = self._calls, self._seen[form]
        return seen >= OFTEN or seen * (self._steps - calls) >= 2 * OFTEN * calls


def trace_operations(
    compute: Computed, trained: State, constants: State, records: tuple[Any, ...]
) -> tuple[Any, Any] | None:
    """The operations on flat arguments, and how what they give is nested; None where they cannot be
    had, or where they give other bits."""
    leaves, structure = tree_flatten((trained, constants, records))
    nested = list[Any]()

    def flat(*leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        tensors, own = tree_flatten(compute(*tree_unflatten(list(leaves), structure)))
        nested.append(own)
        return tuple(tensors)

    try:
        again, others = (
            record_operations(flat, leaves),
            tree_leaves(
                (
                    tree_map(perturb, trained),
                    constants,
                    tree_map(partial(make_like, seed=3), records),
                )
            ),
        )
        # on other numbers: what the code made a constant of theirs would be seen
        pairs = zip(again(*others), flat(*others), strict=True)
        same = all(
            one.dtype == two.dtype and one.shape == two.shape and torch.equal(bits(one), bits(two))
            for one, two in pairs
        )
    except Exception:  # the code in a trace raises errors of many kinds
        return None
    return (again, nested[0]) if same else None


def bits(values: torch.Tensor) -> torch.Tensor:
    """What two tensors are compared by: of the numbers alone 0 and -0 would be one."""
    return values.reshape(-1).view(torch.uint8) if values.numel() else values


def perturb(values: torch.Tensor) -> torch.Tensor:
    """Parameters a bit off."""
    return values + 0.1 * make_like(values, seed=4) if values.is_floating_point() else values


def make_like(values: torch.Tensor, seed: int = 2) -> torch.Tensor:
    """Return normal numbers of a record's form, or zeros where it holds integers."""
    if not values.is_floating_point():
        return torch.zeros_like(values)
    made = torch.randn(values.shape, generator=torch.Generator().manual_seed(seed))
    return made.to(values.device, values.dtype)
