"""Losses as traced programs: allowed operations, evaluation, and fingerprints."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import eval_jaxpr  # pyright: ignore
from jax.extend import core
from jax.extend.core import Jaxpr, primitives

from lastiterate.engine.window_gradients import can_execute, convolve, largest
from lastiterate.errors import InputError

# Which gradients a record can move, read from the traced program of one record's gradient.
#
# Every number of the program is one of three kinds: ``ZERO`` whatever the record and the parameters
# are, ``PUBLIC`` (a function of the parameters and of constants), or ``RECORD``. No value is looked
# at but those of constants in the program. An operation that is not named here is never ``ZERO``, and
# follows from the record if one of its operands does: a gradient may be called ``RECORD`` though no
# record moves it, and never the other way round.

ZERO, PUBLIC, RECORD = 0, 1, 2
ANY_ZERO = {"mul", "dot_general", "conv_general_dilated", "and"}
"""Operations whose result is 0 where one operand is."""
ALL_ZERO = {
    "add",
    "add_any",
    "sub",
    "neg",
    "max",
    "min",
    "broadcast_in_dim",
    "reshape",
    "transpose",
    "squeeze",
    "expand_dims",
    "slice",
    "concatenate",
    "pad",
    "rev",
    "split",
    "stack",
    "unstack",
    "tile",
    "copy",
    "copy_p",
    "convert_element_type",
    "reduce_precision",
    "reduce_sum",
    "reduce_max",
    "reduce_min",
    "reduce_window_sum",
    "cumsum",
    "real",
    "imag",
    "conj",
    "abs",
    "sign",
    "sqrt",
    "square",
    "cbrt",
    "sin",
    "tan",
    "asin",
    "atan",
    "sinh",
    "tanh",
    "asinh",
    "expm1",
    "log1p",
    "erf",
    "floor",
    "ceil",
    "round",
    "stop_gradient",
    "optimization_barrier",
    "select_and_scatter_add",
}
"""Operations whose result is 0 where all operands are."""
SOME_ZERO: dict[str, slice] = {
    "gather": slice(0, 1),
    "dynamic_slice": slice(0, 1),
    "dynamic_update_slice": slice(0, 2),
    "div": slice(0, 1),
    "scatter-add": slice(0, 3, 2),
    "scatter": slice(0, 3, 2),
    "select_n": slice(1, None),
}
"""Operations whose result is 0 where these operands are: the others are positions, choices and
divisors."""
CALLS = {
    "jit",
    "pjit",
    "closed_call",
    "core_call",
    "remat2",
    "checkpoint",
    "custom_jvp_call",
    "custom_vjp_call",
}
"""Operations that call a program on their operands."""

Kinds = list[int]


def dependence(program: Any, kinds: Sequence[int]) -> Kinds:
    """Kinds of a closed program's results, of those of its arguments."""
    return _run(program.jaxpr, [constant_kind(value) for value in program.consts], kinds)


def constant_kind(value: Any) -> int:
    """``ZERO`` for numbers that all are 0, otherwise ``PUBLIC``."""
    key = hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
    return PUBLIC if key or np.any(np.asarray(value)) else ZERO


def _run(jaxpr: Any, consts: Sequence[int], kinds: Sequence[int]) -> Kinds:
    known: dict[Any, int] = dict(
        zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *kinds), strict=True)
    )

    def of(var: Any) -> int:
        return constant_kind(var.val) if isinstance(var, core.Literal) else known[var]

    for eqn in jaxpr.eqns:
        known.update(
            zip(eqn.outvars, _of_equation(eqn, [of(var) for var in eqn.invars]), strict=True)
        )
    return [of(var) for var in jaxpr.outvars]


