"""What the compiled steps of a run need beside the data and the weights."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from lastiterate.engine.gaussian_noise import ORDER, seeded_key, stream
from lastiterate.engine.loop import advance, drawn_for_pass, drawn_once, schedule, start
from lastiterate.engine.noise_ahead import NoiseAhead, drawing_program
from lastiterate.engine.prepare import arrange, readable
from lastiterate.engine.trainer import Trainer
from lastiterate.run.run import Run


def working_memory(run: Run, features: np.ndarray, target: object) -> int:
    """Bytes of temporary memory of the program of a linear model's steps, as XLA states them; nothing is trained.

    ``features`` (n, d), ``target`` (n,): data of the shape that the run will have.
    """
    trainer, key = Trainer(run), seeded_key(0)
    with jax.enable_x64(True):
        program, data = trainer.loop.program, readable(run, *arrange(run, features, target))
        state = start(program, trainer.zero(data[0]), key)
        data = drawn_for_pass(program, drawn_once(program, data, key), key, 0)
        noise = NoiseAhead.normal(key, state.theta.shape).at(0)[0]
        plan, order = schedule(run), stream(key, ORDER)
        made = (advance.lower(program, state, data, order, plan, noise, 0, run.steps, False),
                drawing_program(order, state.theta.shape))
    usage: list[Any] = [each.compile().memory_analysis() for each in made]
    return int(sum(each.temp_size_in_bytes for each in usage) + noise.units.nbytes)
