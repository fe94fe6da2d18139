"""Functions that say themselves what they are for many records at once."""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from lastiterate.errors import InputError
from lastiterate.torch.padded_lookups import LOOKUPS


class NoOwnRules(TorchFunctionMode):
    """Refuses, while it is active, what brings its own rule for ``torch.vmap``: such code is given all records at once.

    That is an ``autograd.Function`` with a ``vmap`` of its own, and an operation with a kernel of its own for batched
    tensors. What torch makes by itself, by ``generate_vmap_rule = True`` or record by record, treats each alone;
    but for lookups with padding, in whose place others are called.
    """

    def __torch_function__(self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        if args and isinstance(args[0], type) and issubclass(args[0], torch.autograd.Function):
            if args[0].vmap is not torch.autograd.Function.vmap:
                raise _refused(args[0].__name__, "set generate_vmap_rule = True there, and leave its vmap out")
        elif (name := _registered(func)) is not None:
            raise _refused(name, "leave out its register_vmap")
        return LOOKUPS.get(func, func)(*args, **(kwargs or {}))


def _registered(func: Any) -> str | None:
    """The name of an operation that somebody registered with a kernel for batched tensors; None for torch's own."""
    own = getattr(func, "_qualified_op_name", None)  # of all its overloads, as ``torch.ops`` has it
    parts = [getattr(func, each) for each in func.overloads()] if own is not None else [func]
    for part in parts:
        if isinstance(part, torch._ops.OpOverload) and part.namespace != "aten" and \
                torch._C._dispatch_has_kernel_for_dispatch_key(part.name(), "FuncTorchBatched"):
            return part.name()
    return None


def _refused(name: str, remedy: str) -> InputError:
    return InputError("model", "must treat every record alone, and a function of the model or of the loss says itself "
                      "what it is for many of them", name, remedy)
