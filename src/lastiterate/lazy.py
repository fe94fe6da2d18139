"""Public names are listed once, in the stub of a package's ``__init__``, and are looked up on first
use (PEP 562).

A line ``from lastiterate.run.run import Run as Run`` of the stub is at the same time what type
checkers read, what ``__all__`` lists and where the name is found. Nothing is imported before it is
asked for.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])
_RENAMED = re.compile(r"^# renamed: (\w+) -> (\w+)$", re.MULTILINE)
"""Comments of a stub that give the new name of a public one; the old name warns."""
_LINE = re.compile(r"^from (lastiterate[\w.]*) import (\w+) as \2$", re.MULTILINE)


def attach(
    package: str, file: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package, from the stub of ``file``,
    its ``__init__.py``."""
    with open(f"{file.removesuffix('.py')}.pyi", encoding="utf-8") as stub:
        text = stub.read()
    homes = {name: module for module, name in _LINE.findall(text)}
    renamed = dict(_RENAMED.findall(text))

    def lookup(name: str) -> Any:
        if name in renamed:
            _warn(f"{package}.{name}", renamed[name], 3)
            return lookup(renamed[name])
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = _of(homes[name], name)
        setattr(sys.modules[package], name, value)
        return value

    return lookup, lambda: sorted({*vars(sys.modules[package]), *homes}), sorted(homes)


class RenamedAttribute:
    """An attribute or method of a public class by its old name, which warns."""

    def __init__(self, new: str) -> None:
        self.new = new

    def __set_name__(self, owner: type, name: str) -> None:
        self.old = f"{owner.__name__}.{name}"

    def __get__(self, value: object, owner: type) -> Any:
        _warn(self.old, self.new, 3)
        return getattr(owner if value is None else value, self.new)


def accept_old_names(called: str, **renamed: str) -> Callable[[Function], Function]:
    """Let a function take arguments by their old names too, with a warning; ``called`` names it."""

    def decorate(function: Function) -> Function:
        @wraps(function)
        def accept(*args: Any, **named: Any) -> Any:
            for old in [name for name in named if name in renamed]:
                if named.get(renamed[old]):
                    break  # both were given: the function refuses the old one
                _warn(f"{called}({old}=)", renamed[old], 3)
                named[renamed[old]] = named.pop(old)
            return function(*args, **named)

        return cast("Function", accept)

    return decorate


def rename_arguments(kind: type, **renamed: str) -> None:
    """Let a class take arguments by their old names too."""
    made = getattr(kind, "__init__")  # noqa: B009  # pyright: of an instance it would be unsafe
    setattr(kind, "__init__", accept_old_names(kind.__name__, **renamed)(made))  # noqa: B010


def _warn(old: str, new: str, level: int) -> None:
    words = f"{old} is called {new}; the old name goes with the next minor version"
    warnings.warn(words, DeprecationWarning, stacklevel=level)


def _of(module: str, name: str) -> Any:
    """A name of a module, or a module of a package."""
    try:
        home = import_module(module)
    except ModuleNotFoundError as error:
        from lastiterate.errors import name_missing_library, refuse_missing_library

        if (library := name_missing_library(error)) is None:
            raise
        said = str(refuse_missing_library(library))
        raise ModuleNotFoundError(said, name=error.name) from None
    if hasattr(home, "__path__") and name not in vars(home):
        return import_module(f"{module}.{name}")
    return getattr(home, name)
