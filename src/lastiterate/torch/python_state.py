"""State other than tensors that a forward pass could change."""

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

from lastiterate.errors import InputError

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
