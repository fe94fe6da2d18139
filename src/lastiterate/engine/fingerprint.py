"""What distinguishes one traced loss from another: the text of its program, and the bytes of every constant in it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lastiterate.engine.operations import equations, programs

ADDRESS = re.compile(r"0x[0-9a-f]+")
"""Where an object lies in memory is not what it is."""


def fingerprint(program: Any, *beside: object) -> str:
    """SHA-256 of a closed program, and of the ``repr`` of what else is bound.

    **Guarantee:** programs of one fingerprint compute the same, under the same versions of JAX: operations, their
    parameters, literals and constants are all in it. Code of custom derivatives is in it where it has been traced:
    give the program of the gradient.
    """
    hasher = hashlib.sha256(ADDRESS.sub("", f"{program.jaxpr} {beside!r}").encode())
    for value in constants(program):
        array = np.asarray(jax.random.key_data(value) if _is_key(value) else value)
        hasher.update(f"{array.dtype} {array.shape};".encode() + array.tobytes())
    return hasher.hexdigest()


def _is_key(value: Any) -> bool:
    return hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def constants(program: Any) -> Iterator[Any]:
    """All numbers that a program holds."""
    yield from program.consts
    for eqn in equations(program):
        yield from (var.val for var in eqn.invars if hasattr(var, "val"))
        yield from (value for value in eqn.params.values() if isinstance(value, np.ndarray | jax.Array))
        for inner in programs(tuple(eqn.params.values())):
            yield from getattr(inner, "consts", ())
