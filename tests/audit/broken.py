"""Trainers with one thing wrong, as one-line patches of the engine; used by the tests and by benchmarks."""

import jax.numpy as jnp

from lastiterate.engine import gradients, seeded_key, trainer
from lastiterate.engine.trainer import State

gaussian, update, step_at, advance = trainer.gaussian, trainer.update, trainer._step_at, trainer._advance
summed, begin, many = trainer.gradient_sum, trainer.start, trainer.Trainer.fit_many


def clipped_mean(loss, clip, exact, theta, rows, target):
    """The sum of the unclipped gradients, clipped as if it were one record's mean."""
    total, n = summed(loss, None, exact, theta, rows, target), rows.shape[0] * rows.shape[1]
    return total * jnp.minimum(1.0, clip * n / jnp.linalg.norm(total))


def repeated(run, state, rows, target, *rest):
    """The last block's first record stands in the first block as well."""
    return step_at(run, state, rows.at[0, 0, 0].set(rows[-1, 0, 0]), target.at[0, 0, 0].set(target[-1, 0, 0]), *rest)


def best_of_two(run, ahead, state, rows, target, key, plan, first, last):
    """Of the last two iterates, the one nearer to the origin."""
    one = advance(run, ahead, state, rows, target, key, plan, first, last - 1)
    two = advance(run, ahead, one, rows, target, key, plan, last - 1, last)
    return State(jnp.where((one.theta**2).sum() < (two.theta**2).sum(), one.theta, two.theta), two.memory)


# what the attacks must show
NOISE_HALVED = (trainer, "gaussian", lambda key, k, shape: 0.5 * gaussian(key, k, shape))
NOISE_ONCE = (trainer, "update", lambda run, s, x, y, noise, k, step: update(run, s, x, y, noise * (k == 0), k, step))
DIVIDED_TWICE = (trainer, "update", lambda run, s, x, y, noise, k, e: update(run, s, x, y, noise / run.divisor, k, e))
UNCLIPPED = (gradients, "clip_residuals", lambda rows, found, clip: found)
CLIPPED_MEAN = (trainer, "gradient_sum", clipped_mean)
TWO_BATCHES = (trainer, "_step_at", repeated)
SAME_KEY = (trainer, "gaussian", lambda key, k, shape: gaussian(key, 0 * k, shape))
KNOWN_SEED = (trainer, "fresh_key", lambda: seeded_key(7))

# what the exact laws must show
UNPROJECTED = (trainer, "project", lambda domain, theta: theta)
PUBLIC_ORDER = (trainer, "places", lambda run, key: None)
BEST_ITERATE = (trainer, "_advance", best_of_two)
START_OF_DATA = (
    trainer,
    "_advance",
    lambda run, ahead, s, x, *rest: advance(run, ahead, State(s.theta + x.mean((0, 1, 2)), s.memory), x, *rest),
)