def _of_equation(eqn: Any, kinds: Kinds) -> Kinds:
    name, params, many = eqn.primitive.name, eqn.params, len(eqn.outvars)
    if name == "scan":
        return _of_scan(params, kinds)
    if name == "while":
        return _of_while(params, kinds)
    if name == "cond":
        branches = [dependence(branch, kinds[1:]) for branch in params["branches"]]
        return [_combine_branches(kinds[0], max(each)) for each in zip(*branches, strict=True)]
    inner = params.get("jaxpr", params.get("call_jaxpr")) if name in CALLS else None
    if inner is not None:
        jaxpr = getattr(inner, "jaxpr", inner)
        if len(jaxpr.invars) == len(kinds) and len(jaxpr.outvars) == many:
            return _run(
                jaxpr, [constant_kind(value) for value in getattr(inner, "consts", ())], kinds
            )
    if is_zero(name, params, kinds):
        return [ZERO] * many
    return [max((PUBLIC, *kinds))] * many


def is_zero(name: str, params: dict[str, Any], kinds: Kinds) -> bool:
    """Whether the result of an operation on operands of these kinds is 0."""
    if name in ANY_ZERO:
        return ZERO in kinds
    if name == "integer_pow":
        return params["y"] > 0 and kinds == [ZERO]
    operands = kinds if name in ALL_ZERO else kinds[SOME_ZERO[name]] if name in SOME_ZERO else []
    return bool(operands) and not any(operands)


def _combine_branches(by: int, kind: int) -> int:
    """Combine branches: a value that is 0 in every branch is 0; all others also depend on the
    choice of the branch."""
    return kind if kind == ZERO else max(by, kind)


def _of_scan(params: dict[str, Any], kinds: Kinds) -> Kinds:
    first = params["num_consts"]
    consts, carry, rest = (
        kinds[:first],
        kinds[first : first + params["num_carry"]],
        kinds[first + params["num_carry"] :],
    )
    while True:
        out = dependence(params["jaxpr"], [*consts, *carry, *rest])
        after = [max(pair) for pair in zip(carry, out, strict=False)]
        if after == carry:
            return [*carry, *out[len(carry) :]]
        carry = after


def _of_while(params: dict[str, Any], kinds: Kinds) -> Kinds:
    of_test, of_body = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    carry = kinds[of_body:]
    while True:
        (test,) = dependence(params["cond_jaxpr"], [*kinds[:of_test], *carry])
        out = dependence(params["body_jaxpr"], [*kinds[of_test:of_body], *carry])
        after = [
            max(held, _combine_branches(test, own)) for held, own in zip(carry, out, strict=True)
        ]
        if after == carry:
            return carry
        carry = after


# What the traced program of one record may be made of: operations that treat every record alone
# when vectorised. ``jax.vmap`` asks every operation for its own rule. Those of JAX's mathematics
# keep records apart. A rule that a caller wrote (``custom_vmap``), code outside of JAX (callbacks,
# foreign functions), a sum over a named axis or a reference that outlives the call may be given all
# records at once, and then no clip bounds what one of them moves. The list says what is allowed,
# and what it does not name is refused: libraries register operations of their own (some of Equinox
# look at all records), callers may, and new versions of JAX add others. A list of what is forbidden
# would let all of these pass until somebody noticed; this one costs a sentence and a line here.
# Operations are known by name: whoever gives his own one the name of JAX's could exchange JAX's as
# well.

ACROSS = {
    "psum",
    "pmax",
    "pmin",
    "ppermute",
    "all_gather",
    "all_to_all",
    "ragged_all_to_all",
    "axis_index",
}
"""Read a named axis, which may be that of the records."""
STATEFUL = {"get", "swap", "after_all", "create_token", "rng_uniform", "rng_bit_generator"}
"""Read what other records may have left; bits of ``rng_bit_generator`` follow from the first
record's key."""
MORE = {
    "split",
    "stack",
    "unstack",
    "tile",
    "empty",
    "mulhi",
    "scatter-sub",
    "ragged_dot_general",
    "symmetric_product",
    "lu_pivots_to_permutation",
    "geqrf",
    "geqp3",
    "ormqr",
    "pvary",
    "reshard",
    "layout_constraint",
    "optimization_barrier",
    "random_wrap",
    "random_unwrap",
    "random_clone",
    "platform_index",
}
"""Operations of JAX that it does not export."""
ALLOWED = frozenset(
    {getattr(primitives, name).name for name in dir(primitives) if name.endswith("_p")}
    - ACROSS
    - STATEFUL
    | MORE
)
KEYS = "key<fry>"
"""The random keys whose bits are those of the key alone when they are vectorised (threefry)."""


