"""Requirements on a loss: one number for a record, and no state that a forward pass changes."""

# pyright: reportMissingImports=false

from __future__ import annotations

import functools
import random
import types
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map

from lastiterate.errors import InputError, first_line
from lastiterate.torch.gradient_graphs import find_constant_gradients, gradient_graph
from lastiterate.torch.parameters import State
from lastiterate.torch.record_gradients import (
    FindsWeightedMeans,
    PerRecord,
    cast_records,
    class_weight_error,
)
from lastiterate.torch.vectorisation_checks import (
    constant_gradients,
    make_synthetic_records,
    normal,
)

# Attributes, lists, closures, generators. A module that counts its calls, keeps what it answered or
# draws from Python's or NumPy's generators gives a record a gradient that follows from earlier
# chunks, and so from other records and from secret batches.


LONGEST = 10_000
"""Entries of a container that are looked at; of longer ones their number."""
LARGEST = 2**26
"""Bytes of an array of NumPy whose numbers are compared; of a larger one which it is."""
PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


REWRITTEN = "use torch.nn.utils.parametrizations.weight_norm or spectral_norm"


def is_rewritten(module: object) -> bool:
    """Whether the old ``weight_norm`` or ``spectral_norm`` writes a weight before every call."""
    parts = module.modules() if isinstance(module, torch.nn.Module) else ()
    hooks = (hook for part in parts for hook in part._forward_pre_hooks.values())
    return any(type(hook).__name__ in ("WeightNorm", "SpectralNorm") for hook in hooks)


class PythonState:
    """What ``roots``, by name, and the two libraries' generators hold now.

    Tensors count by which they are and how often they were written. What a function reads of its
    module, and attributes of classes, are not looked at.
    """

    def __init__(self, roots: dict[str, Any]) -> None:
        self._roots, self._kept = roots, list[Any]()
        self._held = dict(self._all())

    def check(self) -> None:
        """Refuse what has changed since."""
        now = PythonState(self._roots)._held
        for place in (*self._held, *now):
            if self._held.get(place) != now.get(place):
                raise InputError(
                    "model",
                    "must keep nothing of a forward pass, and draw no random numbers of its own: "
                    "gradients would follow from other records",
                    place,
                    REWRITTEN
                    if any(map(is_rewritten, self._roots.values()))
                    else "leave that out, or make it depend on the record alone",
                )

    def _all(self) -> Iterator[tuple[str, Any]]:
        yield "random", random.getstate()
        yield "numpy.random", str(np.random.get_state())
        seen = set[int]()
        waiting = list(self._roots.items())
        while waiting:
            place, value = waiting.pop()
            own = _summary(value)
            if own is not None:
                yield place, own
                continue
            self._kept.append(value)  # so that no other object gets its number
            yield place, id(value)
            if id(value) not in seen:
                seen.add(id(value))
                waiting += [(f"{place}{name}", part) for name, part in _parts(value)]


def _summary(value: object) -> Any:
    """What a value is compared by, where nothing inside of it is looked at."""
    match value:
        case torch.Tensor():
            return id(value), None if value.is_inference() else value._version
        case np.ndarray():
            known = value.dtype != object and value.nbytes <= LARGEST
            return value.dtype.str, value.shape, value.tobytes() if known else id(value)
        case np.random.Generator():
            return str(value.bit_generator.state)
        case np.random.RandomState():
            return str(value.get_state())
        case random.Random():
            return value.getstate()
        case torch.Generator():
            return value.get_state().numpy().tobytes()
        case set() | frozenset():
            return len(value), frozenset(map(hash, value)) if len(value) <= LONGEST else None
        case _:
            return (type(value), repr(value)) if isinstance(value, PLAIN) else None


