"""What a compiled program is compiled for, and what it takes as arguments.

Frozen dataclasses become JAX pytrees: their numbers are leaves, so arguments, and everything else (types, shapes,
functions) is structure. Runs that differ in numbers only then share one compiled program.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import Any, TypeVar

import jax

Kind = TypeVar("Kind")
NUMBERS = ("float", "float | None", "np.ndarray")
"""Annotations of the fields that hold numbers; None in their place is structure."""


@cache  # a program's arguments are taken apart at every call
def names(kind: type) -> tuple[str, ...]:
    """Fields of a dataclass; none of ``None``."""
    return () if kind is type(None) else tuple(field.name for field in fields(kind))


@cache
def numeric(kind: type) -> tuple[str, ...]:
    """Those that hold numbers."""
    return () if kind is type(None) else tuple(field.name for field in fields(kind) if field.type in NUMBERS)


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True)
class Described:
    """A description of a run (or None) whose numbers are arguments of compiled programs."""

    value: Any

    def tree_flatten(self) -> tuple[tuple[Any, ...], Any]:
        held = {name: getattr(self.value, name) for name in names(type(self.value))}  # pyright: ignore
        numbers = tuple(name for name in numeric(type(self.value)) if held[name] is not None)  # pyright: ignore
        rest = tuple((name, value) for name, value in held.items() if name not in numbers)
        return tuple(held[name] for name in numbers), (type(self.value), numbers, rest)

    @classmethod
    def tree_unflatten(cls, structure: tuple[Any, ...], numbers: tuple[Any, ...]) -> Described:
        kind, names, rest = structure
        if kind is type(None):
            return cls(None)
        instance = object.__new__(kind)  # what it holds was checked before, and is traced now
        for name, value in (*zip(names, numbers, strict=True), *rest):
            object.__setattr__(instance, name, value)
        return cls(instance)


def numbered(kind: type[Kind]) -> type[Kind]:
    """Make an engine's frozen dataclass such a pytree."""
    def flatten(value: object) -> Any:
        return Described(value).tree_flatten()

    jax.tree_util.register_pytree_node(kind, flatten, lambda structure, numbers:  # pyright: ignore
                                       Described.tree_unflatten(structure, numbers).value)
    return kind
