"""Audits of runs whose loss is a function, and of models at several numbers of steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lastiterate.audit.canaries import (
    LONG,
    DataSet,
    Neighbours,
    Train,
    is_replace_one,
    linear_in_noise,
    move_record,
    relocate_pair,
    without,
    worst_place,
)
from lastiterate.audit.end_to_end import PublicTrainer
from lastiterate.engine import keys_from_seed
from lastiterate.engine.linear_gradients import arrange, readable
from lastiterate.engine.network import fit_network, prepare_loop
from lastiterate.engine.parameters import Form
from lastiterate.engine.random import Key
from lastiterate.engine.record_loss import RecordLoss
from lastiterate.engine.trainer import Diverged, Loop, Models, Trainer
from lastiterate.errors import InputError
from lastiterate.run.losses import KnownConstants
from lastiterate.run.methods import NoisySGD
from lastiterate.run.run import Run

# Many models of one run, looked at after several numbers of steps while they train.  The first k
# steps of a run are what the run of k steps does with the same key, so that every look is at the
# last iterate of a shorter run. Only the features that are asked for are kept.

Look = Callable[[jax.Array], Any]
"""Parameters (models, size) float64 to features (models, ...)."""
Many = Callable[[Run, tuple[Any, ...], Any, Sequence[int], Look], np.ndarray]
"""A trainer of many networks: (run, data, keys, checkpoints, look) to features (models,
checkpoints, ...), with the run's distribution; a pure function of the data and of every model's
key."""


def fit_networks(
    run: Run,
    loss: RecordLoss,
    params: object,
    data: tuple[Any, ...],
    keys: np.ndarray,
    *,
    checkpoints: Sequence[int] | None = None,
    batch_models: int = 30,
    many: Many | None = None,
) -> Any:
    """Train one network per key, for audits and experiments.

    Parameters
    ----------
    run : Run
        Description of the training.
    loss : callable
        ``loss(params, *record)`` of one record, written with JAX.
    params : nested arrays
        First parameters.
    data : tuple of array_like
        Records along the first axis.
    keys : numpy.ndarray, shape (models, ...)
        One key per network, such as those of ``lastiterate.engine.keys_from_seed``.
    checkpoints : sequence of int, optional
        Increasing numbers of steps after which every network is kept.
    batch_models : int, default 30
        Number of networks that train together in one program.
    many : callable, optional
        Trainer instead of the library's.

    Returns
    -------
    nested arrays
        Parameters structured like ``params``: arrays (models, ...), or (models, checkpoints, ...).

    Notes
    -----
    The first k steps of a run are the run of k steps with the same key. No certificate covers the
    result.

    Examples
    --------
    >>> import jax
    >>> import numpy as np
    >>> import lastiterate as li
    >>> from lastiterate.audit import fit_networks
    >>> from lastiterate.engine import keys_from_seed
    >>> def loss(params, x, y):
    ...     return -jax.nn.log_softmax(params @ x)[y]
    >>> run = li.Run(n=12, steps=20, step_size=0.5, noise=li.GradientNoise(0.1))
    >>> data = np.ones((12, 4), np.float32), np.arange(12) % 2
    >>> fit_networks(run, loss, np.zeros((2, 4), np.float32), data, keys_from_seed(0, 3)).shape
    (3, 2, 4)
    """
    form, parts = Form.of(params), list[np.ndarray]()
    with jax.enable_x64(True):
        trained = trainer(run, loss, params, data, many)
        for begin in range(0, len(keys), batch_models):
            part, after = (
                keys[begin : begin + batch_models],
                [run.steps] if checkpoints is None else checkpoints,
            )
            parts.append(np.asarray(trained(part, after, lambda theta: theta), np.float64))
    thetas = np.concatenate(parts)
    return form.whole(form.restore_precision(thetas[:, 0] if checkpoints is None else thetas))


def weights_after(
    run: Run, features: np.ndarray, target: np.ndarray, keys: np.ndarray, checkpoints: Sequence[int]
) -> np.ndarray:
    """Train one linear model per key, and keep it after several numbers of steps.

    Parameters
    ----------
    run : Run
        Description of the training.
    features : numpy.ndarray, shape (n, d)
        Rows.
    target : numpy.ndarray, shape (n,)
        Class indices or numbers.
    keys : numpy.ndarray, shape (models, ...)
        One key per model, such as those of ``lastiterate.engine.keys_from_seed``.
    checkpoints : sequence of int
        Increasing numbers of steps.

    Returns
    -------
    numpy.ndarray, shape (models, checkpoints, k, d + 1)
        Weights.

    Raises
    ------
    InputError
        If the method is not plain descent, whose shorter runs are prefixes.

    Examples
    --------
    >>> import numpy as np
    >>> import lastiterate as li
    >>> from lastiterate.audit import weights_after
    >>> from lastiterate.engine import keys_from_seed
    >>> run = li.Run(n=20, steps=5, step_size=0.5, noise=li.NoiseMultiplier(2), loss=li.Logistic())
    >>> weights_after(run, np.ones((20, 2)), np.arange(20) % 2, keys_from_seed(0, 3), [2, 5]).shape
    (3, 2, 1, 3)
    """
    if not isinstance(run.method, NoisySGD):
        raise InputError(
            "method",
            "must be plain descent: what others release depends on how long they run",
            type(run.method).__name__,
            "train the shorter runs by themselves",
        )
    rows, *rest = readable(run, *arrange(run, features, target))
    with jax.enable_x64(True):
        one = Trainer(run)
        start, *data, held = map(jnp.asarray, (one.zero(rows), rows, *rest, keys))  # pyright: ignore
        return observe(one.loop, start, tuple(data), held, checkpoints, lambda weights: weights)


def trainer(
    run: Run, loss: RecordLoss, params: object, data: tuple[Any, ...], many: Many | None = None
) -> Callable[[Any, Sequence[int], Look], np.ndarray]:
    """What trains networks for keys, and looks at them: ``many``, or the library's loop; under
    64-bit JAX."""
    if many is not None:
        return partial(many, run, data)
    return partial(observe, *prepare_loop(run, loss, params, data))


def observe(
    loop: Loop,
    first: jax.Array,
    arranged: object,
    keys: jax.Array,
    checkpoints: Sequence[int],
    look: Look,
) -> np.ndarray:
    """Features of one model per key after every number of steps, (models, checkpoints, ...); under
    64-bit JAX."""
    begun, looks = jnp.broadcast_to(first, (len(keys), *first.shape)), list[np.ndarray]()
    models = Models.begun(loop.run, loop.program, begun, arranged, keys)
    for checkpoint in checkpoints:
        models.onward(checkpoint)
        theta = models.state.theta
        features = np.array(look(theta))  # copied: later steps write where ``theta`` lies
        if not (np.isfinite(np.asarray(theta)).all() and np.isfinite(features).all()):
            raise InputError(
                "step_size",
                f"makes models diverge before step {checkpoint}",
                None,
                "audit a run with a smaller step size",
            )
        looks.append(features)
    return np.stack(looks, axis=1)


# Audits of runs whose loss is a function: a stand-in loss whose gradients are the records
# themselves.  A network's loss and forward pass are the user's code, and no folder holds them. The
# rest of the run (clips over all arrays at once, batches, noise, steps) is executed on
# -<parameters, record>: the gradient of every record is then the record itself, worst cases
# included (crafted gradients: Cebere, Bellet, Papernot 2024).

SHAPES = {"first": (3,), "second": (2, 2)}
"""Arrays of the stand-in's parameters: several, so that a clip for each of them shows."""
SIZE = 7
LENGTHS = (0.01, 0.1, 0.3, 2.0, 1e3)
"""Lengths of canary gradients, in units of the clip."""
BEYOND = 1e4
"""A number whose exponential is infinite."""


