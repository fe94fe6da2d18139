"""Optimizers in the form of optax as the rule of a run: ``init(params)`` and ``update(gradient, state, params)``.

What they make of noisy gradients is post-processing, if that is all they look at. Nobody can prove it of a function;
what can be seen in its traced program is refused: code outside of JAX, and arrays that could be records.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from lastiterate.engine.coupled_decay import check_decay
from lastiterate.engine.fingerprint import constants, fingerprint
from lastiterate.engine.operations import ALLOWED, STATEFUL, equations
from lastiterate.engine.parameter_form import Form
from lastiterate.errors import InputError
from lastiterate.run.update_rule import Memory, UpdateRule
from lastiterate.run.updates import PostProcessing

FEW = 64
"""Numbers that an array of the optimizer's own may hold, such as a schedule's; more only in the shape of parameters."""


@runtime_checkable
class GradientTransformation(Protocol):
    """What optax calls by this name; optax itself is not needed here."""

    init: Any
    update: Any


@dataclass(frozen=True)
class OptimizerRule(UpdateRule):
    """``transformation`` on parameters of a ``form``; its state is remembered as the arrays in it."""

    linear: ClassVar[bool] = False
    word: ClassVar[str] = PostProcessing.word
    transformation: GradientTransformation
    form: Form

    def _structured(self, theta: jax.Array) -> Any:
        """Parameters as the caller nests them; None in the place of what is no array."""
        rest = iter(self.form.arrays(theta, exact=True))
        return jax.tree.unflatten(self.form.tree, [next(rest) if leaf is None else None for leaf in self.form.fixed])

    @cached_property
    def state_tree(self) -> Any:
        """How the optimizer's state is nested."""
        return jax.tree.structure(jax.eval_shape(
            lambda theta: self.transformation.init(self._structured(theta)), self._vector))

    @property
    def _vector(self) -> Any:
        return jax.ShapeDtypeStruct((self.form.size,), np.float64)

    def init(self, theta: jax.Array) -> Memory:
        return tuple(jnp.array(leaf) for leaf in jax.tree.leaves(self.transformation.init(self._structured(theta))))

    def update(self, gradient: jax.Array, memory: Memory, theta: jax.Array, k: int | jax.Array) -> tuple[Any, Memory]:
        """The engine goes against a direction, and the optimizer says what is added."""
        state = jax.tree.unflatten(self.state_tree, memory)
        added, after = self.transformation.update(self._structured(gradient), state, self._structured(theta))
        kept = tuple(jnp.asarray(leaf).astype(old.dtype)
                     for leaf, old in zip(jax.tree.leaves(after), memory, strict=True))
        return -self.form.vector(added), kept

    @cached_property
    def programs(self) -> tuple[Any, Any]:
        """Its two functions, traced."""
        first = jax.make_jaxpr(self.init)(self._vector)
        return first, jax.make_jaxpr(lambda theta: self.update(theta, self.init(theta), theta, 0))(self._vector)

    @property
    def identity(self) -> str:
        """What a checkpoint knows of it: the text of its programs, and their constants."""
        return "".join(fingerprint(each, str(self.state_tree)) for each in self.programs)


def rule_of(optimizer: GradientTransformation | None, form: Form, params: object, *,
            tried: int = 0) -> OptimizerRule | None:
    """The rule that an optimizer is, tried on made-up gradients; None for None.

    Errors: what is no optimizer of gradients alone, what looks at more than them, and weight decay in running means
    that shows within ``tried`` steps.
    """
    if optimizer is None:
        return None
    if not isinstance(optimizer, GradientTransformation) or isinstance(optimizer, type):  # pyright: ignore
        raise InputError("optimizer", "must have init and update, as optax has them", type(optimizer).__name__,
                         "give optax.adam(1e-3), or another gradient transformation")
    rule = OptimizerRule(optimizer, form)
    _check_programs(rule)
    if tried:
        way = rule.init, jax.jit(rule.update)
        check_decay((way, way), form.vector(params), lambda theta: form.arrays(theta, exact=True), tried,
                    "decay weights apart, as adamw does")
    return rule


def _check_programs(rule: OptimizerRule) -> None:
    try:
        programs = rule.programs
    except (TypeError, ValueError, AttributeError, KeyError, IndexError, RuntimeError) as error:
        raise InputError("optimizer", "must make a step of gradients, its own state and parameters alone",
                         str(error).splitlines()[0][:120],
                         "line searches, LBFGS and schedules that follow the loss look at the data again") from None
    added, *state = programs[1].out_avals
    if added.shape != (rule.form.size,):
        raise InputError("optimizer", "must return one number for each parameter", added.shape)
    if any(not jnp.issubdtype(leaf.dtype, jnp.number) and leaf.dtype != bool for leaf in state):
        raise InputError("optimizer", "must have a state of numbers", str([str(leaf.dtype) for leaf in state])[:80],
                         "leave out what draws random numbers")
    for program in programs:
        for eqn in equations(program):
            if eqn.primitive.name not in ALLOWED | STATEFUL:
                raise InputError("optimizer", "must be made of operations of JAX: other code may look at records",
                                 eqn.primitive.name, "leave out callbacks, prints and foreign functions")
        for value in constants(program):
            if np.size(value) > FEW and np.shape(value) not in (*rule.form.shapes, (rule.form.size,)):
                raise InputError("optimizer", f"must hold no array of its own of more than {FEW} numbers, but in the "
                                 "shape of parameters: it could be records", np.shape(value))
