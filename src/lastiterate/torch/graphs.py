"""What distinguishes modules and their losses: the graph of one record's gradient, and every number in it."""

# pyright: reportMissingImports=false
from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_map

from lastiterate.errors import InputError
from lastiterate.torch.gradient_sums import PerRecord, full_precision, traced
from lastiterate.torch.parameters import State
from lastiterate.torch.record_gradients import made_up, normal, said
from lastiterate.torch.record_positions import drawn

ADDRESS = re.compile(r"0x[0-9a-f]+")


def identity(summed: PerRecord, theta: torch.Tensor, records: tuple[Any, ...]) -> str:
    """What a checkpoint knows of a module and a loss: SHA-256 of the traced gradient of one made-up record.

    In it are the operations with their arguments, tensors of numbers that the code holds, frozen parameters, buffers,
    names, shapes and types of what is trained, and the version of torch. Errors: what torch cannot trace has no
    identity, and so no checkpoint: another loss could go on with its noise.
    """
    parameters, dtype = summed.parameters, summed.dtype
    trained, constants = parameters.tensors(drawn(theta), dtype), parameters.fixed(dtype)
    record = tree_map(lambda a: a[0].to(theta.device), made_up(records, dtype, normal, 1))

    def gradient(trained: State, constants: State, record: tuple[Any, ...]) -> State:
        return torch.func.grad(lambda own: summed.value(constants | own, record))(trained)

    try:
        with full_precision(theta.device), traced():
            graph = make_fx(gradient)(trained, constants, record)
    except Exception as error:  # the code in a trace raises errors of many kinds
        raise InputError("checkpoint", "needs a module and a loss that torch can trace, so that it knows them again",
                         said(error), "leave it out") from None
    beside = (parameters.names, parameters.shapes, parameters.dtypes, parameters.scales, dtype, torch.__version__)
    hasher = hashlib.sha256(ADDRESS.sub("", f"{graph.code} {beside}").encode())
    for name, tensor in (*sorted(constants.items()), *_held(graph)):
        numbers = tensor.detach().cpu().contiguous()
        hasher.update(f"{name} {numbers.dtype} {tuple(numbers.shape)};".encode())
        hasher.update(numbers.reshape(-1).view(torch.uint8).numpy().tobytes())
    return hasher.hexdigest()


def _held(graph: torch.fx.GraphModule) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors that the code holds beside its arguments."""
    for node in graph.graph.nodes:
        if node.op == "get_attr":
            held = getattr(graph, str(node.target))
            if isinstance(held, torch.Tensor):
                yield str(node.target), held
            else:
                yield from ((f"{node.target}.{name}", tensor) for name, tensor in _held(held))
