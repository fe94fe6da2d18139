"""Many models of one run, looked at after several numbers of steps while they train.

The first k steps of a run are what the run of k steps does with the same key, so that every look is at the last iterate
of a shorter run. Only the features that are asked for are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lastiterate.engine.loop import Schedule, State, advance, pass_data, schedule, secret, shape_of, start
from lastiterate.engine.objective import Objective
from lastiterate.engine.trainer import Loop
from lastiterate.errors import InputError
from lastiterate.run.batching import Reshuffled
from lastiterate.run.run import Run

Look = Callable[[jax.Array], Any]
"""Parameters (models, size) float64 to features (models, ...)."""


def looked_at(loop: Loop, first: jax.Array, arranged: Any, keys: jax.Array, checkpoints: Sequence[int], look: Look
              ) -> np.ndarray:
    """Features of one model per key after every number of steps, (models, checkpoints, ...); under 64-bit JAX."""
    run, shape, plan = loop.run, shape_of(loop.run), schedule(loop.run)
    state = _started(shape, first, keys)
    found, done = list[np.ndarray](), 0
    for checkpoint in checkpoints:
        while done < checkpoint:
            until, number = checkpoint, done // run.blocks
            if isinstance(run.batching, Reshuffled):  # every pass has an order of its own
                until = min(until, (number + 1) * run.blocks)
            state = _onward(shape, loop.objective, state, arranged, keys, plan, done, until, number)
            done = until
        if not np.isfinite(np.asarray(state.theta)).all():
            raise InputError("step_size", f"makes models diverge before step {checkpoint}", None,
                             "audit a run with a smaller step size")
        found.append(np.asarray(look(state.theta)))
    return np.stack(found, axis=1)


@partial(jax.jit, static_argnums=0)
def _started(run: Run, first: Any, keys: Any) -> State:
    return jax.vmap(lambda key: start(run, first, key))(keys)


@partial(jax.jit, static_argnums=(0, 1))
def _onward(run: Run, objective: Objective, state: State, data: Any, keys: Any, plan: Schedule, done: Any, until: Any,
            number: Any) -> State:
    def one(state: State, key: jax.Array) -> State:
        if isinstance(run.batching, Reshuffled):
            arranged = pass_data(run, objective.most, data, key, number)
        else:
            arranged = secret(run, objective.most, data, key)
        return advance(run, objective, 1, state, arranged, key, plan, jnp.asarray(done), until)

    return jax.vmap(one)(state, keys)
