"""The operations that a computation is made of, written down while it is executed, as a function that executes them.

Below the layers that differentiate and vectorise: there every operation is one of plain tensors. What torch offers for
this knows shapes apart from numbers, and costs ten times as much.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.weak import WeakTensorKeyDictionary

Flat = Callable[..., tuple[torch.Tensor, ...]]


class Recorder(TorchDispatchMode):
    """Sees every operation on tensors; those that no operation gave and nobody handed over are constants.

    **Guarantee:** an operation that gives anything but tensors, or tensors whose shape follows from numbers, ends the
    recording: code could decide by it.
    """

    def __init__(self, leaves: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.graph, self.constants = Graph(), dict[str, torch.Tensor]()
        self._nodes = WeakTensorKeyDictionary()  # by identity, and none by the number of one that is gone
        for i, leaf in enumerate(leaves):
            self._nodes[leaf] = self.graph.placeholder(f"given_{i}")

    def __torch_dispatch__(self, func: Any, types: object, args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        if torch.Tag.dynamic_output_shape in func.tags:
            raise TypeError("cannot be repeated")
        node = self.graph.call_function(func, tree_map(self._named, args), tree_map(self._named, kwargs or {}))
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
        self.graph.output(tuple(map(self._named, results)))
        return GraphModule(self.constants, self.graph).forward

    def _hold(self, found: object, node: Node) -> None:
        if not isinstance(found, torch.Tensor):
            raise TypeError("cannot be repeated")
        self._nodes[found] = node

    def _named(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if value not in self._nodes:
            name = f"constant_{len(self.constants)}"
            self.constants[name] = value
            self._hold(value, self.graph.get_attr(name))
        return self._nodes[value]


def recorded(function: Flat, leaves: Sequence[torch.Tensor]) -> Flat:
    """``function`` as the operations that it makes of ``leaves``."""
    with Recorder(leaves) as recorder:
        results = function(*leaves)
    return recorder.function(results)