def _parts(value: object) -> Iterator[tuple[str, Any]]:
    """What lies inside of a value, and how it is named there."""
    if isinstance(value, type | types.ModuleType):
        return
    if isinstance(value, dict | list | tuple | deque):
        yield ".length", len(value)
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        yield from ((f"[{key!r}]", part) for key, part in islice(entries, LONGEST))
    elif isinstance(value, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif isinstance(value, types.MethodType):
        yield from (("", value.__self__), ("", value.__func__))
    elif isinstance(value, types.FunctionType):
        yield from (
            (f".{name}", cell.cell_contents)
            for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
            if _is_filled(cell)
        )
        yield from (
            (".__defaults__", value.__defaults__),
            (".__kwdefaults__", value.__kwdefaults__),
        )
    yield from ((f".{name}", part) for name, part in _attributes(value))


def _attributes(value: object) -> Iterator[tuple[str, Any]]:
    """What a value keeps under names, in slots or not."""
    yield from getattr(value, "__dict__", {}).items()
    for one in type(value).__mro__:
        slots = one.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield name, getattr(value, name)


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


# Requirements on a loss: one number for a record, with a gradient that the record moves.


FILLS = (normal, torch.ones_like, torch.zeros_like)


def suggest_remedy(said: str) -> str:
    """What to do about the commonest mistakes with losses and types."""
    if "must be the same as input size" in said:
        return "of one output give targets of shape (n, 1), or let the loss take output.squeeze(-1)"
    if "missing" in said and "positional argument" in said:
        return "name the target too: data=(x, y), or (x, x) where the module reconstructs x"
    if "unsigned char" in said or "got Byte" in said:
        return "give images as numbers between 0 and 1: x.float() / 255"
    if "does not require grad" in said:
        return "inside of a loss use torch.func.grad"
    if "must be Tensor, not" in said and "Output" in said:
        return "of an output object take its tensor: loss=lambda output, y: cross_entropy(output.logits, y)"
    if "'dict' object has no attribute" in said:
        name = said.rsplit("'", 2)[1]
        return f"of a dictionary take the entry: output[{name!r}]"
    if "Dimension out of range" in said:
        return "one record has no batch axis: write dim=-1 for its last axis"
    if "too many indices" in said:
        return "one record has no batch axis: leave the index of the record out"
    if "'Tensor' object has no attribute" in said:
        return "the module answers a tensor: give the loss the output itself"
    if "between 0 and 1" in said:
        return "give loss=torch.nn.BCELoss() itself, or logits to BCEWithLogitsLoss"
    return "class indices are integers: y.long()" if "expected target dtype" in said else ""


def _check_weights(loss: object) -> None:
    """Refuse weights of classes that a mean over one record divides by themselves."""
    known = isinstance(loss, torch.nn.CrossEntropyLoss | torch.nn.NLLLoss)
    given = vars(loss) | loss._buffers if known else getattr(loss, "keywords", {})
    named = known or getattr(loss, "func", None) in (
        torch.nn.functional.cross_entropy,
        torch.nn.functional.nll_loss,
    )
    if named and given.get("weight") is not None and given.get("reduction", "mean") == "mean":
        raise class_weight_error()


def check_loss(summed: PerRecord, named: State, one: tuple[Any, ...]) -> None:
    """One number for one record, from the record and the tensors alone."""
    _check_weights(summed.loss)
    try:
        with FindsWeightedMeans():
            loss: Any = summed.value(
                named, one
            )  # what is made at the first call is there afterwards
        before = PythonState(
            {"model": summed.module, "loss": summed.loss, "drawing": summed.drawing}
        )
        summed.value(named, one)
    except InputError:
        raise
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError) as error:
        raise InputError(
            "loss",
            "must take one record's output and target, without a batch axis, in the shapes and "
            "types that torch asks for",
            first_line(error),
            suggest_remedy(str(error)),
        ) from None
    if not isinstance(loss, torch.Tensor) or loss.shape != () or not loss.is_floating_point():
        shape = tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise InputError(
            "loss",
            "must return one number for one record, a floating-point scalar",
            shape,
            "write return; a model computes output.loss only where labels are among its inputs: "
            'data = {"input_ids": ..., "labels": ...}'
            if loss is None
            else "take no mean over a batch: the trainer hands it one record at a time",
        )
    before.check()


def check_gradient(
    summed: PerRecord, theta: torch.Tensor, constants: State, records: tuple[Any, ...]
) -> None:
    """Refuse a loss unless every parameter has a finite gradient on some synthetic record: during
    training a gradient that is not finite counts as 0, and a parameter that no record's loss
    depends on would get nothing but noise."""
    every, reached, finite = summed.parameters.names, set[str](), False
    for fill in FILLS:
        record = cast_records(
            tree_map(
                lambda a: a.to(theta.device), make_synthetic_records(records, summed.dtype, fill, 1)
            ),
            summed.dtype,
        )
        leaves = {
            name: tensor.requires_grad_()
            for name, tensor in summed.parameters.tensors(theta, summed.dtype).items()
        }
        loss = summed.value(constants | leaves, tree_map(lambda a: a[0], record))
        if not loss.requires_grad:
            break
        slopes = torch.autograd.grad(loss, [leaves[name] for name in every], allow_unused=True)
        reached.update(name for name, slope in zip(every, slopes, strict=True) if slope is not None)
        finite = finite or all(
            slope is None or bool(torch.isfinite(slope).all()) for slope in slopes
        )
        if finite and len(reached) == len(every):
            return
    if finite:
        raise InputError(
            "model",
            "must train only what the loss depends on, and a parameter would be given noise alone",
            next(name for name in every if name not in reached),
            "freeze it with requires_grad_(False)",
        )
    raise InputError(
        "loss",
        "must have a finite gradient at the first parameters, and has none on synthetic records",
        "not finite or none",
        "look for logarithms and roots of 0; nothing was trained",
    )


def check_moved(
    summed: PerRecord, theta: torch.Tensor, constants: State, records: tuple[Any, ...]
) -> None:
    """Refuse a parameter whose gradient is the same for every record: its released value would be
    noise around the loss's value without data. Parameters by which all synthetic records have one
    gradient are looked up in the traced graph; where torch cannot trace, the synthetic records
    decide."""
    same = constant_gradients(summed, theta, constants, records)
    if not same:
        return
    try:
        graph = gradient_graph(summed, theta, records)
        same = [
            name
            for name in find_constant_gradients(
                graph, len(tree_leaves(records)), summed.parameters.names
            )
            if name in same
        ]
    except Exception:  # the code in a trace raises errors of many kinds
        same = same if any(leaf.is_floating_point() for leaf in tree_leaves(records)) else []
    if same:
        raise InputError(
            "model",
            "must train only what records move, and the gradient by a parameter is the same for "
            "every record, as where it is read through sign or times 0: it would be given noise "
            "alone",
            same[0],
            "freeze it with requires_grad_(False)",
        )
