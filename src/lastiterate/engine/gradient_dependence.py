"""Which gradients a record can move, read from the traced program of one record's gradient.

Every number of the program is one of three kinds: ``ZERO`` whatever the record and the parameters
are, ``PUBLIC`` (a function of the parameters and of constants), or ``RECORD``. No value is looked
at but those of constants in the program. An operation that is not named here is never ``ZERO``, and
follows from the record if one of its operands does: a gradient may be called ``RECORD`` though no
record moves it, and never the other way round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

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
