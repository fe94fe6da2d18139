"""Optimizers in optax's form as update rules, and their coupled weight decay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from lastiterate.engine.parameters import Form
from lastiterate.engine.tracing import ALLOWED, STATEFUL, constants, equations, fingerprint
from lastiterate.errors import InputError, first_line
from lastiterate.run.run import Run
from lastiterate.run.updates import Memory, PostProcessing, UpdateRule

# Weight decay that an optimizer adds to the gradients its running means are made of, found by
# trying it.

Way = tuple[Callable[[Any], Memory], Callable[..., tuple[Any, Memory]]]
"""``init`` and ``update`` of a rule."""
TRIED, NUMBERS = 256, 10**8
"""Steps that are tried at most, and numbers of all of them: what gathers gradients for longer is
not seen through."""
LARGE = 1e3
"""Factor of the parameters, so that steps of one length, as Adam makes them, leave them away from
0."""


def is_coupled(run: Run) -> bool:
    """Whether the run says that weight decay is a part of the gradients that running means are made
    of."""
    return isinstance(run.optimizer, PostProcessing) and run.optimizer.decay == "coupled"


def check_decay(
    ways: tuple[Way, Way],
    theta: Any,
    cut: Callable[[Any], list[Any]],
    steps: int,
    remedy: str,
    name: str,
) -> None:
    """Refuse a rule of which gradients of 0 leave in its memory what is made of the parameters
    theta (d,), and is no mean of parameters, within the first ``steps`` steps.

    ``ways``: of one rule twice, which may hold what it stands at. ``cut``: the arrays of a vector
    of parameters. ``name``: what a certificate calls the rule.
    """
    large = LARGE * np.where(np.asarray(theta) == 0, 1.0, np.asarray(theta))
    tried = max(1, min(steps, TRIED, NUMBERS // large.size))
    left = [
        _memory_after(way, start, cut, tried)
        for way, start in zip(ways, (large, -2 * large), strict=True)
    ]
    for both in zip(*left, strict=True):
        if any(
            not np.array_equal(held, again, equal_nan=True)
            for held, again in zip(*both, strict=True)
        ):
            raise InputError(
                "optimizer",
                "adds weight decay to the noisy gradients that its running means are made of",
                None,
                f'{remedy}, or say Run(optimizer=li.PostProcessing({name!r}, "coupled"))',
            )


def _memory_after(
    way: Way, theta: Any, cut: Callable[[Any], list[Any]], tried: int
) -> Iterator[list[np.ndarray]]:
    """The memory after 1, 2, ... steps of gradients 0, but for what lies between the parameters
    seen so far, is as it was in the beginning, or is no array like them."""
    memory = first = way[0](theta)
    low = high = theta
    for k in range(tried):
        direction, memory = way[1](np.zeros_like(theta), memory, theta, k)
        theta = theta - np.asarray(direction)
        low, high = np.minimum(low, theta), np.maximum(high, theta)
        seen = [
            (np.asarray(one, np.float64), np.asarray(other, np.float64))
            for one, other in zip((*cut(low), low), (*cut(high), high), strict=True)
        ]
        yield [
            _find_unexplained(new, first[i] if len(first) == len(memory) else None, seen)
            for i, new in enumerate(memory)
        ]


def _find_unexplained(new: Any, old: Any, seen: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """An array of the memory, empty where it says nothing of weight decay."""
    shape, kind = np.shape(new), np.asarray(new).dtype
    ends = [both for both in seen if both[0].shape == shape]
    if not (shape and ends and jnp.issubdtype(kind, jnp.floating)):
        return np.zeros(0)
    held, slack = np.asarray(new, np.float64), 4 * float(np.spacing(np.ones(1, kind))[0])
    same = old is not None and np.array_equal(held, np.asarray(old, np.float64), equal_nan=True)
    between = any(
        bool(((held >= low - slack * np.abs(low)) & (held <= high + slack * np.abs(high))).all())
        for low, high in ends
    )
    return np.zeros(0) if same or between else held


# Optimizers in the form of optax as the rule of a run: ``init(params)`` and ``update(gradient,
# state, params)``. What they make of noisy gradients is post-processing, if that is all they look
# at. Nobody can prove it of a function; what can be seen in its traced program is refused: code
# outside of JAX, and arrays that could be records.

FEW = 64
"""Numbers that an array of the optimizer's own may hold, such as a schedule's; more only in the
shape of parameters."""


@runtime_checkable
class GradientTransformation(Protocol):
    """The interface that optax calls by this name; optax itself is not needed here."""

    init: Any
    update: Any


@dataclass(frozen=True)
class OptimizerRule(UpdateRule):
    """``transformation`` on parameters of a ``form``; its state is remembered as the arrays in it."""

    linear: ClassVar[bool] = False
    word: ClassVar[str] = PostProcessing.word
    transformation: GradientTransformation
    form: Form

    def _to_tree(self, theta: jax.Array) -> Any:
        """Return the parameters as the caller nests them; None instead of anything that is no
        array."""
        rest = iter(self.form.arrays(theta, exact=True))
        return jax.tree.unflatten(
            self.form.tree, [next(rest) if leaf is None else None for leaf in self.form.fixed]
        )

    @cached_property
    def state_tree(self) -> Any:
        """The tree structure of the optimizer's state."""
        return jax.tree.structure(
            jax.eval_shape(
                lambda theta: self.transformation.init(self._to_tree(theta)), self._vector
            )
        )

    @property
    def _vector(self) -> Any:
        return jax.ShapeDtypeStruct((self.form.size,), np.float64)

    def init(self, theta: jax.Array) -> Memory:
        return tuple(
            jnp.array(leaf)
            for leaf in jax.tree.leaves(self.transformation.init(self._to_tree(theta)))
        )

    def update(
        self, gradient: jax.Array, memory: Memory, theta: jax.Array, k: int | jax.Array
    ) -> tuple[Any, Memory]:
        """The engine goes against a direction, and the optimizer says what is added."""
        state = jax.tree.unflatten(self.state_tree, memory)
        added, after = self.transformation.update(
            self._to_tree(gradient), state, self._to_tree(theta)
        )
        kept = tuple(
            jnp.asarray(leaf).astype(old.dtype)
            for leaf, old in zip(jax.tree.leaves(after), memory, strict=True)
        )
        return -self.form.vector(added), kept

    @cached_property
    def programs(self) -> tuple[Any, Any]:
        """Its two functions, traced."""
        first = jax.make_jaxpr(self.init)(self._vector)
        return first, jax.make_jaxpr(lambda theta: self.update(theta, self.init(theta), theta, 0))(
            self._vector
        )

    @property
    def identity(self) -> str:
        """Its identity in a checkpoint: the text of its programs, and their constants."""
        return "".join(fingerprint(each, str(self.state_tree)) for each in self.programs)


