"""Noise that is too small, too regular, or missing somewhere."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.audit.bugs import runs
from benchmarks.audit.bugs.bug import Bug, Patch
from lastiterate.engine import key_from_seed, loop, trainer
from lastiterate.engine import noise as noise_ahead

DRAWN = {name: getattr(noise_ahead, name) for name in ("normal", "normal_of_models")}
update, stream = loop.update, noise_ahead.stream


def of_unit(change, drawn_for=lambda k: k) -> tuple[Patch, ...]:
    """Noise of steps k as ``change(k, unit)``, where ``unit`` is the noise of steps
    ``drawn_for(k)``.

    k (many, 1, ...) has as many axes as noise of a model, (..., many, *shape).
    """

    def instead(name):
        def drawn(key, first, many, shape):
            k = first + np.arange(many)
            own, axis = drawn_for(k), -1 - len(shape)
            unit = DRAWN[name](key, own.min(), np.ptp(own) + 1, shape)
            return jnp.asarray(
                change(k.reshape(-1, *(1,) * len(shape)), unit.take(own - own.min(), axis))
            )

        return noise_ahead, name, drawn

    return tuple(map(instead, DRAWN))


def noise_once(program, state, data, order, noise, k, step):
    return update(program, state, data, order, noise * (k == 0), k, step)


def none_at_the_end(steps):
    def changed(program, state, data, order, noise, k, step):
        return update(program, state, data, order, noise * (k < steps - 1), k, step)

    return changed


def divided_twice(program, state, data, order, noise, *rest):
    return update(program, state, data, order, noise / program.divisor, *rest)


def scaled_by_the_step_twice(program, state, data, order, noise, k, step):
    return update(program, state, data, order, noise * step, k, step)


def uniform(k, unit):
    return math.sqrt(12) * (jax.scipy.special.ndtr(unit) - 0.5)


def short_key(key, which):
    return stream(jnp.asarray(key) * jnp.asarray([1, 0, 0, 0], jnp.uint32) & 255, which)


NOISE_HALVED = of_unit(lambda k, unit: 0.5 * unit)
NOISE_ONCE = (loop, "update", noise_once)
DIVIDED_TWICE = (loop, "update", divided_twice)
SAME_KEY = of_unit(lambda k, unit: unit, lambda k: 0 * k)
KNOWN_SEED = (trainer, "fresh_key", lambda: key_from_seed(7))
ANTITHETIC = of_unit(lambda k, unit: unit * (1 - 2.0 * (k % 2)), lambda k: k // 2)
EVERY_16 = of_unit(lambda k, unit: unit, lambda k: k % 16)
ONE_NUMBER = of_unit(lambda k, unit: jnp.broadcast_to(unit[..., :1], unit.shape))
ONE_CLASS = of_unit(lambda k, unit: jnp.broadcast_to(unit[..., :1, :], unit.shape))

BUGS = (
    Bug("noise halved", runs.BASE, NOISE_HALVED),
    Bug("noise in the first step only", runs.BASE, (NOISE_ONCE,)),
    Bug(
        "no noise in the last step",
        runs.BASE,
        ((loop, "update", none_at_the_end(runs.BASE.steps)),),
    ),
    Bug("noise divided by the batch twice", runs.BASE, (DIVIDED_TWICE,)),
    Bug("noise scaled by the step twice", runs.BASE, ((loop, "update", scaled_by_the_step_twice),)),
    Bug(
        "noise that shrinks with the steps",
        runs.BASE,
        of_unit(lambda k, unit: unit / jnp.sqrt(1.0 + k)),
    ),
    Bug("one key for all steps, near 2/smooth", runs.TURNING, SAME_KEY),
    Bug("antithetic noise", runs.LONG, ANTITHETIC),
    Bug("noise that repeats every 16 steps, all released", runs.ALL, EVERY_16),
    Bug("no noise on the intercept", runs.BASE, of_unit(lambda k, unit: unit.at[..., -1].set(0.0))),
    Bug("one noise number for all columns", runs.BASE, ONE_NUMBER),
    Bug("one noise for all classes", runs.SOFTMAX, ONE_CLASS),
    Bug(
        "noise clipped at 3 standard deviations",
        runs.ONE_STEP,
        of_unit(lambda k, unit: jnp.clip(unit, -3, 3)),
    ),
    Bug("uniform noise", runs.ONE_STEP, of_unit(uniform)),
    Bug(
        "noise rounded to an eighth of its size",
        runs.ONE_STEP,
        of_unit(lambda k, unit: jnp.round(8 * unit) / 8),
    ),
    Bug(
        "keys of 8 bits",
        runs.BASE,
        (
            (noise_ahead, "stream", short_key),
            (noise_ahead, "streams", jax.vmap(short_key, (0, None))),
        ),
    ),
    Bug("a known seed", runs.BASE, (KNOWN_SEED,)),
)
