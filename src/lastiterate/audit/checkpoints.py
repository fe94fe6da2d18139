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

from lastiterate.engine.many_models import Models
from lastiterate.engine.network import prepared
from lastiterate.engine.parameter_form import Form
from lastiterate.engine.prepare import arrange, readable
from lastiterate.engine.record_loss import RecordLoss
from lastiterate.engine.trainer import Loop, Trainer
from lastiterate.errors import InputError
from lastiterate.run.method import Descent
from lastiterate.run.run import Run

Look = Callable[[jax.Array], Any]
"""Parameters (models, size) float64 to features (models, ...)."""
Many = Callable[[Run, tuple[Any, ...], Any, Sequence[int], Look], np.ndarray]
"""What trains many networks: (run, data, keys, checkpoints, look) to features (models, checkpoints, ...), by the law of
the run; a pure function of the data and of every model's key."""


def fit_networks(run: Run, loss: RecordLoss, params: object, data: tuple[Any, ...], keys: np.ndarray, *,
                 checkpoints: Sequence[int] | None = None, batch_models: int = 30, many: Many | None = None) -> Any:
    """One network per key, for audits and experiments: parameters structured like ``params``, arrays (models, ...).

    ``loss``, ``params``, ``data``: as ``lastiterate.engine.fit_network`` takes them. ``checkpoints``: increasing
    numbers of steps after which every network is looked at, (models, checkpoints, ...); the last iterate without them.
    ``batch_models``: how many train together in one program. ``many``: what trains them in the library's place.
    """
    form, parts = Form.of(params), list[np.ndarray]()
    with jax.enable_x64(True):
        trained = trainer(run, loss, params, data, many)
        for begin in range(0, len(keys), batch_models):
            part, after = keys[begin:begin + batch_models], [run.steps] if checkpoints is None else checkpoints
            parts.append(np.asarray(trained(part, after, lambda theta: theta), np.float64))
    thetas = np.concatenate(parts)
    return form.whole(form.released(thetas[:, 0] if checkpoints is None else thetas))


def weights_after(run: Run, features: np.ndarray, target: np.ndarray, keys: np.ndarray,
                  checkpoints: Sequence[int]) -> np.ndarray:
    """Linear models after several numbers of steps, one per key, in one program: (models, checkpoints, k, d + 1).

    As ``Trainer(run).fit_many`` trains them; a shorter run's last iterate with the same key is the longer one's. For
    audits and experiments. Errors: ``InputError`` for a method whose shorter runs are other ones, such as an average.
    """
    if not isinstance(run.method, Descent):
        raise InputError("method", "must be plain descent: what others release depends on how long they run",
                         type(run.method).__name__, "train the shorter runs by themselves")
    rows, *rest = readable(run, *arrange(run, features, target))
    with jax.enable_x64(True):
        one = Trainer(run)
        start, *data, held = map(jnp.asarray, (one.zero(rows), rows, *rest, keys))  # pyright: ignore
        return looked_at(one.loop, start, tuple(data), held, checkpoints, lambda weights: weights)


def trainer(run: Run, loss: RecordLoss, params: object, data: tuple[Any, ...], many: Many | None = None
            ) -> Callable[[Any, Sequence[int], Look], np.ndarray]:
    """What trains networks for keys, and looks at them: ``many``, or the library's loop; under 64-bit JAX."""
    if many is not None:
        return partial(many, run, data)
    return partial(looked_at, *prepared(run, loss, params, data))


def looked_at(loop: Loop, first: jax.Array, arranged: object, keys: jax.Array, checkpoints: Sequence[int], look: Look
              ) -> np.ndarray:
    """Features of one model per key after every number of steps, (models, checkpoints, ...); under 64-bit JAX."""
    begun, looks = jnp.broadcast_to(first, (len(keys), *first.shape)), list[np.ndarray]()
    models = Models.begun(loop.run, loop.program, begun, arranged, keys)
    for checkpoint in checkpoints:
        models.onward(checkpoint)
        theta = models.state.theta
        features = np.array(look(theta))  # copied: later steps write where ``theta`` lies
        if not (np.isfinite(np.asarray(theta)).all() and np.isfinite(features).all()):
            raise InputError("step_size", f"makes models diverge before step {checkpoint}", None,
                             "audit a run with a smaller step size")
        looks.append(features)
    return np.stack(looks, axis=1)
