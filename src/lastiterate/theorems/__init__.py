"""The table of theorems, one file per family; a theorem's name never changes.

A theorem is one value, ``register(Theorem(...))``, in the file of its family. Everything that
lists, checks, explains or plots theorems reads ``TABLE`` when it is asked.
"""

from __future__ import annotations

# isort: off  importing a family registers its theorems, in this order
from lastiterate.theorems import (
    composition,
    iteration,
    langevin,
    other_methods,
    sampling,
    shifted_interpolation,
    witnesses,
)

# isort: on
from lastiterate.theorems.theorem import (
    TABLE,
    Applies,
    Assumption,
    Fails,
    Satisfied,
    Theorem,
    Violated,
    close_table,
    find_theorem,
    match,
    register,
)

close_table()
FAMILY_FILES = (
    composition,
    langevin,
    iteration,
    shifted_interpolation,
    sampling,
    other_methods,
    witnesses,
)
"""The files of the families, in the order in which theorems are listed."""

__all__ = [
    "TABLE",
    "Applies",
    "Assumption",
    "Fails",
    "Satisfied",
    "Theorem",
    "Violated",
    "find_theorem",
    "match",
    "register",
]