def is_clipped_only(run: Run) -> bool:
    """Whether the run's loss is a function that only its clip bounds."""
    return isinstance(run.loss, KnownConstants) and run.clip is not None


def loss(params: Mapping[str, jax.Array], record: jax.Array) -> jax.Array:
    """-<parameters, record>, a record as long as all parameters."""
    return -(jnp.concatenate([jnp.ravel(params[name]) for name in sorted(params)]) * record).sum()


def train_many(run: Run, shapes: Mapping[str, tuple[int, ...]] = SHAPES) -> Train:
    """The library's network trainer on the stand-in: (features, target, keys) -> (models, size), or
    all iterates.

    Absent records have no gradient because their rows become 0.
    """

    def train(
        features: np.ndarray, target: np.ndarray, keys: np.ndarray, absent: Sequence[int] = ()
    ) -> np.ndarray:
        rows = np.array(features, np.float32)
        rows[list(absent)] = 0.0
        with jax.enable_x64(True):
            loop, initial, arranged = prepare_loop(run, loss, start(shapes), (rows,))
            return loop.many(initial, arranged, keys)

    return train


def start(shapes: Mapping[str, tuple[int, ...]] = SHAPES) -> dict[str, np.ndarray]:
    """First parameters: 0."""
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


def public(run: Run, pair: Neighbours) -> PublicTrainer:
    """What a user calls, on the stand-in; a few records at a time."""

    def numbers(model: Any) -> np.ndarray:
        """Parameters of one model, or of every iterate that is released, as long as a record:
        (iterates, SIZE)."""
        parts = [
            np.asarray(model.params[name], np.float64).reshape(-1, prod(shape))
            for name, shape in SHAPES.items()
        ]
        return np.concatenate(parts, axis=1)

    data = (np.asarray(pair.with_record.features, np.float32),)
    return PublicTrainer(
        run, data, numbers, {"model": start(), "loss": loss, "microbatch": 2}, close=1e-5
    )  # float32


