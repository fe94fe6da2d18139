"""The table of theorems, one file per family; a theorem's name never changes.

A theorem is one value, ``register(Theorem(...))``, in the file of its family. Everything that lists, checks, explains or
plots theorems reads ``TABLE`` when it is asked.
"""

from __future__ import annotations

from lastiterate.theorems import (  # noqa: F401  importing a family registers its theorems, in this order
    composition,
    langevin,
    sgld,
    iteration,
    shifted_interpolation,
    sampling,
    last_iterate_sampling,
    other_methods,
    witnesses,
)
from lastiterate.theorems.theorem import (
    TABLE,
    Applies,
    Fails,
    Theorem,
    find_theorem,
    match,
    register,
)

__all__ = ["TABLE", "Applies", "Fails", "Theorem", "find_theorem", "match", "register"]