def check_operations(jaxpr: Jaxpr, named: str = "loss") -> None:
    """Refuse a program, of one record, that may read other records, show them or leave something
    behind.

    Equations in all nested programs are looked at. Code of custom derivatives is seen where it has
    been traced: look at the program of the gradient. ``named``: what it is called in an error.
    """
    for eqn in equations(jaxpr):
        name = eqn.primitive.name
        if name not in ALLOWED:
            raise InputError(
                named,
                "must be made of operations of JAX that treat every record alone",
                name,
                "leave out callbacks, foreign functions, prints and custom_vmap: they are given "
                "all "
                "records of a batch at once",
            )
        for var in (*eqn.invars, *eqn.outvars):
            if (
                str(var.aval.dtype if hasattr(var.aval, "dtype") else "").startswith("key<")
                and str(var.aval.dtype) != KEYS
            ):
                raise InputError(
                    named,
                    "must draw bits from keys of threefry, whose bits do not depend on other "
                    "records",
                    str(var.aval.dtype),
                    'write jax.random.key(seed, impl="threefry2x32")',
                )
    if jaxpr.effects:
        raise InputError(
            named, "must leave nothing behind but its result", str(next(iter(jaxpr.effects)))[:120]
        )


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


# What distinguishes one traced loss from another: the text of its program, and the bytes of every
# constant in it.

ADDRESS = re.compile(r"0x[0-9a-f]+")
"""The address of an object, which is no part of its identity."""


def fingerprint(program: Any, *bound: object) -> str:
    """Return the SHA-256 of a closed program and of the ``repr`` of everything else that is bound.

    **Guarantee:** programs of one fingerprint compute the same, under the same versions of JAX:
    operations, their parameters, literals and constants are all in it. Code of custom derivatives
    is in it where it has been traced: give the program of the gradient.
    """
    hasher = hashlib.sha256(ADDRESS.sub("", f"{program.jaxpr} {bound!r}").encode())
    for value in constants(program):
        array = np.asarray(jax.random.key_data(value) if _is_key(value) else value)
        hasher.update(f"{array.dtype} {array.shape};".encode() + array.tobytes())
    return hasher.hexdigest()


def _is_key(value: Any) -> bool:
    return hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def constants(program: Any) -> Iterator[Any]:
    """Yield all constants that a program holds."""
    yield from program.consts
    for eqn in equations(program):
        yield from (var.val for var in eqn.invars if hasattr(var, "val"))
        yield from (
            value for value in eqn.params.values() if isinstance(value, np.ndarray | jax.Array)
        )
        for inner in programs(tuple(eqn.params.values())):
            yield from getattr(inner, "consts", ())


# A loss as a traced program, evaluated equation by equation, so that some of them can be executed
# in another way.

Tag = tuple[int, int]
"""Which weight a variable is, and 1 where it is transposed."""


