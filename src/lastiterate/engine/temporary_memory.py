"""What the compiled steps of a run need beside the data and the weights."""

from __future__ import annotations

from typing import Any

import jax

from lastiterate.engine.gaussian_noise import seeded_key
from lastiterate.engine.loop import advance, drawn_for_pass, drawn_once, schedule, start
from lastiterate.engine.prepare import arrange
from lastiterate.engine.trainer import Trainer
from lastiterate.run.run import Run


def working_memory(run: Run, features: Any, target: Any) -> int:
    """Bytes of temporary memory of the program of a linear model's steps, as XLA states them; nothing is trained.

    ``features`` (n, d), ``target`` (n,): data of the shape that the run will have.
    """
    trainer, key = Trainer(run), seeded_key(0)
    with jax.enable_x64(True):
        program, (rows, labels) = trainer.loop.program, arrange(run, features, target)
        data = drawn_for_pass(program, drawn_once(program, (rows, labels), key), key, 0)
        state = start(program, trainer.zero(rows), key)
        made = advance.lower(program, 1, state, data, key, schedule(run), 0, run.steps).compile()
    usage: Any = made.memory_analysis()
    return int(usage.temp_size_in_bytes)