def violations(run: Run, pair: Neighbours, size: int) -> tuple[str, ...]:
    """Whether a record whose gradient is no number leaves a trace, beyond that of an absent one."""

    def grown(params: Mapping[str, jax.Array], record: jax.Array) -> jax.Array:
        return loss(params, jnp.expm1(record))

    key = keys_from_seed(11, 1)[0]
    empty = np.zeros((run.n, SIZE), np.float32)
    infinite = empty.copy()
    infinite[pair.record] = BEYOND
    one, two = (_release_arrays(run, grown, rows, key) for rows in (infinite, empty))
    same = one.keys() == two.keys() and all(np.array_equal(one[name], two[name]) for name in one)
    return () if same else ("a record whose gradient is no number changes the model",)


def _release_arrays(
    run: Run, loss: RecordLoss, rows: np.ndarray, key: Key
) -> dict[str, np.ndarray]:
    """The arrays of the model, none where the run diverges; whatever else it is refused for is no
    matter of records."""
    try:
        return fit_network(run, loss, start(), (rows,), key)
    except Diverged:
        return {}


def families(run: Run, seed: int = 0) -> tuple[Neighbours, ...]:
    """Pairs of data sets whose rows are gradients, the tight one first; the others' positions are
    drawn by ``seed``."""
    assert run.clip is not None
    n, record, clip = run.n, worst_place(run), run.clip
    axis, dense = np.eye(SIZE)[0], np.ones(SIZE) / np.sqrt(SIZE)
    ends = np.zeros(SIZE)
    ends[[0, -1]] = np.sqrt(0.5)
    nothing, ordinary = (
        np.zeros((n, SIZE)),
        np.outer(np.resize([0.3, -0.5, 2.0], n), np.eye(SIZE)[1]) * clip,
    )
    pairs = [
        _pair(run, "one record has a long gradient, the others none", nothing, record, LONG * axis),
        _pair(run, "a gradient along all parameters", nothing, record, LONG * dense),
        _pair(run, "a gradient in two arrays", nothing, record, LONG * ends),
        _pair(run, "an extreme gradient among ordinary ones", ordinary, record, 1e3 * axis),
        _pair(
            run,
            "all other gradients on the other side",
            np.tile(-LONG * clip * axis, (n, 1)),
            record,
            LONG * axis,
        ),
    ]
    pairs += [
        _pair(run, f"a gradient of {length:g} times the clip", nothing, record, length * axis)
        for length in LENGTHS
    ]
    if run.batching.drawn == "never" and run.blocks > 1:
        pairs[1:1] = [
            replace(
                move_record(pairs[0], where), about=f"{about} has a long gradient, the others none"
            )
            for where, about in ((n - 1, "the last record"), (0, "the first record"))
            if where != record
        ]
    rng = np.random.default_rng(seed)
    return (pairs[0], *(relocate_pair(run, pair, rng) for pair in pairs[1:]))


def _pair(
    run: Run, about: str, others: np.ndarray, record: int, gradient: np.ndarray
) -> Neighbours:
    features = others.astype(np.float32).copy()
    features[record] = gradient * (run.clip or 1.0)
    present = DataSet(features, np.zeros(run.n))
    exact = linear_in_noise(run)
    direction = gradient / max(float(np.linalg.norm(gradient)), 1e-300)
    if is_replace_one(run):
        other = DataSet(features.copy(), present.target)
        other.features[record] *= -1
        return Neighbours(present, other, record, about, direction, exact)
    return Neighbours(present, without(present, record), record, about, direction, exact)
