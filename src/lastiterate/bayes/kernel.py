"""SGLD and cyclic SGLD as samplers for any log-density, on JAX: a kernel is a pair ``init``, ``step``.

Welling and Teh 2011; the cyclic form as in Heller and Fetaya 2023. **No privacy**: an iterate of unclipped SGLD has no
guarantee, whatever the posterior has (see ``interim_breach``); ``clipped_sgld`` describes a run that has one.
"""

# pyright: basic
# jax leaves the types of its trees open
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from lastiterate.errors import InputError
from lastiterate.run.validate import positive, whole

if TYPE_CHECKING:
    from jax import Array

Tree = object
"""A nested structure of arrays."""


class ChainState(NamedTuple):
    """theta (any pytree), the number of steps done, the order of the records, shape (n,) (empty if drawn afresh)."""

    theta: Tree
    done: Array
    order: Array


@dataclass(frozen=True)
class Kernel:
    """``init(theta, key) -> ChainState``, ``step(state, key, data) -> ChainState``; data has the leading axis n."""

    init: Callable[[Tree, Array], ChainState]
    step: Callable[[ChainState, Array, Tree], ChainState]


Density = Callable[..., "Array"]


def sgld(log_prior: Density, log_likelihood: Density, *, n: int, step_size: float, batch: int = 1) -> Kernel:
    """Batches drawn afresh at every step, uniformly with replacement.

    ``log_prior(theta)`` and ``log_likelihood(theta, record)`` are scalars, the latter for one record of the data.
    """
    import jax
    import jax.numpy as jnp

    move = _move(log_prior, log_likelihood, n, step_size, batch)

    def init(theta: Tree, key: Array) -> ChainState:
        return ChainState(theta, jnp.int32(0), jnp.zeros(0, dtype=jnp.int32))

    def step(state: ChainState, key: Array, data: Tree) -> ChainState:
        draw, noise = jax.random.split(key)
        chosen = jax.random.randint(draw, (batch,), 0, n)
        return ChainState(move(state.theta, chosen, noise, data), state.done + 1, state.order)

    return Kernel(init, step)


def cyclic_sgld(log_prior: Density, log_likelihood: Density, *, n: int, step_size: float, batch: int = 1) -> Kernel:
    """One random order of the records, drawn by ``init``, then the same batches in that order in every pass."""
    import jax
    import jax.numpy as jnp

    move = _move(log_prior, log_likelihood, n, step_size, batch)
    if n % batch:
        raise InputError("batch", f"must divide n = {n}", batch, "every pass must hold every record once")

    def init(theta: Tree, key: Array) -> ChainState:
        return ChainState(theta, jnp.int32(0), jax.random.permutation(key, n))

    def step(state: ChainState, key: Array, data: Tree) -> ChainState:
        places = (state.done % (n // batch)) * batch + jnp.arange(batch)
        return ChainState(move(state.theta, state.order[places], key, data), state.done + 1, state.order)

    return Kernel(init, step)


def sample(kernel: Kernel, theta: Tree, data: Tree, steps: int, key: Array) -> ChainState:
    """The state after ``steps`` steps, in one ``lax.scan``."""
    import jax

    first, rest = jax.random.split(key)
    keys = jax.random.split(rest, steps)
    return jax.lax.scan(lambda state, each: (kernel.step(state, each, data), None), kernel.init(theta, first), keys)[0]


def _move(log_prior: Density, log_likelihood: Density, n: int, step_size: float,
          batch: int) -> Callable[[Tree, Array, Array, Tree], Tree]:
    """theta + (eta/2) (grad log prior + (n/b) sum of grad log likelihood) + sqrt(eta) N(0, I)."""
    import jax
    import jax.numpy as jnp

    whole("n", n)
    whole("batch", batch, most=n)
    positive("step_size", step_size)

    def total(theta: Tree, records: Tree) -> Array:
        return log_prior(theta) + n / batch * jax.vmap(log_likelihood, (None, 0))(theta, records).sum()

    def move(theta: Tree, chosen: Array, key: Array, data: Tree) -> Tree:
        gradient = jax.grad(total)(theta, jax.tree.map(lambda values: values[chosen], data))
        leaves, shape = jax.tree.flatten(theta)
        keys = jax.tree.unflatten(shape, list(jax.random.split(key, len(leaves))))

        def one(value: Array, slope: Array, each: Array) -> Array:
            noise = jax.random.normal(each, jnp.shape(value), jnp.result_type(value))
            return value + step_size / 2 * slope + step_size**0.5 * noise

        return jax.tree.map(one, theta, gradient, keys)

    return move
