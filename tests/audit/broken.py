"""Trainers with one thing wrong, as one-line patches of the engine; used by the tests and by benchmarks."""

from dataclasses import replace

import jax.numpy as jnp

from lastiterate.engine import gradients, loop, seeded_key, trainer
from lastiterate.engine.loop import State

gaussian, update, step_at, advance, summed = loop.gaussian, loop.update, loop.step_at, loop.advance, loop.batch_sum


def clipped_mean(run, model, *rest):
    """The sum of the unclipped gradients, clipped as if it were one record's mean."""
    total = summed(run, replace(model, clip=None), *rest)
    return total * jnp.minimum(1.0, model.clip * run.divisor / jnp.linalg.norm(total))


def repeated(run, model, state, data, *rest):
    """The last block's first record stands in the first block as well."""
    return step_at(run, model, state, tuple(a.at[0, 0, 0].set(a[-1, 0, 0]) for a in data), *rest)


def best_of_two(run, model, ahead, state, data, key, plan, first, last):
    """Of the last two iterates, the one nearer to the origin."""
    one = advance(run, model, ahead, state, data, key, plan, first, last - 1)
    two = advance(run, model, ahead, one, data, key, plan, last - 1, last)
    return State(jnp.where((one.theta**2).sum() < (two.theta**2).sum(), one.theta, two.theta), two.memory)


def moved_by_data(run, model, ahead, state, data, *rest):
    """The first parameters are the mean of the rows."""
    return advance(run, model, ahead, State(state.theta + data[0].mean((0, 1, 2)), state.memory), data, *rest)


def noise_once(run, model, state, data, order, noise, k, step):
    return update(run, model, state, data, order, noise * (k == 0), k, step)


def divided_twice(run, model, state, data, order, noise, *rest):
    return update(run, model, state, data, order, noise / run.divisor, *rest)


# what the attacks must show
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
PUBLIC_ORDER = (trainer, "secret", lambda run, most, data, key: data)
BEST_ITERATE = (trainer, "advance", best_of_two)
START_OF_DATA = (trainer, "advance", moved_by_data)
