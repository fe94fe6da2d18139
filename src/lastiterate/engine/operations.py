"""What the traced program of one record may be made of: operations that treat every record alone when vectorised.

``jax.vmap`` asks every operation for its own rule. Those of JAX's mathematics keep records apart. A rule that a caller
wrote (``custom_vmap``), code outside of JAX (callbacks, foreign functions), a sum over a named axis or a reference that
outlives the call may be given all records at once, and then no clip bounds what one of them moves.

The list says what is allowed, and what it does not name is refused: libraries register operations of their own (some of
Equinox look at all records), callers may, and new versions of JAX add others. A list of what is forbidden would let all
of these pass until somebody noticed; this one costs a sentence and a line here. Operations are known by name: whoever
gives his own one the name of JAX's could exchange JAX's as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jax.extend.core import Jaxpr, primitives

from lastiterate.errors import InputError

ACROSS = {"psum", "pmax", "pmin", "ppermute", "all_gather", "all_to_all", "ragged_all_to_all", "axis_index"}
"""Read a named axis, which may be that of the records."""
STATEFUL = {"get", "swap", "after_all", "create_token", "rng_uniform", "rng_bit_generator"}
"""Read what other records may have left; bits of ``rng_bit_generator`` follow from the first record's key."""
MORE = {"split", "stack", "unstack", "tile", "empty", "mulhi", "scatter-sub", "ragged_dot_general", "symmetric_product",
        "lu_pivots_to_permutation", "geqrf", "geqp3", "ormqr", "pvary", "reshard", "layout_constraint",
        "optimization_barrier", "random_wrap", "random_unwrap", "random_clone", "platform_index"}
"""Operations of JAX that it does not export."""
ALLOWED = frozenset({getattr(primitives, name).name for name in dir(primitives) if name.endswith("_p")}
                    - ACROSS - STATEFUL | MORE)
KEYS = "key<fry>"
"""The random keys whose bits are those of the key alone when they are vectorised (threefry)."""


def check_operations(jaxpr: Jaxpr, named: str = "loss") -> None:
    """Refuse a program, of one record, that may read other records, show them or leave something behind.

    Equations in all nested programs are looked at. Code of custom derivatives is seen where it has been traced: look at
    the program of the gradient. ``named``: what it is called in an error.
    """
    for eqn in equations(jaxpr):
        name = eqn.primitive.name
        if name not in ALLOWED:
            raise InputError(named, "must be made of operations of JAX that treat every record alone", name,
                             "leave out callbacks, foreign functions, prints and custom_vmap: they are given all "
                             "records of a batch at once")
        for var in (*eqn.invars, *eqn.outvars):
            if str(var.aval.dtype if hasattr(var.aval, "dtype") else "").startswith("key<") and \
                    str(var.aval.dtype) != KEYS:
                raise InputError(named, "must draw bits from keys of threefry, whose bits do not depend on other "
                                 "records", str(var.aval.dtype), 'write jax.random.key(seed, impl="threefry2x32")')
    if jaxpr.effects:
        raise InputError(named, "must leave nothing behind but its result", str(next(iter(jaxpr.effects)))[:120])


def equations(program: Any) -> Iterator[Any]:
    """All equations of a program and of the programs within."""
    for eqn in getattr(program, "jaxpr", program).eqns:
        yield eqn
        for inner in programs(tuple(eqn.params.values())):
            yield from equations(inner)


def programs(value: object) -> Iterator[Any]:
    """The programs among an equation's parameters, closed or not."""
    if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
        yield value
    elif isinstance(value, tuple | list | dict):
        for part in value.values() if isinstance(value, dict) else value:  # pyright: ignore
            yield from programs(part)  # pyright: ignore