def rule_of(
    optimizer: GradientTransformation | None, form: Form, params: object, *, tried: int = 0
) -> OptimizerRule | None:
    """Return the update rule of an optimizer, tried on synthetic gradients; None for None.

    Errors: what is no optimizer of gradients alone, what looks at more than them, and weight decay
    in running means that shows within ``tried`` steps.
    """
    if optimizer is None:
        return None
    if not isinstance(optimizer, GradientTransformation) or isinstance(optimizer, type):  # pyright: ignore
        raise InputError(
            "optimizer",
            "must have init and update, as optax has them",
            type(optimizer).__name__,
            "give optax.adam(1e-3), or another gradient transformation",
        )
    rule = OptimizerRule(optimizer, form)
    _check_programs(rule)
    if tried:
        way = rule.init, jax.jit(rule.update)
        check_decay(
            (way, way),
            form.vector(params),
            lambda theta: form.arrays(theta, exact=True),
            tried,
            "decay weights apart, as adamw does",
            "an optax transformation",
        )
    return rule


def _check_programs(rule: OptimizerRule) -> None:
    try:
        programs = rule.programs
    except (TypeError, ValueError, AttributeError, KeyError, IndexError, RuntimeError) as error:
        raise InputError(
            "optimizer",
            "must make a step of gradients, its own state and parameters alone",
            first_line(error),
            "line searches, LBFGS and schedules that follow the loss look at the data again",
        ) from None
    added, *state = programs[1].out_avals
    if added.shape != (rule.form.size,):
        raise InputError("optimizer", "must return one number for each parameter", added.shape)
    if any(not jnp.issubdtype(leaf.dtype, jnp.number) and leaf.dtype != bool for leaf in state):
        raise InputError(
            "optimizer",
            "must have a state of numbers",
            str([str(leaf.dtype) for leaf in state])[:80],
            "leave out what draws random numbers",
        )
    for program in programs:
        for eqn in equations(program):
            if eqn.primitive.name not in ALLOWED | STATEFUL:
                raise InputError(
                    "optimizer",
                    "must be made of operations of JAX: other code may look at records",
                    eqn.primitive.name,
                    "leave out callbacks, prints and foreign functions",
                )
        for value in constants(program):
            if np.size(value) > FEW and np.shape(value) not in (
                *rule.form.shapes,
                (rule.form.size,),
            ):
                raise InputError(
                    "optimizer",
                    f"must hold no array of its own of more than {FEW} numbers, but in the "
                    "shape of parameters: it could be records",
                    np.shape(value),
                )
