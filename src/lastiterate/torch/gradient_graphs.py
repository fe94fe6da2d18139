"""The graph of one record's gradient: what distinguishes modules and losses, and which parameters a
record can move."""

# pyright: reportMissingImports=false
from __future__ import annotations

import hashlib
import operator
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves, tree_map

from lastiterate.engine.tracing import PUBLIC, RECORD, ZERO
from lastiterate.errors import InputError, first_line
from lastiterate.torch.parameters import State
from lastiterate.torch.record_gradients import PerRecord, full_precision, pretend_compiling
from lastiterate.torch.vectorisation_checks import draw_parameters, make_synthetic_records, normal

ADDRESS = re.compile(r"0x[0-9a-f]+")


def gradient_graph(
    summed: PerRecord, theta: torch.Tensor, records: tuple[Any, ...]
) -> torch.fx.GraphModule:
    """Trace the gradient of one synthetic record; its arguments are the trained parameters,
    constants and the record."""
    parameters, dtype = summed.parameters, summed.dtype
    trained, constants = (
        parameters.tensors(draw_parameters(theta), dtype),
        parameters.copy_constants(dtype),
    )
    record = tree_map(
        lambda a: a[0].to(theta.device), make_synthetic_records(records, dtype, normal, 1)
    )

    def gradient(trained: State, constants: State, record: tuple[Any, ...]) -> State:
        return torch.func.grad(lambda own: summed.value(constants | own, record))(trained)

    with full_precision(theta.device), pretend_compiling():
        return make_fx(gradient)(trained, constants, record)


def identity(summed: PerRecord, theta: torch.Tensor, records: tuple[Any, ...]) -> str:
    """Return the identity of a module and a loss for a checkpoint: SHA-256 of the traced gradient
    of one synthetic record.

    It covers the operations with their arguments, tensors of numbers that the code holds, frozen
    parameters, buffers, names, shapes and types of the trained parameters, and the version of
    torch. Errors: code that torch cannot trace has no identity, and so no checkpoint: another loss
    could resume with its noise.
    """
    parameters, dtype, constants = (
        summed.parameters,
        summed.dtype,
        summed.parameters.copy_constants(summed.dtype),
    )
    try:
        graph = gradient_graph(summed, theta, records)
    except Exception as error:  # the code in a trace raises errors of many kinds
        raise InputError(
            "checkpoint",
            "needs a module and a loss that torch can trace, so that it knows them again",
            first_line(error),
            "leave it out",
        ) from None
    described = (
        parameters.names,
        parameters.shapes,
        parameters.dtypes,
        parameters.scales,
        dtype,
        torch.__version__,
    )
    hasher = hashlib.sha256(ADDRESS.sub("", f"{graph.code} {described}").encode())
    for name, tensor in (*sorted(constants.items()), *_list_constants(graph)):
        numbers = tensor.detach().cpu().contiguous()
        hasher.update(f"{name} {numbers.dtype} {tuple(numbers.shape)};".encode())
        hasher.update(numbers.reshape(-1).view(torch.uint8).numpy().tobytes())
    return hasher.hexdigest()


def _list_constants(graph: torch.fx.GraphModule) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors that the code holds in addition to its arguments."""
    for node in graph.graph.nodes:
        if node.op == "get_attr":
            held = getattr(graph, str(node.target))
            if isinstance(held, torch.Tensor):
                yield str(node.target), held
            else:
                yield from (
                    (f"{node.target}.{name}", tensor) for name, tensor in _list_constants(held)
                )


ANY_ZERO = {"mul", "mm", "bmm", "mv", "dot"}
"""Operations whose result is 0 where one operand is."""
ALL_ZERO = {
    "add",
    "sub",
    "neg",
    "sum",
    "mean",
    "view",
    "_unsafe_view",
    "reshape",
    "expand",
    "permute",
    "t",
    "transpose",
    "unsqueeze",
    "squeeze",
    "clone",
    "_to_copy",
    "detach",
    "alias",
    "select",
    "slice",
    "split",
    "cat",
    "stack",
    "unbind",
    "diagonal",
    "abs",
    "sqrt",
    "sign",
    "sgn",
    "round",
    "floor",
    "sin",
    "tanh",
    "relu",
}
"""Operations whose result is 0 where all operands are."""
FIRST_ZERO = {"div", "gather", "index", "index_select"}
"""Operations whose result is 0 where the first operand is; so are derivatives, which are multiples
of it."""
ZEROS, FILLED = (
    {"zeros", "zeros_like", "new_zeros"},
    {"full", "full_like", "new_full", "scalar_tensor"},
)
ONES = {"ones", "ones_like", "new_ones"}
"""What makes tensors of one number, which follows from nothing."""


def find_constant_gradients(
    graph: torch.fx.GraphModule, record: int, names: tuple[str, ...]
) -> list[str]:
    """Which of the parameters ``names`` have the same gradient for every record, by the graph of
    one record's gradient.

    ``record``: how many tensors it has, which are the graph's last arguments. As for losses in JAX
    (``engine/tracing.py``) an operation that is not named here is never 0, and follows
    from the record if one of its operands does. A graph that writes in place is taken to follow
    from it.
    """
    kinds = dict[torch.fx.Node, int]()
    given = [node for node in graph.graph.nodes if node.op == "placeholder"]
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            kinds[node] = RECORD if node in given[len(given) - record :] else PUBLIC
        elif node.op == "get_attr":
            held = getattr(graph, str(node.target))
            kinds[node] = (
                ZERO if isinstance(held, torch.Tensor) and not bool(held.any()) else PUBLIC
            )
        elif node.op == "output":
            found = [
                kinds[each] if isinstance(each, torch.fx.Node) else PUBLIC
                for each in tree_leaves(node.args[0])
            ]
            return [name for name, kind in zip(names, found, strict=True) if kind != RECORD]
        elif node.target is operator.getitem:
            kinds[node] = kinds[node.args[0]]
        elif isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
            return []
        else:
            kinds[node] = _kind(node, kinds)
    return []


def _kind(node: torch.fx.Node, kinds: dict[torch.fx.Node, int]) -> int:
    """What a result is, by the operation and the kinds of its operands."""
    packet = getattr(node.target, "overloadpacket", None)
    name = "" if packet is None else packet.__name__
    flat = tree_leaves((node.args, node.kwargs))
    operands = [kinds[each] for each in flat if isinstance(each, torch.fx.Node)]
    first = (
        kinds.get(node.args[0], PUBLIC)
        if node.args and isinstance(node.args[0], torch.fx.Node)
        else PUBLIC
    )
    if name in ("mul", "add", "sub"):  # whose second operand may be a plain number
        operands += [
            PUBLIC if each else ZERO for each in node.args if isinstance(each, int | float)
        ]
    if name in ZEROS | ONES:
        return ZERO if name in ZEROS else PUBLIC
    if name in FILLED and node.args and isinstance(node.args[-1], int | float):
        return PUBLIC if node.args[-1] else ZERO
    if (
        (name in ANY_ZERO and ZERO in operands)
        or (name in ALL_ZERO and operands and not any(operands))
        or (
            (name in FIRST_ZERO or name.endswith(("_backward", "_backward_data"))) and first == ZERO
        )
    ):
        return ZERO
    return max((PUBLIC, *operands))
