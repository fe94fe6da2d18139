"""A loss as a traced program, evaluated equation by equation, so that some of them can be executed in another way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.core import eval_jaxpr  # pyright: ignore
from jax.extend import core

from lastiterate.engine.convolution import convolved, handled, largest
from lastiterate.engine.operations import check_operations

Tag = tuple[int, int]
"""Which weight a variable is, and 1 where it is transposed."""


class Walk:
    """Evaluates a program; products with tapped weights get zeros added and their inputs written down.

    ``zeros``: for every tapped weight, what is added to the result of its one product.
    """

    def __init__(self, zeros: dict[int, Any]) -> None:
        self.zeros, self.inputs = zeros, dict[int, Any]()

    def run(self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any], tags: Sequence[Tag | None]) -> list[Any]:
        values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))
        names = {var: tag for var, tag in zip(jaxpr.invars, tags, strict=True) if tag is not None}
        for eqn in jaxpr.eqns:
            operands = [_value(values, v) for v in eqn.invars]
            held = [None if isinstance(v, core.Literal) else names.get(v) for v in eqn.invars]
            tapped = next((tag for tag in held if tag is not None and tag[0] in self.zeros), None)
            if inlined(eqn):
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


_HERE: dict[str, Callable[..., Any]] = {"conv_general_dilated": convolved, "reduce_window_max": largest}


def _apply(jaxpr: core.Jaxpr, eqn: Any, operands: list[Any]) -> list[Any]:
    """One equation's results, through a jaxpr of its own, so that rules of custom derivatives are kept."""
    here, params = _HERE.get(eqn.primitive.name), eqn.params
    if here is not None and handled(eqn.primitive.name, params, operands, eqn.outvars[0].aval.size):
        return [here(*operands, params)]
    given = {v: value for v, value in zip(eqn.invars, operands, strict=True) if not isinstance(v, core.Literal)}
    alone = jaxpr.replace(constvars=(), invars=[*given], outvars=[*eqn.outvars], eqns=[eqn],  # pyright: ignore
                          debug_info=jaxpr.debug_info._replace(arg_names=None, result_paths=None))
    return eval_jaxpr(alone, (), *given.values())


def _value(values: dict[Any, Any], var: object) -> Any:
    return var.val if isinstance(var, core.Literal) else values[var]


def inlined(eqn: core.JaxprEqn) -> bool:
    """Whether an equation only calls a jitted function."""
    return eqn.primitive.name in ("jit", "pjit")


def program(function: Callable[..., Any], *args: object) -> tuple[Any, Any]:
    """The traced function of the flat leaves of its arguments, and how its results are nested."""
    leaves, tree = jax.tree.flatten(args)
    closed, shape = jax.make_jaxpr(lambda *flat: function(*jax.tree.unflatten(tree, flat)), return_shape=True)(*leaves)  # pyright: ignore
    return closed, jax.tree.structure(shape)


def alone(function: Callable[..., Any], *args: object) -> Callable[..., Any]:
    """``function`` of one record as a program, traced for arguments like ``args`` and checked: it may be vectorised.

    **Guarantee:** no code of the caller's runs when the program is vectorised: each of its operations treats every
    record alone (see ``check_operations``).
    """
    closed, form = program(function, *args)
    check_operations(closed.jaxpr)
    return evaluated(closed, form)


def evaluated(closed: Any, form: Any) -> Callable[..., Any]:
    """A program as a function of nested arguments, whose results are nested as ``form`` says."""
    return lambda *given: jax.tree.unflatten(form, eval_jaxpr(closed.jaxpr, closed.consts, *jax.tree.leaves(given)))


def quick(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function of arrays, its convolutions and maxima in the form that is quick inside of loops."""
    def called(*args: object) -> Any:
        closed, form = program(function, *args)
        leaves = jax.tree.leaves(args)
        return jax.tree.unflatten(form, Walk({}).run(closed.jaxpr, closed.consts, leaves, [None] * len(leaves)))

    return called
