"""Trainers with one thing wrong, as one-line patches of the engine; used by the tests and by benchmarks."""

from dataclasses import replace

import jax.numpy as jnp

from lastiterate.engine import gradients, loop, seeded_key, trainer
from lastiterate.engine.loop import State

gaussian, update, step_at, advance, summed = loop.gaussian, loop.update, loop.step_at, loop.advance, loop.batch_sum


def clipped_mean(program, *rest):
    """The sum of the unclipped gradients, clipped as if it were one record's mean."""
    total = summed(replace(program, objective=replace(program.objective, clip=None)), *rest)
    return total * jnp.minimum(1.0, program.objective.clip * program.divisor / jnp.linalg.norm(total))


def repeated(program, state, data, *rest):
    """The last block's first record stands in the first block as well."""
    return step_at(program, state, tuple(a.at[0, 0, 0].set(a[-1, 0, 0]) for a in data), *rest)


def best_of_two(program, ahead, state, data, key, plan, first, last):
    """Of the last two iterates, the one nearer to the origin."""
    one = advance(program, ahead, state, data, key, plan, first, last - 1)
    two = advance(program, ahead, one, data, key, plan, last - 1, last)
    return State(jnp.where((one.theta**2).sum() < (two.theta**2).sum(), one.theta, two.theta), two.memory)


def moved_by_data(program, ahead, state, data, *rest):
    """The first parameters are the mean of the rows."""
    return advance(program, ahead, State(state.theta + data[0].mean((0, 1, 2)), state.memory), data, *rest)


def noise_once(program, state, data, order, noise, k, step):
    return update(program, state, data, order, noise * (k == 0), k, step)


def divided_twice(program, state, data, order, noise, *rest):
    return update(program, state, data, order, noise / program.divisor, *rest)


def lost_with_the_record(program, *rest):
    """A sum that is large is not a number: the run is refused because of a record."""
    total = summed(program, *rest)
    return jnp.where(jnp.linalg.norm(total) > 0.2, jnp.nan, total)


# what the attacks must show
LOST_WITH_THE_RECORD = (loop, "batch_sum", lost_with_the_record)
NOISE_HALVED = (loop, "gaussian", lambda key, k, shape: 0.5 * gaussian(key, k, shape))
NOISE_ONCE = (loop, "update", noise_once)
DIVIDED_TWICE = (loop, "update", divided_twice)
UNCLIPPED = (gradients, "clip_residuals", lambda rows, found, clip: found)
CLIPPED_MEAN = (loop, "batch_sum", clipped_mean)
TWO_BATCHES = (loop, "step_at", repeated)
SAME_KEY = (loop, "gaussian", lambda key, k, shape: gaussian(key, 0 * k, shape))
KNOWN_SEED = (trainer, "fresh_key", lambda: seeded_key(7))

# what the exact laws must show
UNPROJECTED = (loop, "project", lambda domain, theta: theta)
PUBLIC_ORDER = (trainer, "drawn_once", lambda program, data, key: data)
BEST_ITERATE = (trainer, "advance", best_of_two)
START_OF_DATA = (trainer, "advance", moved_by_data)
