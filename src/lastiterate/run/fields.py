"""The types of a description's fields, read from its annotations: what is checked is what is stored.

A description is one of a closed set of final classes and is recognised by its exact type: a subclass could answer one
thing to a theorem and another to the trainer. Numbers are stored as built-in ones for the same reason.
"""

# pyright: basic
# annotations are looked at here, and values of any type refused
from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from lastiterate.errors import InputError
from lastiterate.run.validate import integer, number, numbers

Check = Callable[[str, Any], Any]
"""From the name of an argument and its value to the value that is stored; refuses a value of another type."""


def settle(description: object) -> None:
    """Check every field of a description against its annotation, and store numbers and tuples as built-in ones."""
    for name, where, check in _checks(type(description)):
        given = getattr(description, name)
        plain = check(where, given)
        if plain is not given:
            object.__setattr__(description, name, plain)


def exactly(name: str, value: object, *allowed: type) -> None:
    """Refuse anything whose type is not one of ``allowed``."""
    if type(value) not in allowed:
        raise InputError(name, "must be one of " + ", ".join(kind.__name__ for kind in allowed), type(value).__name__,
                         "descriptions are recognised by their exact type, subclasses are refused")


@cache
def _checks(cls: type) -> tuple[tuple[str, str, Check], ...]:
    hints = {name: _stored(hint) for name, hint in get_type_hints(cls).items()}
    return tuple((item.name, f"{cls.__name__}.{item.name}", check_of(hints[item.name]))
                 for item in fields(cls) if item.init)


def _stored(hint: object) -> Any:
    """What a field holds: a descriptor stands for what reading it gives."""
    read = getattr(hint, "__get__", None) if isinstance(hint, type) else None
    return hint if read is None else get_type_hints(read)["return"]


def check_of(hint: object) -> Check:
    """The check that an annotation stands for."""
    if hint in _PLAIN:
        return _PLAIN[hint]
    if get_origin(hint) is Literal:
        return _choice(get_args(hint))
    if get_origin(hint) in (Union, UnionType):
        return _union(get_args(hint))
    if get_origin(hint) is tuple:
        return _several(check_of(get_args(hint)[0]))
    return _union((hint,))


def _text(name: str, value: object) -> str:
    if type(value) not in (str, np.str_):
        raise InputError(name, "must be text", type(value).__name__)
    return str(value)


_PLAIN: dict[Any, Check] = {float: number, int: integer, str: _text, tuple[float, ...]: numbers}


def _choice(options: tuple[str, ...]) -> Check:
    def check(name: str, value: object) -> str:
        if type(value) not in (str, np.str_) or value not in options:
            raise InputError(name, "must be one of " + ", ".join(options), value)
        return str(value)

    return check


def _several(each: Check) -> Check:
    def check(name: str, value: Any) -> tuple[Any, ...]:
        if type(value) not in (list, tuple, np.ndarray):
            raise InputError(name, "must be a list or tuple", type(value).__name__)
        return tuple(each(name, entry) for entry in value)

    return check


def _union(members: tuple[Any, ...]) -> Check:
    """One of several classes by exact type; a number, a tuple of them or nothing where the annotation has it."""
    several = next((check_of(member) for member in members if get_origin(member) is tuple), None)
    single = next((_PLAIN[member] for member in members if member in (float, int)), None)
    classes = frozenset(member for member in members if isinstance(member, type) and member not in (float, int))
    names = ", ".join(member.__name__ for member in members if member in classes and member is not NoneType)

    def check(name: str, value: object) -> Any:
        kind = type(value)
        if kind in classes:
            return value
        if several is not None and kind in (list, tuple, np.ndarray):
            return several(name, value)
        if single is not None:
            return single(name, value)
        raise InputError(name, f"must be one of {names}", kind.__name__)

    return check