class Walk:
    """Evaluates a program; products with tapped weights get zeros added and their inputs written
    down.

    ``zeros``: for every tapped weight, what is added to the result of its one product.
    """

    def __init__(self, zeros: dict[int, Any]) -> None:
        self.zeros, self.inputs = zeros, dict[int, Any]()

    def run(
        self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any], tags: Sequence[Tag | None]
    ) -> list[Any]:
        values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))
        names = {var: tag for var, tag in zip(jaxpr.invars, tags, strict=True) if tag is not None}
        for eqn in jaxpr.eqns:
            operands = [_value(values, v) for v in eqn.invars]
            held = [None if isinstance(v, core.Literal) else names.get(v) for v in eqn.invars]
            tapped = next((tag for tag in held if tag is not None and tag[0] in self.zeros), None)
            if is_inlined(eqn):
                inner = eqn.params["jaxpr"]
                out = self.run(inner.jaxpr, inner.consts, operands, held)
            else:
                out = _apply(jaxpr, eqn, operands)
                if tapped is not None and eqn.primitive.name == "transpose":
                    names[eqn.outvars[0]] = (tapped[0], 1 - tapped[1])
                elif tapped is not None:
                    self.inputs[tapped[0]] = operands[1 - held.index(tapped)]
                    out = [out[0] + self.zeros[tapped[0]]]
            values.update(zip(eqn.outvars, out, strict=True))
        return [_value(values, v) for v in jaxpr.outvars]


_HERE: dict[str, Callable[..., Any]] = {
    "conv_general_dilated": convolve,
    "reduce_window_max": largest,
}


def _apply(jaxpr: core.Jaxpr, eqn: Any, operands: list[Any]) -> list[Any]:
    """One equation's results, through a jaxpr of its own, so that rules of custom derivatives are
    kept."""
    here, params = _HERE.get(eqn.primitive.name), eqn.params
    if here is not None and can_execute(
        eqn.primitive.name, params, operands, eqn.outvars[0].aval.size
    ):
        return [here(*operands, params)]
    given = {
        v: value
        for v, value in zip(eqn.invars, operands, strict=True)
        if not isinstance(v, core.Literal)
    }
    alone = jaxpr.replace(  # pyright: ignore
        constvars=(),
        invars=[*given],
        outvars=[*eqn.outvars],
        eqns=[eqn],
        debug_info=jaxpr.debug_info._replace(arg_names=None, result_paths=None),
    )
    return eval_jaxpr(alone, (), *given.values())


def _value(values: dict[Any, Any], var: object) -> Any:
    return var.val if isinstance(var, core.Literal) else values[var]


def is_inlined(eqn: core.JaxprEqn) -> bool:
    """Whether an equation only calls a jitted function."""
    return eqn.primitive.name in ("jit", "pjit")


def program(function: Callable[..., Any], *args: object) -> tuple[Any, Any]:
    """The traced function of the flat leaves of its arguments, and how its results are nested."""
    leaves, tree = jax.tree.flatten(args)

    def flat_function(*flat: Any) -> Any:
        return function(*jax.tree.unflatten(tree, flat))

    closed, shape = jax.make_jaxpr(flat_function, return_shape=True)(*leaves)
    return closed, jax.tree.structure(shape)


def alone(function: Callable[..., Any], *args: object) -> Callable[..., Any]:
    """``function`` of one record as a program, traced for arguments like ``args`` and checked: it
    may be vectorised.

    **Guarantee:** no code of the caller's runs when the program is vectorised: each of its
    operations treats every record alone (see ``check_operations``).
    """
    closed, form = program(function, *args)
    check_operations(closed.jaxpr)
    return as_function(closed, form)


def as_function(closed: Any, form: Any) -> Callable[..., Any]:
    """A program as a function of nested arguments, whose results are nested as ``form`` says."""
    return lambda *given: jax.tree.unflatten(
        form, eval_jaxpr(closed.jaxpr, closed.consts, *jax.tree.leaves(given))
    )


def quick(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function of arrays, its convolutions and maxima in the form that is quick inside of
    loops."""

    def call(*args: object) -> Any:
        closed, form = program(function, *args)
        leaves = jax.tree.leaves(args)
        return jax.tree.unflatten(
            form, Walk({}).run(closed.jaxpr, closed.consts, leaves, [None] * len(leaves))
        )

    return call
