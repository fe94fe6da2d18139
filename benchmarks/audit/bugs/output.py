"""What is released is not the last iterate of the run that is described."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp

import lastiterate as li
from benchmarks.audit.bugs import runs
from benchmarks.audit.bugs.bug import Bug, Patch, stepping
from lastiterate.engine import loop, trainer
from lastiterate.engine.loop import State

advanced, summed, of = loop.run_steps, loop.batch_sum, trainer.StepProgram.of
fit = trainer.Trainer.fit


def best_of_two(program, state, data, order, plan, noise, first, last, every):
    """Of the last two iterates, the one nearer to the origin."""
    one, _ = advanced(program, state, data, order, plan, noise, first, last - 1, every)
    two, iterates = advanced(program, one, data, order, plan, noise, last - 1, last, every)
    return State(
        jnp.where((one.theta**2).sum() < (two.theta**2).sum(), one.theta, two.theta), two.memory
    ), iterates


def averaged(program, state, data, order, plan, noise, first, last, every):
    total = jnp.zeros_like(state.theta)
    for k in range(AVERAGED):
        state, iterates = advanced(program, state, data, order, plan, noise, k, k + 1, every)
        total = total + state.theta
    return State(total / AVERAGED, state.memory), iterates


def lost_with_the_record(program, *rest):
    """A sum that is large is not a number: the run is refused because of a record."""
    total = summed(program, *rest)
    return jnp.where(jnp.linalg.norm(total) > 0.2, jnp.nan, total)


def with_momentum(momentum) -> tuple[Patch, ...]:
    return ((trainer.StepProgram, "of", lambda *given: replace(of(*given), rule=momentum)),)


AVERAGED = 6
LOST_WITH_THE_RECORD = (loop, "batch_sum", lost_with_the_record)
UNPROJECTED = (loop, "project", lambda domain, theta: theta)
BEST_ITERATE = stepping(best_of_two)


def half_the_noise(self, features, target, key=None, *rest, **named):
    """Only what a user calls is wrong; what audits call is right."""
    return fit(
        trainer.Trainer(replace(self.run, noise=self.run.noise.scale_by(0.5))),
        features,
        target,
        key,
        *rest,
        **named,
    )


BUGS = (
    Bug(
        "averaged iterates",
        replace(runs.BASE, steps=AVERAGED, batching=li.Cyclic(2)),
        stepping(averaged),
    ),
    Bug(
        "the best iterate instead of the last",
        replace(runs.BASE, loss=replace(runs.LOSS, ridge=0.1)),
        BEST_ITERATE,
    ),
    Bug("Nesterov's momentum left on", runs.BASE, with_momentum(li.Nesterov())),
    Bug("heavy ball left on", runs.BASE, with_momentum(li.HeavyBall(0.3))),
    Bug("a projection that is skipped", runs.IN_A_BALL, (UNPROJECTED,)),
    Bug("refused because of a record", runs.ORTHOGONAL, (LOST_WITH_THE_RECORD,)),
    Bug(
        "fit with half the noise of fit_many",
        runs.BASE,
        ((trainer.Trainer, "fit", half_the_noise),),
    ),
)
