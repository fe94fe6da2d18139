"""Public names are listed once, in the stub of a package's ``__init__``, and are looked up on first
use (PEP 562).

A line ``from lastiterate.run.run import Run as Run`` of the stub is at the same time what type
checkers read, what ``__all__`` lists and where the name is found. Nothing is imported before it is
asked for.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

_LINE = re.compile(r"^from (lastiterate[\w.]*) import (\w+) as \2$", re.MULTILINE)


def attach(
    package: str, file: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package, from the stub of ``file``,
    its ``__init__.py``."""
    with open(f"{file.removesuffix('.py')}.pyi", encoding="utf-8") as stub:
        homes = {name: module for module, name in _LINE.findall(stub.read())}

    def lookup(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = _of(homes[name], name)
        setattr(sys.modules[package], name, value)
        return value

    return lookup, lambda: sorted({*vars(sys.modules[package]), *homes}), sorted(homes)


def _of(module: str, name: str) -> Any:
    """A name of a module, or a module of a package."""
    home = import_module(module)
    if hasattr(home, "__path__") and name not in vars(home):
        return import_module(f"{module}.{name}")
    return getattr(home, name)
